"""DraftPlanner: how much each adaptive sequence wants to draft in the round being planned, and with what.

It gathers what is weighed (the costs, each sequence's options), has strict sequences weighed together or, where they
are many, in turns (strict_planner.py), each loose one as if it were alone (loose_lengths.py), and learns from what
became of the drafts. Beside the rule stand probes (probing.py), and neighbours that never draft:

A round with an `off` request in it may take COMPANY times what it would take without drafts, what the draft model
reads ahead included. Strict drafts are cut to that. Loose blocks are never cut; they are held back for some rounds, but
for fewer than the tokens that they are expected to deliver, so that no loose answer is slower than its neighbours.
"""

from collections.abc import Iterable

from core.forward_costs import ForwardCosts, LiveCosts
from core.round_plan import ItemResult
from scheduler.acceptance import GUESS, hopeful
from scheduler.draft_option import Base, base_seconds, cheapest_row
from scheduler.draft_options import DraftOptions
from scheduler.drafting import NOTHING, window_of
from scheduler.given_blocks import with_given
from scheduler.job import Job
from scheduler.loose_length import Ask
from scheduler.loose_lengths import choose_blocks
from scheduler.probing import due, probe
from scheduler.strict_planner import StrictPlanner

COMPANY = 1.4  # as foreseen, so that it stays within about 1.5 as it comes
LEAST_FEED = 8  # of a chunk, one part that the draft model may read ahead however little time there is: loose ones wait


class DraftPlanner:
    """One per engine, used between rounds only. mean: acceptance of all strict sequences so far. feed_budget: tokens
    that the draft model may read ahead in the round planned last. reads_prompts: whether it is worth it to read those
    of adaptive strict sequences, as things are."""

    def __init__(self, costs: LiveCosts, options: DraftOptions) -> None:
        self._costs = costs
        self._options = options
        self._strict = StrictPlanner(self._options)
        self.mean = hopeful()
        self.feed_budget = 0
        self.reads_prompts = True

    def adopt(self, job: Job) -> None:
        """A newcomer: what it is to believe before it knows better."""
        job.drafting.acceptance.parent = GUESS if job.loose else self.mean

    def plan(self, jobs: Iterable[Job], chunk: int) -> None:
        """Set `wish`, `most` and `hold` of all jobs. chunk: prompt tokens that the round may feed to each model."""
        costs, jobs = self._costs, list(jobs)
        self.feed_budget, self.reads_prompts = chunk, True
        drafting = [job for job in jobs if job.sequence.request.drafter != "none"]
        if costs.now is None or costs.start is None:
            return
        adaptive = [job for job in drafting if job.sequence.request.adaptive]
        for job in drafting:
            job.drafting.most = None
        for job in adaptive:
            if not job.loose:
                job.drafting.wish = NOTHING
        self._plan_loose([job for job in adaptive if job.loose], costs.start)
        decoding = [job for job in jobs if job.decoding]
        fed = min(chunk, sum(job.sequence.pending for job in jobs if not job.decoding))
        plain = Base(
            tokens=float(len(decoding)),
            rows=len(decoding) + fed,
            sequences=len(decoding) + (fed > 0),
            positions=sum(len(job.sequence.tokens) for job in decoding),
        )
        if any(job.sequence.request.drafter == "none" for job in decoding):
            plain = plain._replace(most_seconds=COMPANY * base_seconds(costs.now, plain))
        base = with_given(plain, decoding, costs.now)
        strict = [job for job in drafting if job.decoding and job.sequence.request.adaptive and not job.loose]
        without = base._replace(rows=base.rows - fed, sequences=base.sequences - (fed > 0))
        base = base._replace(prompts=base_seconds(costs.now, base) - base_seconds(costs.now, without))
        rest = plain._replace(rows=len(decoding), sequences=len(decoding), draft_rows=base.draft_rows)
        self.reads_prompts = self._worth_reading(len(strict), rest, costs.now)
        seconds = self._strict.plan(strict, base, costs.now)
        if base.bounded:
            self.feed_budget = _affordable_rows(costs.now, base.most_seconds - seconds, chunk)

    def learn(self, job: Job, asked: int, result: ItemResult) -> None:
        """Take in what a verification round made of the job's wish, of which `asked` drafts found room."""
        wish = job.drafting.wish
        if wish is None or not result.tokens:
            return
        job.drafting.held = 0
        outcome = job.drafting.learn(wish, asked, result)
        if not job.loose:
            self.mean.note(outcome)
            if wish.probe:
                self._strict.refund(outcome.accepted)

    def _plan_loose(self, jobs: list[Job], costs: ForwardCosts) -> None:
        """Nothing but a job's own request and history and the costs at the start may have a say in its wish."""
        asks: list[tuple[Job, Ask, int]] = []
        for job in jobs:
            drafting, sequence, length = job.drafting, job.sequence, job.sequence.output_len
            if drafting.known_at == length:
                continue
            drafting.known_at, drafting.wish = length, NOTHING
            if length:
                options, match = self._options.of(job, self._options.loose_cap(job), None)
                asks.append((job, Ask(len(sequence.tokens), options, window_of(sequence.request)), match))
        blocks = choose_blocks(costs, [ask for _, ask, _ in asks])
        for (job, ask, match), block in zip(asks, blocks, strict=True):
            if block.choice.option is not None:
                # With a window behind it nothing of a block that may end early, as short as that, can be forgiven.
                forgiving = 0.0 if ask.window else block.choice.option.loosening
                job.drafting.wish = job.drafting.wish_for(block.choice, match, block.tokens, forgiving=forgiving)
            elif (next_one := due(job.drafting, ask.options)) is not None:
                job.drafting.wish = probe(next_one[0], match)

    def _worth_reading(self, jobs: int, base: Base, costs: ForwardCosts) -> bool:
        """Whether a draft of the draft model, as good as they are on average, would pay once all prompts are read.
        base: the round without them."""
        if costs.draft is None or not base.tokens:
            return True
        known, sharing = sum(base.draft_rows[:1]), jobs + 1
        step = (costs.draft.at(known + sharing) - costs.draft.at(known)) / sharing
        price = base.tokens / base_seconds(costs, base) * (cheapest_row(costs, base, sharing) + step)
        return self.mean.first("model", 0) > price


def _affordable_rows(costs: ForwardCosts, seconds: float, most: int) -> int:
    """The most rows that the draft model reads in so many seconds, within bounds."""
    least, rows = -(-most // LEAST_FEED), most
    if costs.draft is None or costs.draft.at(most) <= seconds:
        return most
    while least < rows:
        middle = (least + rows + 1) // 2
        if costs.draft.at(middle) <= seconds:
            least = middle
        else:
            rows = middle - 1
    return least
