import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from server.weights import WeightsError, WeightStore, huggingface
from server.weights.causes import of_exception
from tests.server.weights.packages import PARTS, content, downloads, hub, make_parts, model


def test_a_gguf_from_the_hub(store: WeightStore, endpoint: Callable[[str], None]) -> None:
    data = os.urandom(50_000)
    with hub({"m.gguf": data}) as url:
        endpoint(url)
        assert content(store.resolve(model({"huggingface": "org/name", "file": "m.gguf"}, data))) == data
        assert not downloads(store)
        with pytest.raises(WeightsError, match="no such file at revision main"):
            store.resolve(model({"huggingface": "org/name", "file": "other.gguf"}))
        with pytest.raises(WeightsError, match="wrong checksum"):
            store.resolve(model({"huggingface": "org/name", "file": "m.gguf"}, b"other"))
        assert not downloads(store)


def test_a_repository_without_a_file_is_its_safetensors(store: WeightStore, endpoint: Callable[[str], None]) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"pickle"}
    wanted = model("org/name")
    with hub(files) as url:
        endpoint(url)
        folder = store.resolve(wanted)
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    # The hub is gone now; what was fetched is still found.
    assert store.resolve(wanted) == folder


def test_a_repository_without_safetensors_is_refused_before_anything_is_fetched(
    store: WeightStore, endpoint: Callable[[str], None]
) -> None:
    wanted = model("org/name")
    with hub({"config.json": b"{}", "pytorch_model.bin": b"pickle"}) as url:
        endpoint(url)
        with pytest.raises(WeightsError, match="Hugging Face org/name has no safetensors: convert its weights"):
            store.resolve(wanted)
    assert not list(Path(constants.HF_HUB_CACHE).rglob("config.json"))


def test_a_snapshot_is_here_once_all_of_it_is(store: WeightStore, endpoint: Callable[[str], None]) -> None:
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    shards = {"model-1.safetensors": b"1", "model-2.safetensors": b"2"}
    wanted = model("org/name")
    assert store.here(wanted) is None
    with hub({"config.json": b"{}", "model.safetensors.index.json": index, **shards}) as url:
        endpoint(url)
        folder = store.resolve(wanted)
    assert store.here(wanted) == folder
    (folder / "model-2.safetensors").unlink()
    assert store.here(wanted) is None


def test_a_hub_that_is_silent_or_gone_costs_seconds_then_the_next_source_is_asked(
    store: WeightStore, index: Path, endpoint: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "CONNECT_SECONDS", 0.5)
    data = make_parts(index, range(9, 12))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert content(store.resolve(model([{"huggingface": "org/name", "file": "m.gguf"}, PARTS], data))) == data
        assert time.monotonic() - began < 10
    with pytest.raises(WeightsError, match="Hugging Face org/name cannot be reached"):
        store.resolve(model("org/name"))


def test_a_second_copy_in_the_makers_own_format_is_left_out(
    store: WeightStore, endpoint: Callable[[str], None]
) -> None:
    wanted = {"config.json": b"{}", "model-1.safetensors": b"1", "model-2.safetensors": b"2", "params.json": b"{}"}
    copies = {"consolidated.safetensors": b"12", "original/model.safetensors": b"12", "original/params.json": b"{}"}
    with hub(wanted | copies) as url:
        endpoint(url)
        folder = store.resolve(model("org/name"))
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()} == set(wanted)


def test_a_repository_that_does_not_fit_on_the_disk_is_refused_before_it_is_fetched(
    store: WeightStore, endpoint: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w" * 5000, "consolidated.safetensors": b"w" * 5000}
    with hub(files) as url:
        endpoint(url)
        monkeypatch.setattr("server.weights.disk.free_bytes", lambda _: 5001)
        with pytest.raises(WeightsError, match="disk full"):
            store.resolve(model("org/name"))
        assert not list(tmp_path.rglob("*.safetensors"))
        monkeypatch.setattr("server.weights.disk.free_bytes", lambda _: 5002)
        folder = store.resolve(model("org/name"))
        monkeypatch.setattr("server.weights.disk.free_bytes", lambda _: 0)
        assert store.resolve(model("org/name")) == folder


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file or directory"), ("x", "holds no certificate")])
def test_a_certificate_file_that_is_none_is_named_and_the_next_source_is_asked(
    store: WeightStore, index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, reason: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.delenv("PIP_CERT", raising=False)
    data = make_parts(index, range(9, 12))
    for source in ("org/name", PARTS):
        with pytest.raises(WeightsError, match=f": SSL_CERT_FILE = {file}: {reason}"):
            store.resolve(model(source))
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "good.pem"))  # never opened: pip asks no index
    assert store.resolve(model([{"huggingface": "org/name", "file": "m.gguf"}, PARTS], data))


def test_why_nothing_answers_is_told_without_secrets(store: WeightStore, endpoint: Callable[[str], None]) -> None:
    endpoint("notaurl")
    with pytest.raises(WeightsError, match=r"cannot be reached .*: Request URL is missing an 'http://' or 'https://'"):
        store.resolve(model("org/name"))
    error = ConnectionError("around it")
    error.__cause__ = OSError("Illegal header value b'Bearer hf_s3cret' for https://user:s3cret@proxy")
    assert of_exception(error) == "Illegal header value b'Bearer *** for https://***@proxy"
