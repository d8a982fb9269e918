"""Replay: one loosened answer against the target's own words, in three kinds of pieces.

    answer     y0 y1 y2* y3 y4 y5* y6 ...         * loosened
    scores     log p(y0) log p(y1) ...            how likely the target finds what was delivered
    own        y0 y1 c2 c3 c4 ...                 from the first loosened position on to the end: its own answer
    detours    y0 .. y4 c5 c6 ...                 from each other one, until it is back or has gone too far

What stands before the first loosened token is the target's own choice already, so the own answer begins there.
"""

import itertools
from dataclasses import dataclass, replace

from core.sequence import CommittedToken, GenerationRequest, StopCondition
from core.verifiers.params import OffParams
from server.audit.reconverge import RUN, reconverges
from server.audit.record import AnswerRecord
from server.audit.spare_time import SpareTime

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

    async def run(self, positions: list[int]) -> Findings:
        record, first = self._record, self._record.loosened[0]
        scores = await self._spare_time.scores(self._scoring())
        own = await self._own(first)
        verdicts = [
            self._is_back(position, own if position == first else await self._detour(position))
            for position in positions
        ]
        own_scores = scores[:first] + [word.logprobs.logprob for word in own if word.logprobs is not None]
        return Findings(
            loosened=len(record.loosened),
            reconverged=tuple(verdicts),
            delivered_logprob=sum(scores) / len(scores),
            own_logprob=sum(own_scores) / len(own_scores),
        )

    def _scoring(self) -> GenerationRequest:
        """The delivered answer as a prompt. One that fills the whole context goes without its last token."""
        prompt = self._record.known(len(self._record.tokens))[: self._max_context - 1]
        start = len(self._record.request.prompt) - 1
        return replace(self._asking(0), prompt=prompt, max_tokens=0, prompt_logprobs=0, scored_from=start)

    async def _own(self, first: int) -> list[CommittedToken]:
        """The target's own answer from the first loosened position on; of the length that was asked for, but no more
        than twice the delivered one, since one that never ends would have the engine for hours."""
        record = self._record
        delivered = len(record.tokens)
        longest = max(2 * delivered, first + self._within + RUN)
        asking = self._asking(first, min(record.request.max_tokens, longest) - first)

        def stop(words: list[CommittedToken]) -> StopCondition | None:
            condition = record.new_stop()
            if condition is not None:
                for token in (*record.tokens[:first], *(word.token_id for word in words)):
                    condition.push(token)
            return condition

        return await self._spare_time.words(asking, stop, lambda words: False)

    async def _detour(self, position: int) -> list[CommittedToken]:
        """Its words from a position on, as far as they are needed. It has no stop strings: where the answer ended with
        one, to come back to that end is to end there."""
        asking = self._asking(position, self._within + RUN)
        return await self._spare_time.words(asking, lambda words: None, lambda words: self._is_back(position, words))

    def _is_back(self, position: int, words: list[CommittedToken]) -> bool:
        record, span = self._record, self._within + RUN
        rest = record.tokens[position : position + span]
        ended = record.stopped and position + span >= len(record.tokens)
        return reconverges(rest, [word.token_id for word in words[:span]], self._within, ended)

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
