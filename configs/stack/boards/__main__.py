"""Writes every dashboard to the folder that Grafana reads. A test in tests/deploy tells when that was forgotten."""

from configs.stack.boards.files import BOARDS, FOLDER, written

for name in BOARDS:
    (FOLDER / f"{name}.json").write_text(written(name), "utf-8")
