"""StrictPlanner: the drafts of all adaptive strict sequences of a round.

Up to AT_ONCE are weighed together, drafts against drafts. More would take longer than a round is to wait for, and
strict answers do not depend on their draft lengths: so TURN at a time are weighed, one after the other at the prices of
the last round (priced_drafts.py). Those whose turn it is not

    draft what a grammar forces,
    or go on drafting with the draft model as was found best in their turn,
    or draft what lookup finds now, as far as it is worth its price.

One alone may find a step of the draft model too dear that all together would share, so once in TOGETHER rounds all are
weighed after all; and whenever a round were faster without any of these drafts, there are none.
"""

from collections.abc import Sequence
from operator import attrgetter

from core.forward_costs import ForwardCosts
from scheduler.draft_length import choose_drafts
from scheduler.draft_option import Base, Choice, Option, base_seconds, cheapest_row
from scheduler.draft_options import DraftOptions
from scheduler.drafting import NOTHING, UNKNOWN, Standing, Wish
from scheduler.given_blocks import Given, with_all
from scheduler.job import Job
from scheduler.priced_drafts import Prices
from scheduler.probing import Candidate, Load, Probes, due

AT_ONCE = 24  # beyond, they take turns
TURN = 16
TOGETHER = 16
FULL_HOUSE = 0.9  # tokens that a draft's row costs at the rate without drafts
LOOK_AGAIN = 32  # rounds of a full house after which it is looked at all the same


class StrictPlanner:
    """One per engine, used between rounds only."""

    def __init__(self, options: DraftOptions) -> None:
        self._options = options
        self._probes = Probes()
        self._rate = 0.0  # of the last round that was weighed
        self._rounds = 0
        self._full_rounds = 0

    def refund(self, tokens: int) -> None:
        """A probe delivered so many more tokens."""
        self._probes.refund(tokens)

    def plan(self, jobs: Sequence[Job], base: Base, costs: ForwardCosts) -> float:
        """Set the jobs' wishes, all of which are NOTHING; seconds of the round with them. base: the round without."""
        seconds = base_seconds(costs, base)
        if not jobs:
            return seconds
        self._rounds += 1
        rate = base.tokens / (seconds - base.prompts)
        most = sum(map(self._options.strict_cap, jobs))
        if rate * cheapest_row(costs, base, max(1, most)) >= FULL_HOUSE:
            # What the surest drafts would gain is not worth weighing; but rows may have been measured wrong.
            _forget(jobs)
            self._full_rounds += 1
            if self._full_rounds % LOOK_AGAIN:
                self._probes.earn(seconds, rate)
                return seconds
        if len(jobs) <= AT_ONCE or not self._rate or self._rounds % TOGETHER == 0:
            load = self._weigh(jobs, base, costs)
        else:
            load = self._take_turns(jobs, base, costs)
        return load.seconds

    def _weigh(self, jobs: Sequence[Job], base: Base, costs: ForwardCosts) -> Load:
        """Choose all drafts together."""
        found = [self._options.of(job, self._options.strict_cap(job), costs) for job in jobs]
        verdict = choose_drafts(costs, base, [options for options, _ in found], self._rate)
        load = Load(verdict.seconds, float(base.rows), sum(base.draft_rows[:1]))
        for job, choice, (_, match) in zip(jobs, verdict.choices, found, strict=True):
            self._wish(job, choice, match, base)
            if choice.option is not None:
                load.rows += choice.num_drafts
                load.draft_rows += choice.option.turn_rows
        self._rate = verdict.rate
        self._probe(jobs, found, load, base, costs)
        return load

    def _take_turns(self, jobs: Sequence[Job], base: Base, costs: ForwardCosts) -> Load:
        """Choose the drafts of some, at the prices of the last round."""
        line = sorted(jobs, key=attrgetter("drafting.weighed_at"))
        turn, others = line[:TURN], line[TURN:]
        prices = Prices(costs, base, self._rate)
        for job in others:
            self._go_on(job, prices)
        prices.share_out(max(job.sequence.request.num_draft_tokens for job in turn))
        found = []
        for job in turn:
            options, match = self._options.of(job, self._options.strict_cap(job), costs)
            choice = prices.choose(options)
            prices.add(job, choice, self._wish(job, choice, match, base))
            found.append((options, match))
        planned = self._within_bounds(prices.blocks[::-1], base, costs)
        seconds = base_seconds(costs, planned)
        self._rate = planned.tokens / (seconds - planned.prompts)
        load = Load(seconds, float(planned.rows), sum(planned.draft_rows[:1]))
        self._probe(turn, found, load, base, costs)
        return load

    def _go_on(self, job: Job, prices: Prices) -> None:
        """What a job drafts whose turn it is not."""
        drafting, cap = job.drafting, self._options.strict_cap(job)
        if cap < 1:
            return
        if forced := min(cap, job.sequence.forced):
            drafting.wish = Wish("none", forced, tokens=1.0 + forced)
            prices.add(job, Choice(Option("none", 1.0, 1.0, forced), forced), drafting.wish.tokens)
        elif (standing := drafting.standing) is not None and standing.by_model:
            most = self._options.model_cap(job, cap)
            if most > 0:
                wish = drafting.wish_for(standing.choice, UNKNOWN, standing.tokens, may_grow=not prices.bounded)
                drafting.wish = wish if wish.num_drafts <= most else wish._replace(num_drafts=most)
                prices.add(job, standing.choice, standing.tokens)
        elif (free := self._options.free(job, cap)) is not None:
            option, match = free
            choice = prices.choose((option,))
            if choice.option is not None:
                tokens = 1 + option.expected(choice.num_drafts)
                drafting.wish = Wish(option.drafter, choice.num_drafts, 0.0, match, tokens)
                prices.add(job, choice, tokens)

    def _within_bounds(self, blocks: Sequence[Given], base: Base, costs: ForwardCosts) -> Base:
        """The round with as many of these blocks as it has time for, the first of them first, or with none if it is
        faster so; the others' wishes become NOTHING."""
        left, planned = blocks, with_all(base, blocks)
        while left and base.bounded and base_seconds(costs, planned) > base.most_seconds:
            left = left[: len(left) * 3 // 4]
            planned = with_all(base, left)
        if _rate(planned, costs) < _rate(base, costs):
            left, planned = [], base
            _forget([block.job for block in blocks])
        for block in blocks[len(left) :]:
            block.job.drafting.wish = NOTHING
        return planned

    def _wish(self, job: Job, choice: Choice, match: int, base: Base) -> float:
        """Set the wish of a job that was weighed; tokens that it is expected to deliver."""
        drafting = job.drafting
        drafting.weighed_at, drafting.standing = self._rounds, None
        if choice.option is None:
            return 1.0
        tokens = 1 + choice.option.expected(choice.num_drafts)
        drafting.wish = drafting.wish_for(choice, match, tokens, may_grow=not base.bounded)
        drafting.standing = Standing(choice, tokens)
        return tokens

    def _probe(
        self,
        jobs: Sequence[Job],
        found: Sequence[tuple[list[Option], int]],
        load: Load,
        base: Base,
        costs: ForwardCosts,
    ) -> None:
        self._probes.earn(load.seconds, self._rate)
        candidates = [
            Candidate(job, next_one[0], match, next_one[1])
            for job, (options, match) in zip(jobs, found, strict=True)
            if (next_one := due(job.drafting, options)) is not None
        ]
        self._probes.plan(candidates, load, base, costs)
        for one in candidates:
            if one.pause.paid:  # the draft model may have to read its text first, so it is to be asked again
                one.job.drafting.weighed_at = 0


def _rate(planned: Base, costs: ForwardCosts) -> float:
    return planned.tokens / (base_seconds(costs, planned) - planned.prompts)


def _forget(jobs: Sequence[Job]) -> None:
    """Nobody drafts in this round, nor goes on later."""
    for job in jobs:
        job.drafting.wish, job.drafting.standing = NOTHING, None
