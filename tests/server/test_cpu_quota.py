"""The CPUs a container leaves us, as the files of either version of control groups say."""

from pathlib import Path

import pytest

from server.cpu_quota import allowed_cpus


def machine(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, content in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    (root / "self").write_text(membership)
    return root / "cgroup", root / "self"


V1 = "12:memory:/docker/abc\n7:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "600000 100000"}, 3),
        ("0::/outside/only\n", {"cpu.max": "400000 100000"}, 4),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "250000", "cpu/docker/abc/cpu.cfs_period_us": "100000"}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "800000", "cpu/cpu.cfs_period_us": "100000"}, 8),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (V1, {"memory/docker/abc/cpu.max": "100000 100000"}, None),
        ("nonsense\n", {"cpu.max": "nonsense"}, None),
    ],
)
def test_the_smallest_quota_around_the_process_counts(
    membership: str, files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    assert allowed_cpus(*machine(tmp_path, membership, files)) == expected


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert allowed_cpus(tmp_path / "none", tmp_path / "nothing") is None
