"""A model folder's weight files: tensors by name, memory-mapped, and a fingerprint of it all."""

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from core.models.errors import InvalidModelFile
from core.models.special_tokens import read_json


class Checkpoint:
    """The tensors of model.safetensors, or of the shards its index names. A context manager; `take` may be
    called from several threads."""

    def __init__(self, folder: Path) -> None:
        """InvalidModelFile if a file is missing or damaged."""
        self._folder = folder
        self._files = ExitStack()
        self._where: dict[str, Any] = {}
        shards = set(read_json(folder / "model.safetensors.index.json").get("weight_map", {}).values())
        try:
            for path in sorted(folder / shard for shard in shards or {"model.safetensors"}):
                self._add(path)
        except BaseException:
            self._files.close()
            raise

    def _add(self, path: Path) -> None:
        try:
            handle: Any = safe_open(path, framework="pt")
        except (FileNotFoundError, SafetensorError) as error:
            raise InvalidModelFile(f"cannot read the weights {path}: {error}") from error
        self._files.enter_context(handle)
        self._where.update(dict.fromkeys(handle.keys(), handle))

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def names(self) -> set[str]:
        return set(self._where)

    def take(self, name: str) -> Tensor:
        """A view of the file: convert or copy before keeping it. InvalidModelFile if it is missing."""
        if name not in self._where:
            raise InvalidModelFile(f"{self._folder} lacks the weight {name}")
        tensor: Tensor = self._where[name].get_tensor(name)
        return tensor


def fingerprint(folder: Path) -> str:
    """sha256 over config, tokenizer and weight files: of those their sizes, headers and 64 KiB at sixteen
    places. Milliseconds for any size, yet a fine-tune with the same shapes differs."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        path = folder / name
        digest.update(hashlib.sha256(path.read_bytes() if path.exists() else b"").digest())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header, size)))
            for part in range(16):
                file.seek(size * part // 16)
                digest.update(file.read(1 << 16))
    return digest.hexdigest()
