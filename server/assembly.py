"""From Settings to a running engine's parts: weights, models, vocabulary check, KV pool, memory, measured costs."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import torch

from core.correction_memory import CorrectionMemory, MemoryFileError
from core.drafters.cross_vocabulary import PIECE, CrossDrafter
from core.forward_costs import ForwardCosts, RowCurve
from core.models.attention import choose_backend, common_block_size
from core.models.graphs_cuda import CudaRecorder
from core.models.kv_cache import BlockPool, kv_shape
from core.models.loader import LoadedModel, load_model
from core.models.runner import ModelRunner
from core.models.split_pool import SplitPool
from core.runtime import Runtime
from core.verifiers.params import VerifierParams
from scheduler.engine import AsyncEngine
from scheduler.limits import SchedulerLimits
from scheduler.observer import EngineObserver
from server.assembly_error import AssemblyError
from server.cpu_quota import compute_threads
from server.datastore import read_store
from server.device_memory import device_memory
from server.expectations import ExpectationError, model_config
from server.heaviest import HeaviestRounds
from server.kv_size import kv_tokens, measured_scratch
from server.memory import model_memory, too_large
from server.memory_settings import CorrectionMemorySettings
from server.memory_store.serving import ServedMemory, serve_memory
from server.model_folders import Folders
from server.model_settings import ModelSettings
from server.pair_languages import read_languages
from server.placement import Machine, Placement, obstacles, place
from server.serving_config import Limits, Served, ServingConfig
from server.settings import CostSettings, Settings
from server.step_costs import measure_step_costs
from server.text.bridge import TextBridge
from server.vocabularies import same_tokenizer

__all__ = ["AssemblyError", "assemble", "serving_config"]

log = logging.getLogger(__name__)


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
        allowed_drafters=tuple(
            name for name in speculation.allowed_drafters if name != "datastore" or speculation.datastore is not None
        ),
        default_num_draft_tokens=speculation.num_draft_tokens,
        max_num_draft_tokens=speculation.max_num_draft_tokens,
        default_draft_length=speculation.draft_length,
        strict_prefix=speculation.strict_prefix,
        api_keys=tuple(key.get_secret_value() for key in server.api_keys),
        cors_origins=server.cors_origins,
        owned_by=server.owned_by,
        drain_seconds=server.drain_seconds,
        tool_call_parser=settings.chat.tool_call_parser,
        reasoning_parser=settings.chat.reasoning_parser,
        limits=Limits(max_body_bytes=server.max_body_bytes, body_timeout=server.body_timeout),
        audit=settings.audit,
    )


def assemble(settings: Settings, folders: Folders, observer: EngineObserver | None = None) -> Served:
    """Load everything; takes seconds to minutes, so call it off the event loop.

    AssemblyError if this machine lacks the devices or their memory, the models' vocabularies differ and drafts may not
    cross over or no way leads between them, max_context is beyond the model's, a config is not what was expected, the
    correction memory is of other models, or a file of the datastore cannot be read;
    UnsupportedModel or InvalidModelFile if a model cannot be loaded.
    """
    torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
    try:
        return _assemble(settings, folders, observer)
    except torch.OutOfMemoryError as error:
        raise AssemblyError(
            f"out of GPU memory: {'. '.join(str(error).split('. ')[:2])}. Lower scheduler.round_tokens or max_running, "
            "kv_cache.gpu_memory_utilization or kv_cache.tokens, see what else runs on the device, or choose smaller "
            "models."
        ) from error


def _assemble(settings: Settings, folders: Folders, observer: EngineObserver | None) -> Served:
    datastore = settings.speculation.datastore
    if datastore is not None:
        datastore.paths()  # whether there are such files, before minutes go into models
    placements = _placements(settings, folders)
    with ThreadPoolExecutor(1, "language") as beside:  # which is one thread's work, while weights are read and packed
        reading = beside.submit(read_languages, settings, folders)
        if folders.draft is not None and not same_tokenizer(folders.target, folders.draft):
            reading.result()  # may refuse the pair, which must not take as long as reading weights
        target = _load(settings.models.target, placements[0], folders.target)
        _check_context(settings, target)
        language, bridge = reading.result()
    draft = None
    if settings.models.draft is not None and folders.draft is not None:
        draft = _load(settings.models.draft, placements[1], folders.draft)
    remembered = _memory(settings.speculation.correction_memory, target, draft)
    runtime = _runtime(settings, target, draft, remembered.memory, bridge)
    runtime.store = None if datastore is None else read_store(datastore, language.tokenizer, language.vocab_size)
    speculation = settings.speculation
    measure_step_costs(runtime, _limits(settings, target), _pinned(speculation.costs), speculation.loose_company)
    engine = AsyncEngine(runtime, _limits(settings, target), observer)
    if draft is not None:
        _warn_of_short_draft(draft, engine.max_context)
    return Served(
        engine=engine,
        language=language,
        has_draft=draft is not None,
        calibrated_drafters=remembered.memory.drafters,
        memory=remembered.memory,
        exchange=remembered.exchange,
    )


def _placements(settings: Settings, folders: Folders) -> list[Placement]:
    """Of target and draft. AssemblyError for what this machine cannot hold, before minutes go into reading it."""
    machine = Machine.here(settings)
    if wrong := list(obstacles(settings, machine)):
        raise AssemblyError("; ".join(wrong))
    placements, memories = [], []
    for (key, model), folder in zip(settings.models.items(), (folders.target, folders.draft), strict=False):
        placed = place(model, machine)
        placements.append(placed)
        try:
            config = model_config(key, model, folder)
        except ExpectationError as error:
            raise AssemblyError(str(error)) from error
        if placed.cuda_index is not None:
            memories.append(model_memory(config, placed))
    if wrong := list(too_large(memories, {one.device: device_memory(one.device) for one in memories})):
        raise AssemblyError("; ".join(wrong))
    return placements


def _load(model: ModelSettings, placed: Placement, folder: Path) -> LoadedModel:
    began = time.monotonic()
    loaded = load_model(folder, placed.weights, placed.device, model.label, placed.tp_plan)
    where = f"{loaded.weights} on {placed.device}"
    log.info("loaded %s (%s) in %.1f s", model.label, where, time.monotonic() - began)
    return loaded


def _check_context(settings: Settings, target: LoadedModel) -> None:
    if settings.max_context is not None and settings.max_context > target.max_context:
        raise AssemblyError(
            f"max_context = {settings.max_context} is beyond {target.name}'s own {target.max_context} tokens"
        )


def _warn_of_short_draft(draft: LoadedModel, max_context: int) -> None:
    """Only a warning: answers stay right, and most of them are short."""
    if draft.max_context < max_context:
        log.warning(
            "the draft model %s was made for %d tokens and %d are served: longer texts go on without its drafts. A "
            "draft with a longer context would speed them up too.",
            draft.name,
            draft.max_context,
            max_context,
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


def _runtime(
    settings: Settings,
    target: LoadedModel,
    draft: LoadedModel | None,
    memory: CorrectionMemory,
    bridge: TextBridge | None,
) -> Runtime:
    """One pool of blocks, whose ids index the KV of both models; with a bridge between them, each has its own."""
    models = [target] if draft is None else [target, draft]
    try:
        backends = [
            choose_backend(loaded.device, loaded.dtype, model.attention, kv_shape(loaded.config)[1])
            for loaded, (_, model) in zip(models, settings.models.items(), strict=True)
        ]
    except ValueError as error:
        raise AssemblyError(str(error)) from error
    block_size = common_block_size(backends)
    rounds = HeaviestRounds.of(settings, settings.max_context or target.max_context)
    graphs = [
        loaded.device.type == "cuda" and model.cuda_graphs == "auto"
        for loaded, (_, model) in zip(models, settings.models.items(), strict=True)
    ]
    tokens = kv_tokens(
        settings, models, block_size, lambda: measured_scratch(models, backends, block_size, rounds, graphs)
    )
    num_blocks = -(-tokens // block_size)
    runners = [
        ModelRunner(loaded, num_blocks, block_size, name, CudaRecorder(loaded.device) if recorded else None)
        for loaded, name, recorded in zip(models, backends, graphs, strict=True)
    ]
    pool, across = BlockPool(num_blocks, block_size), None
    if bridge is not None:
        pool = split = SplitPool(num_blocks, block_size)
        piece = min(PIECE, settings.scheduler.prefill_chunk)
        across = CrossDrafter(runners[1], split.tables, bridge, target.vocab_size, piece)
    return Runtime(
        target=runners[0],
        pool=pool,
        draft=runners[1] if draft is not None else None,
        across=across,
        control_ids=target.control_token_ids,
        memory=memory,
    )


def _pinned(costs: CostSettings | None) -> ForwardCosts | None:
    if costs is None:
        return None
    return ForwardCosts(RowCurve(costs.target), RowCurve(costs.draft) if costs.draft else None)


def _memory(settings: CorrectionMemorySettings | None, target: LoadedModel, draft: LoadedModel | None) -> ServedMemory:
    try:
        return serve_memory(settings, target.fingerprint, draft.fingerprint if draft is not None else None)
    except MemoryFileError as error:
        raise AssemblyError(f"speculation.correction_memory: {error}") from error
