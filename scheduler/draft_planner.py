"""DraftPlanner: how much each adaptive sequence wants to draft in the round being planned, and with what.

It gathers what the rule of draft_length.py weighs (the costs, each sequence's options), asks it once for all strict
sequences together and once for each loose one alone, and learns from what became of the drafts. Beside the rule stand
probes (probing.py), and neighbours that never draft:

A round with an `off` request in it may take COMPANY times what it would take without drafts, what the draft model
reads ahead included. Strict drafts are cut to that. Loose blocks are never cut; they are held back for some rounds, but
for fewer than the tokens that they are expected to deliver, so that no loose answer is slower than its neighbours.
"""

from collections.abc import Iterable

from core.drafters.model import DraftReach
from core.forward_costs import ForwardCosts, LiveCosts
from core.round_plan import ItemResult
from core.token_store import TokenStore
from scheduler.acceptance import GUESS, hopeful
from scheduler.draft_length import choose_drafts
from scheduler.draft_option import Base, Choice, base_seconds, cheapest_row
from scheduler.draft_options import DraftOptions
from scheduler.drafting import NOTHING, Wish, window_of
from scheduler.given_blocks import with_given
from scheduler.job import Job
from scheduler.loose_length import Ask
from scheduler.loose_lengths import choose_blocks
from scheduler.probing import Candidate, Load, Probes, due, probe

COMPANY = 1.5
FULL_HOUSE = 0.9  # tokens that a draft's row costs at the rate without drafts
LOOK_AGAIN = 32  # rounds of a full house after which it is looked at all the same
LEAST_FEED = 8  # of a chunk, one part that the draft model may read ahead however little time there is: loose ones wait


class DraftPlanner:
    """One per engine, used between rounds only. mean: acceptance of all strict sequences so far. feed_budget: tokens
    that the draft model may read ahead in the round planned last. reads_prompts: whether it is worth it to read those
    of adaptive strict sequences, as things are."""

    def __init__(
        self, costs: LiveCosts, reach: DraftReach, max_ngram: int, max_context: int, store: TokenStore | None = None
    ) -> None:
        """reach: of the draft model. max_context: positions of one sequence. store: the datastore drafter's."""
        self._costs = costs
        self._options = DraftOptions(reach, max_ngram, max_context, store)
        self._probes = Probes()
        self.mean = hopeful()
        self.feed_budget = 0
        self.reads_prompts = True
        self._rate = 0.0  # of the last round in which anybody drafted
        self._full_rounds = 0

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
        seconds = self._plan_strict(strict, base, costs.now)
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
                self._probes.refund(outcome.accepted)

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
                window, loosening = window_of(sequence.request), drafting.acceptance.loosening()
                asks.append((job, Ask(len(sequence.tokens), options, window, loosening), match))
        blocks = choose_blocks(costs, [ask for _, ask, _ in asks])
        for (job, ask, match), block in zip(asks, blocks, strict=True):
            if block.choice.option is not None:
                job.drafting.wish = _wish(job, block.choice, match, block.tokens, forgiving=ask.loosening)
            elif (next_one := due(job.drafting, ask.options)) is not None:
                job.drafting.wish = probe(next_one[0], match)

    def _plan_strict(self, jobs: list[Job], base: Base, costs: ForwardCosts) -> float:
        """Set the jobs' wishes; seconds of the round with them."""
        seconds = base_seconds(costs, base)
        if not jobs:
            return seconds
        caps = [self._options.strict_cap(job) for job in jobs]
        rate = base.tokens / (seconds - base.prompts)
        if rate * cheapest_row(costs, base, max(1, sum(caps))) >= FULL_HOUSE:
            # What the surest drafts would gain is not worth weighing; but rows may have been measured wrong.
            self._full_rounds += 1
            if self._full_rounds % LOOK_AGAIN:
                self._probes.earn(seconds, rate)
                return seconds
        found = [self._options.of(job, cap, costs) for job, cap in zip(jobs, caps, strict=True)]
        verdict = choose_drafts(costs, base, [options for options, _ in found], self._rate)
        load = Load(verdict.seconds, float(base.rows), sum(base.draft_rows[:1]))
        for job, choice, (_, match) in zip(jobs, verdict.choices, found, strict=True):
            if choice.option is not None:
                tokens = 1 + choice.option.expected(choice.num_drafts)
                job.drafting.wish = _wish(job, choice, match, tokens, may_grow=not base.bounded)
                load.rows += choice.num_drafts
                load.draft_rows += choice.option.turn_rows
        self._rate = verdict.rate
        self._probes.earn(verdict.seconds, verdict.rate)
        candidates = [
            Candidate(job, next_one[0], match, next_one[1])
            for job, (options, match) in zip(jobs, found, strict=True)
            if (next_one := due(job.drafting, options)) is not None
        ]
        self._probes.plan(candidates, load, base, costs)
        return load.seconds

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


def _wish(job: Job, choice: Choice, match: int, tokens: float, may_grow: bool = False, forgiving: float = 0.0) -> Wish:
    """forgiving: the chance that a wrong draft is accepted. may_grow: a block that the draft model stays sure of may
    become twice as long as is expected to pay, unless its last drafts were all wrong. A loose one may not: its
    neighbours could neither cut it nor count on so much.

    Nothing but the sequence's own history and the choice is asked here, so a loose block ends where it does whatever
    the load: what the draft model says depends on the text alone.
    """
    option = choice.option
    assert option is not None
    if not option.per_turn:
        return Wish(option.drafter, choice.num_drafts, choice.min_reach, match, tokens)
    grows = may_grow and job.drafting.warm
    most = min(2 * choice.num_drafts, option.cap) if grows else choice.num_drafts
    return Wish(
        option.drafter,
        most,
        choice.min_reach,
        match,
        tokens,
        min_guessed_reach=choice.min_guessed_reach,
        doubt=job.drafting.acceptance.doubt(),
        forgiving=forgiving,
    )
