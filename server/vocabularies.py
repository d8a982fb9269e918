"""Whether a draft model speaks the target's tokens: drafts are compared by id. Others can cross over through text."""

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.models.special_tokens import end_token_ids, read_json, special_token_ids
from server.assembly_error import AssemblyError

log = logging.getLogger(__name__)

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
_NO_TOKENS = frozenset(("chat_template", "model_max_length"))  # keys of tokenizer_config.json that make none


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """model: its name, for messages. ids: token -> id. special: ids of control tokens. structural: those of them that
    end an answer or stand in the chat template."""

    model: str
    ids: Mapping[str, int]
    special: Set[int]
    structural: Set[int] = frozenset()

    @property
    def tokens(self) -> dict[int, str]:
        return {index: token for token, index in self.ids.items()}

    @classmethod
    def read(cls, model: str, folder: Path) -> "Vocabulary | None":
        """From the tokenizer's file alone, in a tenth of the time that loading it takes; None without one."""
        spec = read_json(folder / "tokenizer.json")
        known = spec.get("model", {}).get("vocab")
        if not known:
            return None
        ids = dict(known) if isinstance(known, dict) else {piece: index for index, (piece, _) in enumerate(known)}
        ids |= {token["content"]: token["id"] for token in spec.get("added_tokens", [])}
        return cls(model, ids, special_token_ids(folder).keys())

    @classmethod
    def of(cls, model: str, tokenizer: Any, folder: Path) -> "Vocabulary":
        """AssemblyError if the tokenizer names no tokens: there would be nothing to compare."""
        ids, special = tokenizer.get_vocab(), special_token_ids(folder)
        if not ids:
            raise AssemblyError(f"the tokenizer of {model} names no tokens: no other can be compared with it")
        template = str(getattr(tokenizer, "chat_template", None) or "")
        written = {token_id for token_id, token in special.items() if token in template}
        return cls(model, ids, special.keys(), written | end_token_ids(folder, special))


def same_tokenizer(one: Path, other: Path) -> bool:
    """Whether two folders' files make the same tokenizer, chat templates aside: then there is nothing to compare, and
    the second need not be loaded. False also where only loading both would tell."""
    return (
        (one / "tokenizer.json").exists()
        and all(_content(one / name) == _content(other / name) for name in _TOKENIZER_FILES)
        and _described(one) == _described(other)
    )


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _described(folder: Path) -> tuple[Any, dict[str, Any]]:
    described = read_json(folder / "tokenizer_config.json")
    kind = read_json(folder / "config.json").get("model_type")
    return kind, {key: value for key, value in described.items() if key not in _NO_TOKENS}


def difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """What keeps drafts from being compared with the target's choices by id, in words; None where nothing does.

    The padded width of the logits may differ; only ids that stand for a token count. A control token may have
    another name, as Llama 3 and 3.2 name reserved ones differently: its text reaches nobody, and a draft of one
    is delivered only where it is the target's own choice.
    """
    _, wrong = differing_ids(target, draft)
    if not wrong:
        return None
    return (
        f"the draft model {draft.model} has another vocabulary than the target {target.model}: {len(wrong)} ids differ "
        f"({_examples(target, draft, wrong)})"
    )


def log_control_tokens(target: Vocabulary, draft: Vocabulary) -> None:
    """Which of them the two name differently. One that ends answers or structures the target's chats is warned of: the
    draft then reads prompts in a markup it does not know, and its guesses there are wasted."""
    differing, _ = differing_ids(target, draft)
    if structural := [i for i in differing if i in target.structural]:
        log.warning(
            "%s names control tokens of %s's chats differently (id %s): it has not learned their meaning, so fewer of "
            "its drafts will be accepted. Choose a draft model of the same family.",
            draft.model,
            target.model,
            ", ".join(f"{i}, {target.tokens.get(i)}" for i in structural[:3]),
        )
    elif differing:
        examples = _examples(target, draft, differing)
        log.info("%s names %d control tokens differently (%s)", draft.model, len(differing), examples)


def _examples(target: Vocabulary, draft: Vocabulary, ids: list[int]) -> str:
    here, there = target.tokens, draft.tokens
    return "; ".join(
        f"id {i} is {_quoted(here.get(i))} in {target.model} and {_quoted(there.get(i))} in {draft.model}"
        for i in ids[:3]
    )


def differing_ids(target: Vocabulary, draft: Vocabulary) -> tuple[list[int], list[int]]:
    """Ids that stand for different tokens, and those of them that are no control tokens in both: where there are none
    of these, drafts can be compared by id."""
    if target.ids == draft.ids:
        return [], []
    here, there = target.tokens, draft.tokens
    differing = [i for i in sorted(here.keys() | there.keys()) if here.get(i) != there.get(i)]
    return differing, [i for i in differing if i not in target.special or i not in draft.special]


def _quoted(token: str | None) -> str:
    return "no token" if token is None else repr(token)
