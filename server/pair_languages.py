"""What a pair of models speak: the target's language and, where the draft model has another, the bridge between."""

from pathlib import Path
from typing import Any

from server.assembly_error import AssemblyError
from server.language import Language, load_tokenizer
from server.model_folders import Folders
from server.settings import Settings
from server.text.bridge import TextBridge
from server.text.spelling import DraftSpelling
from server.text.token_bytes import UnsupportedTokenizerError
from server.vocabularies import Vocabulary, differing_ids, same_tokenizer, share_vocabulary


def read_languages(settings: Settings, folders: Folders) -> tuple[Language, TextBridge | None]:
    """Of the models in these folders; no bridge where the draft model, if any, drafts in the target's own tokens.

    AssemblyError if the text of the draft model's tokens cannot be told, or the settings name a drafter that needs
    the target's vocabulary.
    """
    language = Language.read(folders.target)
    if folders.draft is None or same_tokenizer(folders.target, folders.draft):
        return language, None
    tokenizer = load_tokenizer(folders.draft)
    if _shared(settings, language.tokenizer, folders.target, tokenizer, folders.draft):
        return language, None
    target, draft = _names(settings)
    speculation = settings.speculation
    if speculation.drafter == "multilevel" or set(speculation.allowed_drafters) == {"multilevel"}:
        key = "drafter" if speculation.drafter == "multilevel" else "allowed_drafters"
        raise AssemblyError(
            f"speculation.{key} = multilevel needs a draft model with the target's vocabulary, and {draft} has "
            f"another than {target}: use auto, model or prompt_lookup, or choose a draft model of the same family"
        )
    try:
        return language, TextBridge(language, DraftSpelling.read(tokenizer, folders.draft))
    except UnsupportedTokenizerError as error:
        raise AssemblyError(f"the draft model {draft} has another vocabulary than {target}, and {error}") from error


def drafts_across(settings: Settings, target: Path | None, draft: Path | None) -> bool:
    """Whether drafts of the model in that folder have to cross over to another vocabulary, as far as the files here
    tell without loading a tokenizer."""
    if target is None or draft is None or same_tokenizer(target, draft):
        return False
    here, there = _names(settings)
    vocabularies = Vocabulary.read(here, target), Vocabulary.read(there, draft)
    if vocabularies[0] is None or vocabularies[1] is None:
        return False
    return bool(differing_ids(vocabularies[0], vocabularies[1])[1])


def _shared(settings: Settings, target: Any, target_folder: Path, draft: Any, draft_folder: Path) -> bool:
    here, there = _names(settings)
    return share_vocabulary(Vocabulary.of(here, target, target_folder), Vocabulary.of(there, draft, draft_folder))


def _names(settings: Settings) -> tuple[str, str]:
    models = settings.models
    return models.target.label, "" if models.draft is None else models.draft.label
