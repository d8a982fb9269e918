"""What a pair of models speak: the target's language and, where the draft model has another, the bridge between."""

import logging
from pathlib import Path

from server.assembly_error import AssemblyError
from server.language import Language, load_tokenizer
from server.model_folders import Folders
from server.settings import Settings
from server.text.bridge import TextBridge
from server.text.spelling import DraftSpelling
from server.text.token_bytes import UnsupportedTokenizerError
from server.vocabularies import Vocabulary, difference, log_control_tokens, same_tokenizer

log = logging.getLogger(__name__)

UNNEEDED = "models.draft.across_vocabularies is not needed: the draft model has the target's own vocabulary"


def read_languages(settings: Settings, folders: Folders) -> tuple[Language, TextBridge | None]:
    """Of the models in these folders; no bridge where the draft model, if any, drafts in the target's own tokens.

    AssemblyError if the draft model has another vocabulary and the settings do not let it draft across, if the text of
    its tokens cannot be told, or if the settings name a drafter that needs the target's vocabulary.
    """
    language = Language.read(folders.target)
    if folders.draft is None:
        return language, None
    if same_tokenizer(folders.target, folders.draft):
        _log_unneeded(settings)
        return language, None
    tokenizer, (target, draft) = load_tokenizer(folders.draft), _names(settings)
    here = Vocabulary.of(target, language.tokenizer, folders.target)
    there = Vocabulary.of(draft, tokenizer, folders.draft)
    apart = difference(here, there)
    if apart is None:
        log_control_tokens(here, there)
        _log_unneeded(settings)
        return language, None
    if not allows_crossing(settings):
        raise AssemblyError(_refusal(apart))
    _check_drafters(settings)
    log.info("%s. Its drafts cross over through text: one of the same family would be right more often", apart)
    try:
        return language, TextBridge(language, DraftSpelling.read(tokenizer, folders.draft))
    except UnsupportedTokenizerError as error:
        raise AssemblyError(f"the draft model {draft} has another vocabulary than {target}, and {error}") from error


def allows_crossing(settings: Settings) -> bool:
    return settings.models.draft is not None and settings.models.draft.across_vocabularies


def crosses(settings: Settings, target: Path | None, draft: Path | None) -> bool | None:
    """Whether the model in `draft` has another vocabulary than the target, as far as the files here tell without
    loading a tokenizer; None where they do not."""
    apart = _apart(settings, target, draft)
    return None if apart is None else bool(apart)


def crossing_refused(settings: Settings, target: Path | None, draft: Path | None) -> str | None:
    """Why the server would not start with these models' tokenizers, as far as `crosses` can tell."""
    apart = "" if allows_crossing(settings) else _apart(settings, target, draft)
    return _refusal(apart) if apart else None


def _apart(settings: Settings, target: Path | None, draft: Path | None) -> str | None:
    """How they differ; empty where they do not, None where the files do not tell."""
    if target is None or draft is None:
        return None
    if same_tokenizer(target, draft):
        return ""
    names = _names(settings)
    here, there = Vocabulary.read(names[0], target), Vocabulary.read(names[1], draft)
    return None if here is None or there is None else difference(here, there) or ""


def _refusal(apart: str) -> str:
    return (
        f"{apart}. Choose a draft model of the target's family, or set models.draft.across_vocabularies = true: its "
        "drafts then cross over through text"
    )


def _check_drafters(settings: Settings) -> None:
    speculation, (target, draft) = settings.speculation, _names(settings)
    if speculation.drafter == "multilevel" or set(speculation.allowed_drafters) == {"multilevel"}:
        key = "drafter" if speculation.drafter == "multilevel" else "allowed_drafters"
        raise AssemblyError(
            f"speculation.{key} = multilevel needs a draft model with the target's vocabulary, and {draft} has "
            f"another than {target}: use auto, model or prompt_lookup, or choose a draft model of the same family"
        )


def _log_unneeded(settings: Settings) -> None:
    if allows_crossing(settings):
        log.info(UNNEEDED)


def _names(settings: Settings) -> tuple[str, str]:
    models = settings.models
    return models.target.label, "" if models.draft is None else models.draft.label
