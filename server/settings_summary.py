"""What a configuration comes to, in a few lines, for people who check one before they serve it."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from server.settings import DraftSettings, Settings, TargetSettings
from server.weights import WeightStore
from server.weights.disk import human


def summary(settings: Settings) -> Iterator[str]:
    """Lines on models, KV memory, speculation and access. Reads the cache, fetches nothing."""
    models, speculation, server = settings.models, settings.speculation, settings.server
    yield f"target: {_model(models.target)}"
    yield f"draft: {_model(models.draft)}" if models.draft else "draft: none"
    yield _kv_memory(settings)
    drafter: str = speculation.drafter
    if drafter == "auto":
        drafter = "auto (multilevel)" if models.draft else "auto (prompt_lookup)"
    yield (
        f"speculation: {speculation.verifier} by default, of {', '.join(speculation.allowed_verifiers)}; "
        f"drafter {drafter}; {speculation.num_draft_tokens} draft tokens, at most {speculation.max_num_draft_tokens}"
    )
    keys = f"{len(server.api_keys)} API keys" if server.api_keys else "no API keys"
    yield f"server: {settings.model_name} on http://{server.host}:{server.port}/v1, {keys}"
    yield f"cache: {settings.cache_dir}"


def _model(model: TargetSettings | DraftSettings) -> str:
    return f"{model.label}, weights {model.weights}, from {', then '.join(str(source) for source in model.source)}"


def _kv_memory(settings: Settings) -> str:
    tokens, store = settings.kv_cache.tokens, WeightStore(settings.cache_dir)
    per_token = 0
    for model in (settings.models.target, settings.models.draft):
        if model is None:
            continue
        folder = store.ready(model)
        if folder is None:
            return f"KV cache: {tokens} tokens; its memory is known once {model.label} is fetched"
        per_token += kv_bytes_per_token(folder, model.weights)
    return f"KV cache: {tokens} tokens of {per_token / 1000:.1f} kB, {human(tokens * per_token)} when full"


def kv_bytes_per_token(folder: Path, weights: str) -> int:
    """Bytes that one position takes in the KV cache of the model in `folder`, read from its config.json."""
    import torch

    from core.models.kv_cache import KVCache

    config = SimpleNamespace(**json.loads((folder / "config.json").read_text("utf-8")))
    # Packed CPU weights compute, and keep KV, in float32.
    return KVCache.bytes_per_token(config, torch.bfloat16 if weights == "bfloat16" else torch.float32)
