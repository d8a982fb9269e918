"""The drafts of a round that are not for the rule to decide: loose blocks, and those of a fixed length.

They come into the round whatever it costs, unless it is bounded for the sake of an `off` request in it (Base): then
fixed strict blocks are cut to what there is time for, and loose ones, which nobody may cut, are held back for some
rounds, but for fewer than the tokens that they are expected to deliver, so that no loose answer is slower than its
neighbours.
"""

import itertools
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from core.drafters.base import MODEL_DRAFTERS
from core.forward_costs import ForwardCosts
from scheduler.draft_option import Base, base_seconds
from scheduler.drafting import NOTHING
from scheduler.job import Job


class Given(NamedTuple):
    """A job's block. turns: draft forwards for it, of turn_rows each. tokens: that it is expected to deliver."""

    job: Job
    drafts: int
    turns: int
    tokens: float
    turn_rows: float = 1.0


def with_given(plain: Base, decoding: Sequence[Job], costs: ForwardCosts) -> Base:
    """The round with all these blocks; sets `hold`, and `most` of fixed lengths."""
    blocks = []
    for job in sorted(decoding, key=attrgetter("last_turn", "rank")) if plain.bounded else decoding:
        job.drafting.hold = False
        if job.drafting.wish is not NOTHING and (block := _given(job)) is not None:
            blocks.append(block)
    whole = with_all(plain, blocks)
    if not plain.bounded or base_seconds(costs, whole) <= plain.most_seconds:
        return whole
    return _Filling(plain, costs, len(blocks)).fill(blocks)


def _given(job: Job) -> Given | None:
    wish, request = job.drafting.wish, job.sequence.request
    drafter, drafts, tokens, match = request.drafter, request.num_draft_tokens, 1.0, 0  # of fixed length
    if wish is not None:
        drafter, drafts, tokens, match = wish.drafter, wish.num_drafts, wish.tokens, wish.match
    if not drafts:
        return None
    turns = drafts if drafter in MODEL_DRAFTERS else 0
    if drafter == "multilevel":
        turns = max(1, round(turns / job.drafting.acceptance.per_turn(match)))
    return Given(job, drafts, turns, tokens)


def with_all(base: Base, blocks: Sequence[Given]) -> Base:
    """The round with these blocks too."""
    tokens, rows = base.tokens, base.rows
    steps = [0.0] * max((block.turns for block in blocks), default=0)
    for _, drafts, turns, delivered, turn_rows in blocks:
        tokens, rows = tokens + delivered - 1, rows + drafts
        if turns:
            steps[turns - 1] += turn_rows
    for step in range(len(steps) - 1, 0, -1):  # whoever drafts in a step does in those before it
        steps[step - 1] += steps[step]
    together = itertools.zip_longest(base.draft_rows, steps, fillvalue=0.0)
    return base._replace(tokens=tokens, rows=rows, draft_rows=tuple(known + more for known, more in together))


class _Filling:
    """A bounded round in which not all fit: one block after the other, as long as there is time."""

    def __init__(self, plain: Base, costs: ForwardCosts, most: int) -> None:
        """most: blocks that may share a draft forward."""
        self._base, self._costs = plain, costs
        self._steps: list[int] = []  # blocks in each draft forward
        self._drafting = 0.0  # seconds of those
        self._forward = [costs.draft.at(rows) if costs.draft else 0.0 for rows in range(most + 1)]

    def fill(self, blocks: Sequence[Given]) -> Base:
        for block in blocks:
            drafting = block.job.drafting
            if self._fits(block.drafts, block.turns):
                self._add(block)
            elif drafting.wish is None and not block.job.loose:  # a shorter block is no other answer
                drafts = next((n for n in range(block.drafts - 1, 0, -1) if self._fits(n, min(block.turns, n))), 0)
                drafting.most = drafts
                self._add(block._replace(drafts=drafts, turns=min(block.turns, drafts)))
            elif drafting.wish is not None and drafting.held + 2 <= block.tokens:
                drafting.hold = True
                drafting.held += 1
                base = self._base
                self._base = base._replace(tokens=base.tokens - 1, rows=base.rows - 1, sequences=base.sequences - 1)
            else:
                self._add(block)
        return self._base._replace(draft_rows=tuple(map(float, self._steps)))

    def _fits(self, drafts: int, turns: int) -> bool:
        base = self._base
        seconds = self._costs.verify(base.rows + drafts, base.sequences, base.positions)
        return seconds + self._drafting + self._more(turns) <= base.most_seconds

    def _more(self, turns: int) -> float:
        """Seconds of the draft model for one sequence more in so many forwards."""
        forward, steps = self._forward, self._steps
        known = sum(forward[rows + 1] - forward[rows] for rows in steps[:turns])
        return known + forward[1] * max(0, turns - len(steps))

    def _add(self, block: Given) -> None:
        self._drafting += self._more(block.turns)
        self._steps += [0] * (block.turns - len(self._steps))
        for step in range(block.turns):
            self._steps[step] += 1
        base = self._base
        self._base = base._replace(tokens=base.tokens + block.tokens - 1, rows=base.rows + block.drafts)
