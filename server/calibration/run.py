"""Many prompts at a time through the engine, each counted in the store once it has been answered to its end."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from core.correction_memory import proposer_of
from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest
from core.verifiers.params import StrictParams
from scheduler.admission import ContextTooLong
from scheduler.events import FinishedEvent, TokensEvent
from server.calibration.errors import CalibrationError
from server.calibration.prompts import Message, Sample
from server.calibration.recorder import Recorder
from server.calibration.replay import lookup_corrections
from server.live_model import LiveModel
from server.memory_store import MemoryStore
from server.text.chat_template import PromptTooLongError, TemplateError

Report = Callable[[], None]


@dataclass(frozen=True, slots=True)
class HowToCalibrate:
    """num_draft_tokens: K, fixed. max_tokens: of an answer. concurrency: prompts at a time. max_ngram: longest suffix
    that lookup looks for. seconds: after which no more prompts are begun; None for no such end. drafter: whose
    drafts are corrected, its alone unless it is "auto"."""

    num_draft_tokens: int
    max_tokens: int
    concurrency: int
    max_ngram: int
    seconds: float | None = None
    drafter: str = "auto"


@dataclass(slots=True)
class Outcome:
    """counted: samples that were new to the store. too_long: those whose prompt leaves no room for an answer.
    left: those that time did not suffice for."""

    counted: int = 0
    too_long: int = 0
    left: int = 0

    def lines(self) -> Iterator[str]:
        yield f"prompts counted: {self.counted}"
        if self.too_long:
            yield f"prompts that leave no room for an answer here: {self.too_long}"
        if self.left:
            yield f"prompts left, as time was up: {self.left}; the same command with --merge goes on with them"


def calibrated_drafter(model: LiveModel, asked: str) -> str:
    """Whose drafts are corrected; "auto": the draft model's, as cheaply as it can make them, if there is one.
    CalibrationError for one that is not here."""
    here = model.engine.drafters
    if asked == "auto":
        return next(name for name in ("multilevel", "model", "prompt_lookup") if name in here)
    if asked not in here:
        raise CalibrationError(f"no drafter {asked!r} with this configuration; allowed: auto, {', '.join(here)}")
    return asked


class Calibration:
    """Greedy, strict, rescue off; nothing else may use the engine meanwhile."""

    def __init__(
        self, model: LiveModel, decode: Callable[[list[int]], str], recorder: Recorder, store: MemoryStore, run: int,
        how: HowToCalibrate,
    ) -> None:  # fmt: skip
        """decode: token ids to text, for the answers between a sample's turns. recorder: the engine's observer.
        run: of the store, begun."""
        self._model, self._decode, self._recorder, self._store, self._run = model, decode, recorder, store, run
        self._how = how
        self._drafter = calibrated_drafter(model, how.drafter)
        self._proposer = proposer_of(self._drafter)
        # Whoever names a drafter adds to a memory that has the others' counts already.
        self._counted = {self._proposer} | ({"prompt_lookup"} if how.drafter == "auto" else set())
        self._ids = itertools.count()

    async def over(self, samples: Iterable[Sample], report: Report) -> Outcome:
        """Answer and count them. report: called when one is done with. CalibrationError if the engine fails; whatever
        ends it, what is in the store stays whole."""
        outcome, waiting = Outcome(), list(samples)
        waiting.reverse()
        ends = None if self._how.seconds is None else time.monotonic() + self._how.seconds

        async def work() -> None:
            while waiting and (ends is None or time.monotonic() < ends):
                await self._one(waiting.pop(), outcome)
                report()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._how.concurrency, len(waiting))):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        outcome.left = len(waiting)
        return outcome

    async def _one(self, sample: Sample, outcome: Outcome) -> None:
        counts = {proposer: Counter[int]() for proposer in self._counted}
        messages, tokens = list(sample.before), 0
        for turn in sample.turns:
            messages.append({"role": "user", "content": turn})
            try:
                prompt = await asyncio.to_thread(self._encode, messages)
                answer, corrected = await self._answer(prompt)
            except (PromptTooLongError, ContextTooLong):
                if not tokens:
                    outcome.too_long += 1
                    return
                break
            if self._proposer != "prompt_lookup":
                counts[self._proposer] += corrected
            if "prompt_lookup" in counts:
                counts["prompt_lookup"] += lookup_corrections(
                    prompt, answer, self._how.num_draft_tokens, self._how.max_ngram
                )
            messages.append({"role": "assistant", "content": self._decode(answer)})
            tokens += len(answer)
        new = await asyncio.to_thread(self._store.count_sample, self._run, sample.id, counts, tokens)
        outcome.counted += new  # not in one statement: that would read the sum before others add to it

    def _encode(self, messages: list[Message]) -> list[int]:
        """With the model's chat template; without one, the messages' text."""
        prompts = self._model.prompts
        if not prompts.has_template:
            return prompts.encode_text("\n\n".join(str(message.get("content") or "") for message in messages))
        try:
            return prompts.encode_chat(messages)
        except TemplateError as error:
            raise CalibrationError(str(error)) from error

    async def _answer(self, prompt: list[int]) -> tuple[list[int], Counter[int]]:
        """The target's greedy answer, and what its drafts were corrected in."""
        request = GenerationRequest(
            request_id=f"calibrate-{next(self._ids)}",
            prompt=tuple(prompt),
            max_tokens=self._how.max_tokens,
            sampling=SamplingParams(temperature=0.0),
            verifier=StrictParams(),
            drafter=self._drafter,
            num_draft_tokens=self._how.num_draft_tokens,
            end_token_ids=self._model.eos_token_ids,
        )
        tokens: list[int] = []
        async with self._model.engine.submit(request) as stream:
            async for event in stream:
                if isinstance(event, TokensEvent):
                    tokens += [token.token_id for token in event.tokens]
                elif isinstance(event, FinishedEvent) and event.message is not None:
                    raise CalibrationError(event.message)
        return tokens, self._recorder.take(request.request_id)
