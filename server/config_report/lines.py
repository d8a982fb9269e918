"""The lines of the report, in the order in which people ask."""

from collections.abc import Iterator

from server.config_report.devices import memory_here, memory_lines
from server.config_report.facts import ModelFacts, gather
from server.config_report.missing import missing
from server.datastore_settings import DatastoreError, DatastoreSettings
from server.pair_languages import UNNEEDED, allows_crossing, crosses
from server.placement import Machine
from server.settings import Settings
from server.weights.disk import human


def report(settings: Settings) -> list[str]:
    """UnsupportedModel, InvalidModelFile or ExpectationError if model files that are here cannot be what is meant."""
    machine = Machine.here(settings)
    models = gather(settings, machine)
    here = memory_here(machine, models)
    lines = [_model(one) for one in models]
    if settings.models.draft is None:
        lines.append("draft: none")
    across = None if settings.models.draft is None else crosses(settings, *(one.folder for one in models))
    allowed = allows_crossing(settings)
    if allowed and across is False:
        lines.append(UNNEEDED)
    lines += [*memory_lines(settings, models, here), *_serving(settings, allowed and across is not False)]
    lines += [f"warning: {text}" for text in settings.warnings()]
    lacking = list(missing(settings, machine, models, here))
    return (
        [*lines, "missing here:", *(f"  - {text}" for text in lacking)]
        if lacking
        else [*lines, "missing here: nothing"]
    )


def _model(one: ModelFacts) -> str:
    size = ""
    if one.memory is not None:
        size = f", {one.memory.parameters / 1e9:.2f} B parameters, {human(one.memory.weights)}"
    sources = ", then ".join(str(source) for source in one.settings.source)
    return f"{one.role}: {one.settings.label}{size}, {one.placed.weights} on {one.placed.device}, from {sources}"


def _serving(settings: Settings, across: bool) -> Iterator[str]:
    """across: whether drafts have to cross over to another vocabulary; where the files are not here yet, whether they
    may."""
    speculation, server = settings.speculation, settings.server
    drafter: str = speculation.drafter
    if drafter == "auto":
        best = ("model, across vocabularies" if across else "multilevel") if settings.models.draft else "prompt_lookup"
        drafter = f"auto ({best})"
    yield (
        f"speculation: {speculation.verifier} by default, of {', '.join(speculation.allowed_verifiers)}; "
        f"drafter {drafter}; {speculation.num_draft_tokens} draft tokens, at most {speculation.max_num_draft_tokens}"
    )
    if speculation.datastore is not None:
        yield f"datastore: {_files(speculation.datastore)}, at most {speculation.datastore.max_tokens} tokens"
    keys = f"{len(server.api_keys)} API keys" if server.api_keys else "no API keys"
    yield f"server: {settings.model_name} on http://{server.host}:{server.port}/v1, {keys}"
    yield f"cache: {settings.cache_dir}"


def _files(datastore: DatastoreSettings) -> str:
    try:
        paths = datastore.paths()
    except DatastoreError:
        return f"files {', '.join(datastore.files)}"  # what is wrong with them is among what is missing
    return f"{len(paths)} files, {human(sum(path.stat().st_size for path in paths if path.exists()))}"
