"""A model folder's weight files: tensors by name, memory-mapped, and a fingerprint of it all."""

import hashlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from core.models.errors import InvalidModelFile
from core.models.special_tokens import read_json


class Checkpoint:
    """The tensors of model.safetensors, or of the shards its index names. `take` may be called from several threads."""

    def __init__(self, folder: Path) -> None:
        """InvalidModelFile if a file is missing or damaged."""
        self._folder = folder
        self._where: dict[str, Path] = {}
        shards = set(read_json(folder / "model.safetensors.index.json").get("weight_map", {}).values())
        for path in sorted(folder / shard for shard in shards or {"model.safetensors"}):
            with _opened(path) as file:
                self._where.update(dict.fromkeys(file.keys(), path))

    def names(self) -> set[str]:
        return set(self._where)

    def take(self, name: str) -> Tensor:
        """A view of the file: convert or copy before keeping it. InvalidModelFile if it is missing.

        Every tensor has a mapping of its own, which goes with its last view: in one for all of them the pages of the
        whole checkpoint would gather in this process' memory.
        """
        if name not in self._where:
            raise InvalidModelFile(f"{self._folder} lacks the weight {name}")
        with _opened(self._where[name]) as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def _opened(path: Path) -> Any:
    """InvalidModelFile if the file is missing or damaged."""
    try:
        return safe_open(path, framework="pt")
    except (FileNotFoundError, SafetensorError) as error:
        raise InvalidModelFile(f"cannot read the weights {path}: {error}") from error


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
