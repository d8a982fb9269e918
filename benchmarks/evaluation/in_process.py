"""The server's own engine in this process, as somebody who answers."""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from benchmarks.answers import Answer
from benchmarks.evaluation.reply import Reply, TooLongError
from benchmarks.matrix import GREEDY, OFF, PRIME_DRAFT, PRIME_TOKENS, Setting
from benchmarks.stack import Stack
from core.correction_memory import CorrectionMemory
from core.verifiers.params import CsdParams, HybridParams
from core.verifiers.registry import VERIFIERS
from scheduler.admission import ContextTooLong
from server.errors import from_validation
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import CompletionBody
from server.settings import SpeculationSettings
from server.text.chat_template import PromptTooLongError

_numbers = itertools.count()


@dataclass
class InProcess:
    """stack: its engine runs."""

    stack: Stack
    notes: list[str] = field(default_factory=list)
    measures_time: bool = True

    @property
    def identity(self) -> dict[str, Any]:
        """Whatever makes all answers what they are: weights, template, context. Not the machine: its rounding may
        differ, as its seconds do."""
        stack, runtime = self.stack, self.stack.runtime
        models = [runtime.target.loaded] + ([] if runtime.draft is None else [runtime.draft.loaded])
        return {
            "server": stack.model.fingerprint,
            "models": [[model.fingerprint, model.weights] for model in models],
        }

    def particular(self, fields: Mapping[str, Any]) -> list[Any]:
        """The defaults of what the fields leave out, the verifier's parameters among them; the correction memory's
        content, for one that looks into it; the datastore's, where there is one, for whoever drafts with it, and for
        any that loosens, since its answers depend on where blocks end."""
        settings, store = self.stack.settings.speculation, self.stack.runtime.store
        verifier = fields.get("verifier", settings.verifier)
        kind = verifier if isinstance(verifier, str) else dict(verifier)["type"]
        defaults = settings.verifiers.model_dump(mode="json").get(kind)
        looks = issubclass(VERIFIERS[kind].params, CsdParams | HybridParams)
        found = [kind, defaults, _memory_digest(self.stack.runtime.memory) if looks else None]
        if kind != "off":
            found.append(_left_out(settings, fields))
        drafts_with_it = kind != "off" and fields.get("drafter", settings.drafter) == "datastore"
        if store is not None and (drafts_with_it or VERIFIERS[kind].may_loosen is not None):
            found.append(store.digest)
        return found

    async def check(self, setting: Setting, sampling: Mapping[str, Any]) -> None:
        stack = self.stack
        try:
            body = CompletionBody.model_validate(
                {"model": stack.config.model, "prompt": [0], "max_tokens": 1, **sampling, **setting.fields}
            )
        except ValidationError as error:
            raise from_validation(error) from error
        plan = make_plan(body, [[0]], f"check-{next(_numbers)}", stack.config, stack.model, "prompt")
        self.notes += [f"{setting.name}: {warning}" for warning in plan.warnings]

    async def ask(self, prompt: str, fields: Mapping[str, Any], max_tokens: int) -> tuple[Reply, Answer | None]:
        try:
            answer = await self.stack.answer(self._encoded(prompt), fields, max_tokens)
        except (PromptTooLongError, ContextTooLong) as error:
            raise TooLongError(str(error)) from error
        self.stack.log.rounds.clear()  # of hours they would fill the memory
        room = self.stack.model.max_context - answer.prompt_tokens
        text = str(self.stack.served.language.tokenizer.decode(answer.ids, skip_special_tokens=True))
        ended = bool(answer.ids) and answer.ids[-1] in self.stack.model.eos_token_ids
        cut = not ended and answer.tokens >= min(max_tokens, room)
        reply = Reply(text, answer.tokens, answer.prompt_tokens, cut, answer.speculated, answer.estimated_speedup)
        return reply, answer

    async def prime(self, prompts: list[str]) -> None:
        """Both models read them: whoever comes first would otherwise do it for the others."""
        primers = [OFF, PRIME_DRAFT] if self.stack.model.has_draft else [OFF]
        for primer in primers:
            asking = [self.ask(prompt, {**GREEDY, **primer.fields}, PRIME_TOKENS) for prompt in prompts]
            for failed in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(failed, BaseException) and not isinstance(failed, TooLongError):
                    raise failed

    def _encoded(self, prompt: str) -> list[int]:
        """With the model's chat template; without one, as plain text."""
        prompts = self.stack.model.prompts
        if not prompts.has_template:
            return prompts.encode_text(prompt)
        return prompts.encode_chat([{"role": "user", "content": prompt}])


def _left_out(settings: SpeculationSettings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings that decide where blocks end and what stays strict, those that a request with these fields gets
    from the configuration."""
    names = {"drafter", "num_draft_tokens", "draft_length", "strict_prefix"} - fields.keys()
    if fields.get("drafter", settings.drafter) == "auto":
        names.add("allowed_drafters")
    if fields.get("draft_length", settings.draft_length) == "adaptive":
        names |= {"costs", "loose_company"}
    return settings.model_dump(mode="json", include=names)


def _memory_digest(memory: CorrectionMemory) -> str:
    digest = hashlib.sha256()
    for proposer, table in sorted(memory.tables.items()):
        digest.update(f"{proposer} {table.calibrated_tokens} {sorted(table.recent.items())}".encode())
        digest.update(table.keys.tobytes() + table.occurrences.tobytes())
    return digest.hexdigest()[:24]
