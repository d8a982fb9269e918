"""Files from Hugging Face, through its own client, which resumes and knows HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.

The client asks five times before it gives up (23 s where nothing answers); a short question of our own comes
first, so that an unreachable hub costs a few seconds and the next source is tried.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from server.weights import causes
from server.weights.disk import require_space
from server.weights.errors import SourceUnavailableError
from server.weights.sources import HuggingFaceSource

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
# The same weights once more, in their makers' own format.
_UNWANTED = ["consolidated*", "original/*"]


def fetch_file(source: HuggingFaceSource, folder: Path, title: str) -> Path:
    """Download source.file into `folder`, going on where an earlier try stopped."""
    from huggingface_hub import hf_hub_download

    assert source.file is not None
    with _explained(source):
        size = _probe(source, source.file)
        if size is not None:
            require_space(folder, size)
        log.info("%s: fetching from %s", title, source)
        return Path(hf_hub_download(source.huggingface, source.file, revision=source.revision, local_dir=folder))


def fetch_snapshot(source: HuggingFaceSource) -> Path:
    """Configuration, tokenizer and safetensors in Hugging Face's own cache, which other programs share."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE

    name, revision = source.huggingface, source.revision
    files: dict[str, Any] = {"allow_patterns": _WANTED, "ignore_patterns": _UNWANTED}
    with _explained(source):
        try:
            _probe(source, "config.json")
        except Exception as error:
            if not _unreachable(error):
                raise
            log.debug("%s cannot be reached", source, exc_info=True)
            # Nothing answers, but it may have been downloaded before.
            return Path(snapshot_download(name, revision=revision, **files, local_files_only=True))
        listed = snapshot_download(name, revision=revision, **files, dry_run=True)
        if not any(file.filename.endswith(".safetensors") for file in listed):
            raise SourceUnavailableError(f"{source} has no safetensors: convert its weights and name that folder")
        missing = sum(file.file_size or 0 for file in listed if file.will_download)
        require_space(Path(HF_HUB_CACHE), missing)
        return Path(snapshot_download(name, revision=revision, **files))


def cached_snapshot(source: HuggingFaceSource) -> Path | None:
    """The snapshot's folder, if all of it was downloaded before; the hub is not asked."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    config = try_to_load_from_cache(source.huggingface, "config.json", HF_HUB_CACHE, source.revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    index = folder / "model.safetensors.index.json"
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values()) if index.exists() else set()
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    files = [folder / name for name in shards or {"model.safetensors"}]
    return folder if all(file.exists() for file in files) else None


def offline() -> bool:
    """Whether HF_HUB_OFFLINE is set, which the user means for every download."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return HF_HUB_OFFLINE


def has_token() -> bool:
    """Whether the client will find a token: in HF_TOKEN, or where `hf auth login` keeps it."""
    from huggingface_hub.constants import HF_TOKEN_PATH

    return bool(os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")) or Path(HF_TOKEN_PATH).exists()


def _probe(source: HuggingFaceSource, file: str) -> int | None:
    """Size in bytes of a file on the hub, asked once with a short timeout."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(source.huggingface, file, revision=source.revision)
    return get_hf_file_metadata(url, timeout=CONNECT_SECONDS).size


def _unreachable(error: Exception) -> bool:
    """Whether nothing answered. The client's HTTP library differs between its releases, the class's name does not."""
    from huggingface_hub import errors

    known = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError, TimeoutError)
    return isinstance(error, known) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


@contextmanager
def _explained(source: HuggingFaceSource) -> Iterator[None]:
    from huggingface_hub import errors
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    if not offline():
        causes.require_certificates(str(source))
    try:
        yield
    except errors.GatedRepoError as error:
        reason = "access must be asked for on its page; then set HF_TOKEN"
        raise SourceUnavailableError(f"{source} is gated: {reason}") from error
    except errors.RepositoryNotFoundError as error:
        raise SourceUnavailableError(
            f"{source}: no such repository, or a private one: set HF_TOKEN for that"
        ) from error
    except (errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        revision = source.revision or "main"
        raise SourceUnavailableError(f"{source}: the repository has no such file at revision {revision}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = ": try again later" if status == 429 or status >= 500 else ": is HF_ENDPOINT right?"
        raise SourceUnavailableError(f"{source} answered with HTTP status {status}{advice}") from error
    except Exception as error:
        if not _unreachable(error):
            raise
        if offline():
            reason = "HF_HUB_OFFLINE is set and it is not in the cache; run `slipstream fetch` first, without that"
            raise SourceUnavailableError(f"{source}: {reason}") from error
        log.debug("%s cannot be reached", source, exc_info=True)
        raise causes.unreachable(str(source), causes.of_exception(error), "SSL_CERT_FILE") from error
