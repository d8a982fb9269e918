"""Replay: one loosened answer against the target's own words, in three kinds of pieces.

    answer     y0 y1 y2* y3 y4 y5* y6 ...         * loosened
    scores     log p(y0) log p(y1) ...            how likely the target finds what was delivered
    own        y0 y1 c2 c3 c4 ...                 from the first loosened position on to the end: its own answer
    detours    y0 .. y4 c5 c6 ...                 from each other one, until it is back or has gone too far

What stands before the first loosened token is the target's own choice already, so the own answer begins there.
"""

import itertools
from dataclasses import dataclass, replace
from functools import partial

from core.sequence import GenerationRequest, StopCondition
from core.verifiers.params import OffParams
from server.audit.ending import ending_size
from server.audit.reconverge import RUN, reconverges
from server.audit.record import AnswerRecord
from server.audit.spare_time import SpareTime, Words

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one answer. loosened: its loosened tokens. judged: those of them that were replayed; reconverged: whether the
    target came back, for each. delivered_logprob, own_logprob: the target's mean log-probability of a token, in nats,
    of the delivered answer and of its own."""

    loosened: int
    reconverged: tuple[bool, ...]
    delivered_logprob: float
    own_logprob: float

    @property
    def gap(self) -> float:
        """Nats a token by which the target prefers its own answer; greedy choices are not always the likelier text, so
        it may be below 0."""
        return self.own_logprob - self.delivered_logprob


async def replay(
    record: AnswerRecord, positions: list[int], within: int, max_context: int, spare_time: SpareTime
) -> Findings:
    """positions: the loosened ones to be judged. max_context: positions a sequence may take. Errors as of SpareTime."""
    return await _Replay(record, within, max_context, spare_time).run(positions)


class _Replay:
    def __init__(self, record: AnswerRecord, within: int, max_context: int, spare_time: SpareTime) -> None:
        self._record = record
        self._within = within
        self._max_context = max_context
        self._spare_time = spare_time
        ends = record.request.end_token_ids
        self._ending = ending_size(record.tokens, ends, record.new_stop) if record.stopped else 0

    async def run(self, positions: list[int]) -> Findings:
        record, first = self._record, self._record.loosened[0]
        scores = await self._spare_time.scores(self._scoring())
        own = await self._own(first)
        verdicts = [
            self._is_back(position, own if position == first else await self._detour(position))
            for position in positions
        ]
        own_scores = scores[:first] + [word.logprobs.logprob for word in own.tokens if word.logprobs is not None]
        return Findings(
            loosened=len(record.loosened),
            reconverged=tuple(verdicts),
            delivered_logprob=sum(scores) / len(scores),
            own_logprob=sum(own_scores) / len(own_scores),
        )

    def _scoring(self) -> GenerationRequest:
        """The delivered answer as a prompt. One that fills the whole context goes without its last token."""
        prompt = self._record.known(len(self._record.tokens))[: self._max_context - 1]
        start = len(self._record.prompt) - 1
        return replace(self._asking(0), prompt=prompt, max_tokens=0, prompt_logprobs=0, scored_from=start)

    async def _own(self, first: int) -> Words:
        """The target's own answer from the first loosened position on; of the length that was asked for, but no more
        than twice the delivered one, since one that never ends would have the engine for hours."""
        record = self._record
        delivered = len(record.tokens)
        longest = max(2 * delivered, first + self._within + RUN)
        asking = self._asking(first, min(record.request.max_tokens, longest) - first)
        return await self._spare_time.words(asking, partial(self._stop, first), lambda words: False)

    async def _detour(self, position: int) -> Words:
        """Its words from a position on, as far as they are needed: to the last token of a run that begins as late as it
        may, and of what ends the answer behind it."""
        rest, within = self._words_from(position), self._within
        asking = self._asking(position, within + RUN - 1 + max(1, self._ending))
        return await self._spare_time.words(
            asking, partial(self._stop, position), lambda words: reconverges(rest, words, within, False)
        )

    def _stop(self, position: int, words: list[int]) -> StopCondition | None:
        """The answer's stop condition behind its first `position` tokens and these words."""
        condition = self._record.new_stop()
        if condition is not None:
            for token in (*self._record.tokens[:position], *words):
                condition.push(token)
        return condition

    def _is_back(self, position: int, words: Words) -> bool:
        record, own = self._record, words.ids
        if words.ended:
            behind = [*record.tokens[:position], *own]
            own = own[: len(own) - ending_size(behind, record.request.end_token_ids, record.new_stop)]
        return reconverges(self._words_from(position), own, self._within, record.stopped and words.ended)

    def _words_from(self, position: int) -> list[int]:
        """The delivered text from there on, without what ends it."""
        tokens = self._record.tokens
        return list(tokens[position : len(tokens) - self._ending])

    def _asking(self, position: int, max_tokens: int = 0) -> GenerationRequest:
        """A background request for what `off` answers behind the first `position` tokens of the answer."""
        request = self._record.request
        least = max(0, min(request.sampling.min_tokens - position, max_tokens))
        return GenerationRequest(
            request_id=f"audit-{next(_numbers)}",
            prompt=self._record.known(position),
            max_tokens=max_tokens,
            sampling=replace(request.sampling, min_tokens=least, logprobs=0),
            verifier=OffParams(),
            end_token_ids=request.end_token_ids,
            background=True,
        )
