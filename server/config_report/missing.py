"""What this machine lacks for a configuration. A configuration meant for another machine is no worse for that."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from server.config_report.devices import configured_tokens, least_bytes
from server.config_report.facts import ModelFacts
from server.datastore_settings import DatastoreError
from server.device_memory import DeviceMemory
from server.memory import by_device
from server.memory_settings import is_url
from server.pair_languages import crossing_refused
from server.placement import Machine, obstacles
from server.settings import Settings
from server.weights import HuggingFaceSource, LocalSource
from server.weights.disk import free_bytes, human
from server.weights.huggingface import has_token

_BYTES_PER_WEIGHT = 2  # of the files: published and converted weights are half precision


def missing(
    settings: Settings, machine: Machine, models: list[ModelFacts], here: Mapping[str, DeviceMemory]
) -> Iterator[str]:
    """One line each, the gravest first."""
    yield from obstacles(settings, machine)
    yield from _memory(settings, models, here)
    yield from _weights(models)
    yield from _vocabularies(settings, models)
    yield from _disk(settings, models)
    yield from _correction_memory(settings)
    yield from _datastore(settings)
    if not machine.has_flash_attn and any(
        m.placed.cuda_index is not None and m.placed.attention == "auto" for m in models
    ):
        yield "flash-attn is not installed (pip install 'slipstream[gpu]'): attention by torch's own kernels instead"


def _correction_memory(settings: Settings) -> Iterator[str]:
    """A database is not asked: it need not be reachable from here yet."""
    memory = settings.speculation.correction_memory
    if memory is not None and not is_url(memory.source) and not (file := Path(memory.source)).is_file():
        yield f"speculation.correction_memory: no file {file.absolute()}"


def _datastore(settings: Settings) -> Iterator[str]:
    try:
        if settings.speculation.datastore is not None:
            settings.speculation.datastore.paths()
    except DatastoreError as error:
        yield str(error)


def _memory(settings: Settings, models: list[ModelFacts], here: Mapping[str, DeviceMemory]) -> Iterator[str]:
    known = [one.memory for one in models if one.memory is not None]
    tokens = configured_tokens(settings, known)
    for need in by_device(known).values():
        wanted = least_bytes(settings, need) if tokens is None else need.fixed + tokens * need.kv_per_token
        memory = here.get(need.device)
        has = 0 if memory is None else memory.total
        if memory is not None and wanted > has:
            yield f"memory: {need.device} has {human(has)} of the {human(wanted)} needed"
        elif memory is not None and need.device != "cpu" and wanted > memory.free:
            yield f"memory: {human(memory.free)} of {need.device} are free of the {human(wanted)} needed"
        if wanted > has and any(one.placed.device == need.device and one.placed.tp_plan for one in models):
            yield (
                f"tp_plan: serving a model over several GPUs is for a later release, so {need.device} alone must have "
                f"the {human(wanted)}"
            )


def _weights(models: list[ModelFacts]) -> Iterator[str]:
    for one in _distinct(models):
        if one.folder is not None:
            continue
        fetchable = [source for source in one.settings.source if not isinstance(source, LocalSource)]
        for source in one.settings.source:
            if isinstance(source, LocalSource) and not source.path.exists():
                yield f"{one.key}.source: nothing at {source.path.absolute()}"
        if fetchable:
            size = _download(one)
            much = f", {human(size)}" if size else ""
            yield f"weights of {one.settings.label}: to be fetched from {fetchable[0]}{much}"
        gated = [s for s in fetchable if isinstance(s, HuggingFaceSource) and s.gated]
        if gated and len(gated) == len(fetchable) and not has_token():
            yield f"HF_TOKEN: {gated[0]} is gated: ask for access on its page, then set it"


def _vocabularies(settings: Settings, models: list[ModelFacts]) -> Iterator[str]:
    if settings.models.draft is not None and (refused := crossing_refused(settings, *(one.folder for one in models))):
        yield refused


def _disk(settings: Settings, models: list[ModelFacts]) -> Iterator[str]:
    """Space for what must be fetched, per file system: the downloads and what is made of them."""
    wanted: dict[Path, int] = defaultdict(int)
    for one in _distinct(models):
        source = one.settings.source[0]
        size = _download(one)
        if one.folder is not None or isinstance(source, LocalSource) or size is None:
            continue
        if source.is_gguf:
            wanted[settings.cache_dir] += size + (_converted(one) or 0)
        else:
            from huggingface_hub.constants import HF_HUB_CACHE

            wanted[Path(HF_HUB_CACHE)] += size
    for folder, size in wanted.items():
        free = free_bytes(folder)
        if free < size:
            variable = "SLIPSTREAM_CACHE_DIR" if folder == settings.cache_dir else "HF_HOME"
            where = f"{folder} (chosen by {variable})"
            yield f"disk: {human(free)} free in {where} of the {human(size)} that fetching takes"


def _distinct(models: list[ModelFacts]) -> list[ModelFacts]:
    """Without a draft that has the target's own files."""
    return list({one.settings.source: one for one in reversed(models)}.values())[::-1]


def _download(one: ModelFacts) -> int | None:
    return one.settings.size or _converted(one)


def _converted(one: ModelFacts) -> int | None:
    return None if one.memory is None else one.memory.parameters * _BYTES_PER_WEIGHT
