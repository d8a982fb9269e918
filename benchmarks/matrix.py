"""What is compared: settings (a verifier, a drafter, a draft length) as the fields a request would carry."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.errors import BenchError

GREEDY: dict[str, Any] = {"temperature": 0}


class MatrixError(BenchError):
    """An option of the matrix that means nothing; the message says what would."""


@dataclass(frozen=True, slots=True)
class Setting:
    """name: how tables call it. fields: what its requests say beside prompt, length and sampling."""

    name: str
    fields: dict[str, Any] = field(hash=False)

    @property
    def verifier(self) -> str:
        chosen = self.fields["verifier"]
        return str(chosen["type"] if isinstance(chosen, dict) else chosen)

    @property
    def drafting(self) -> dict[str, Any]:
        """Its fields beside the verifier."""
        return {key: value for key, value in self.fields.items() if key != "verifier"}


OFF = Setting("off", {"verifier": "off"})
# What makes everybody find a prompt in the prefix cache: the target's part of it, and the draft model's, which an
# adaptive length might leave out.
PRIME_TOKENS = 4
PRIME_DRAFT = Setting(
    "prime", {"verifier": "strict", "drafter": "model", "draft_length": "fixed", "ignore_eos": True}
)  # fmt: skip


def one_setting(verifier: str) -> Setting:
    """A verifier with the server's own drafting, `off` included."""
    found = settings_matrix([verifier], ["auto"], ["default"])
    return found[0] if found else OFF


def strict_beside(setting: Setting, settings: Sequence[Setting]) -> Setting | None:
    """The `strict` setting that a loose one is compared with: the one that drafts alike, otherwise the first; None for
    `off` and `strict` themselves, and without any."""
    strict = [one for one in settings if one.verifier == "strict"]
    if setting.verifier in ("off", "strict") or not strict:
        return None
    return next((one for one in strict if one.drafting == setting.drafting), strict[0])


def settings_matrix(verifiers: Sequence[str], drafters: Sequence[str], lengths: Sequence[str]) -> list[Setting]:
    """Every combination. `off` is left out: it is what all the others are compared with, and has neither.

    verifiers: names or JSON objects. drafters: names, "auto" included. lengths: "default" (the server's own),
    "adaptive", "adaptive:K" with a cap, or a fixed K.
    """
    found = {}
    for verifier, drafter, length in itertools.product(verifiers, drafters, lengths):
        chosen = _verifier(verifier)
        if chosen == "off":
            continue
        parts = [_shown(chosen), *([] if drafter == "auto" else [drafter]), *_length_name(length)]
        setting = Setting(" ".join(parts), {"verifier": chosen, "drafter": drafter, **_length(length)})
        found[setting.name] = setting
    return list(found.values())


def _verifier(text: str) -> Any:
    if not text.startswith("{"):
        return text
    try:
        chosen = json.loads(text)
        chosen["type"]
    except (ValueError, KeyError) as error:
        raise MatrixError(f'verifier {text}: should be a name or an object such as {{"type": "fly"}}') from error
    return chosen


def _shown(verifier: Any) -> str:
    if isinstance(verifier, str):
        return verifier
    rest = ",".join(f"{key}={value}" for key, value in verifier.items() if key != "type")
    return f"{verifier['type']}({rest})" if rest else str(verifier["type"])


def _length(text: str) -> dict[str, Any]:
    kind, _, cap = text.partition(":")
    number = kind if kind.isdecimal() else cap
    if kind == "default" and not cap:
        return {}
    if (kind == "adaptive" or kind.isdecimal()) and (not number or (number.isdecimal() and int(number) > 0)):
        drafts = {"num_draft_tokens": int(number)} if number else {}
        return {"draft_length": "adaptive" if kind == "adaptive" else "fixed", **drafts}
    raise MatrixError(f"draft length {text!r}: should be default, adaptive, adaptive:K or a number")


def _length_name(text: str) -> list[str]:
    return [] if text == "default" else [f"K={text}" if text.isdecimal() else text.replace(":", " K<=")]
