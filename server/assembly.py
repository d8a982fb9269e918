"""From Settings to a running engine's parts: weights, models, vocabulary check, KV pool, memory, measured costs."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from core.correction_memory import CorrectionMemory, MemoryFileError
from core.drafters.base import DRAFTERS
from core.models.attention import BACKENDS
from core.models.kv_cache import BlockPool
from core.models.loader import LoadedModel, load_model
from core.models.runner import ModelRunner
from core.runtime import Runtime
from core.verifiers.params import VerifierParams
from scheduler.engine import AsyncEngine
from scheduler.limits import SchedulerLimits
from scheduler.observer import EngineObserver
from server.model_folders import Folders
from server.serving_config import Limits, Served, ServingConfig
from server.settings import DraftSettings, Settings, TargetSettings
from server.step_costs import measure_step_costs

log = logging.getLogger(__name__)

_BACKEND = "sdpa"
_BLOCK_SIZE = 16  # where the backend leaves it to us


class AssemblyError(Exception):
    """The parts do not fit together; the message says which and why."""


def serving_config(settings: Settings) -> ServingConfig:
    """What the HTTP side needs before the models are loaded."""
    speculation, server = settings.speculation, settings.server
    verifiers = speculation.verifiers
    defaults: Mapping[str, VerifierParams] = MappingProxyType(
        {name: getattr(verifiers, name) for name in type(verifiers).model_fields}
    )
    return ServingConfig(
        model=settings.model_name,
        aliases=settings.aliases,
        default_verifier=speculation.verifier,
        verifier_defaults=defaults,
        allowed_verifiers=speculation.allowed_verifiers,
        default_drafter=speculation.drafter,
        allowed_drafters=speculation.allowed_drafters,
        default_num_draft_tokens=speculation.num_draft_tokens,
        max_num_draft_tokens=speculation.max_num_draft_tokens,
        strict_prefix=speculation.strict_prefix,
        api_keys=tuple(key.get_secret_value() for key in server.api_keys),
        cors_origins=server.cors_origins,
        owned_by=server.owned_by,
        drain_seconds=server.drain_seconds,
        limits=Limits(max_body_bytes=server.max_body_bytes, body_timeout=server.body_timeout),
    )


def assemble(settings: Settings, folders: Folders, observer: EngineObserver | None = None) -> Served:
    """Load everything; takes seconds to a minute, so call it off the event loop.

    AssemblyError if the models' vocabularies differ, max_context is beyond the model's, or the correction
    memory is of other models; UnsupportedModel or InvalidModelFile if a model cannot be loaded.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    target = _load(settings.models.target, folders.target)
    _check_context(settings, target)
    tokenizer = _tokenizer(folders.target)
    draft = None
    if settings.models.draft is not None and folders.draft is not None:
        if folders.draft != folders.target:
            _check_vocabularies(target.name, tokenizer, settings.models.draft.label, _tokenizer(folders.draft))
        draft = _load(settings.models.draft, folders.draft)
    runtime = _runtime(settings, target, draft)
    measure_step_costs(runtime, settings.scheduler.max_running)
    engine = AsyncEngine(runtime, _limits(settings, target), observer)
    if draft is not None:
        _warn_of_short_draft(draft, engine.max_context)
    return Served(
        engine=engine,
        tokenizer=tokenizer,
        eos_token_ids=target.eos_token_ids,
        control_token_ids=target.control_token_ids,
        vocab_size=target.vocab_size,
        has_draft=draft is not None,
        calibrated_drafters=frozenset(name for name in DRAFTERS if runtime.memory.snapshot(name).num_pairs),
    )


def check_vocabularies(
    target: str, target_vocab: Mapping[str, int], draft: str, draft_vocab: Mapping[str, int]
) -> None:
    """AssemblyError unless both map the same tokens to the same ids: drafts are compared by id.

    The padded width of the logits may differ; only ids that stand for a token count.
    """
    if target_vocab == draft_vocab:
        return
    target_tokens, draft_tokens = ({i: token for token, i in v.items()} for v in (target_vocab, draft_vocab))
    ids = sorted(target_tokens.keys() | draft_tokens.keys())
    differing = [i for i in ids if target_tokens.get(i) != draft_tokens.get(i)]
    examples = "; ".join(
        f"id {i} is {_quoted(target_tokens.get(i))} in {target} and {_quoted(draft_tokens.get(i))} in {draft}"
        for i in differing[:3]
    )
    raise AssemblyError(
        f"the draft model {draft} has another vocabulary than the target {target}: {len(differing)} ids differ "
        f"({examples}). Choose a draft model of the same family, or set models.draft to null."
    )


def _quoted(token: str | None) -> str:
    return "no token" if token is None else repr(token)


def _check_vocabularies(target: str, target_tokenizer: Any, draft: str, draft_tokenizer: Any) -> None:
    check_vocabularies(target, target_tokenizer.get_vocab(), draft, draft_tokenizer.get_vocab())


def _load(model: TargetSettings | DraftSettings, folder: Path) -> LoadedModel:
    began = time.monotonic()
    loaded = load_model(folder, model.weights, name=model.label)
    log.info("loaded %s (%s) in %.1f s", model.label, loaded.weights, time.monotonic() - began)
    return loaded


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _check_context(settings: Settings, target: LoadedModel) -> None:
    if settings.max_context is not None and settings.max_context > target.max_context:
        raise AssemblyError(
            f"max_context = {settings.max_context} is beyond {target.name}'s own {target.max_context} tokens"
        )


def _warn_of_short_draft(draft: LoadedModel, max_context: int) -> None:
    """Only a warning: answers stay right, and most of them are short."""
    if draft.max_context < max_context:
        log.warning(
            "the draft model %s was made for %d tokens and %d are served: beyond, its drafts are hardly ever accepted "
            "and only cost time. Choose a draft with a longer context, or set max_context = %d.",
            draft.name,
            draft.max_context,
            max_context,
            draft.max_context,
        )


def _limits(settings: Settings, target: LoadedModel) -> SchedulerLimits:
    bounds = settings.scheduler
    return SchedulerLimits(
        max_running=bounds.max_running,
        max_waiting=bounds.max_waiting,
        prefill_chunk=bounds.prefill_chunk,
        round_tokens=bounds.round_tokens,
        max_context=settings.max_context or target.max_context,
    )


def _runtime(settings: Settings, target: LoadedModel, draft: LoadedModel | None) -> Runtime:
    """One pool of blocks, whose ids index the KV of both models."""
    block_size = BACKENDS[_BACKEND].block_size or _BLOCK_SIZE
    num_blocks = -(-settings.kv_cache.tokens // block_size)
    return Runtime(
        target=ModelRunner(target, num_blocks, block_size, _BACKEND),
        pool=BlockPool(num_blocks, block_size),
        draft=ModelRunner(draft, num_blocks, block_size, _BACKEND) if draft is not None else None,
        control_ids=target.control_token_ids,
        memory=_memory(settings.speculation.correction_memory, target, draft),
    )


def _memory(file: Path | None, target: LoadedModel, draft: LoadedModel | None) -> CorrectionMemory:
    draft_fingerprint = draft.fingerprint if draft is not None else None
    if file is None:
        return CorrectionMemory(target.fingerprint, draft_fingerprint)
    try:
        memory = CorrectionMemory.load(file)
        memory.check_models(target.fingerprint, draft_fingerprint)
    except MemoryFileError as error:
        raise AssemblyError(f"speculation.correction_memory: {error}") from error
    return memory
