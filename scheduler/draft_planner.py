"""DraftPlanner: how much each adaptive sequence wants to draft in the round being planned, and with what.

It gathers what the rule of draft_length.py weighs (the costs, each sequence's acceptance, whether lookup has
anything to propose), asks it once for all strict sequences together and once for each loose one alone, and learns
from what became of the drafts. Two things stand beside the rule:

Probes. Where nothing pays nothing is drafted, so nothing would ever be learnt again. After a pause, which doubles
each time, a draft or two are tried: by a strict sequence only out of an allowance of PROBING of the rounds' time.

Neighbours that never draft. A round with an `off` request in it may take COMPANY times what it would take without
drafts. Strict drafts are cut to that. Loose blocks are never cut; they are held back for some rounds, but for fewer
than the tokens that they are expected to deliver, so that no loose answer is slower than its neighbours.
"""

from collections.abc import Iterable
from dataclasses import replace

from core.drafters.base import MODEL_DRAFTERS
from core.drafters.model import DraftReach, drafts_with_model, model_draft_limit
from core.drafters.prompt_lookup import peek
from core.forward_costs import ForwardCosts, LiveCosts
from core.round_plan import ItemResult
from core.sequence import Sequence
from scheduler.acceptance import GUESS, hopeful
from scheduler.draft_length import Base, Choice, Option, base_seconds, cheapest_row, choose_drafts
from scheduler.drafting import NOTHING, Wish, window_of
from scheduler.job import Job
from scheduler.loose_length import choose_block

COMPANY = 1.5
FULL_HOUSE = 0.9  # tokens that a draft's row costs at the rate without drafts
PROBING = 0.02
LAG_ROUNDS = 8  # once the draft model has caught up it drafts for many rounds, of which each pays a part
MOST_PROBES = 4  # that a round weighs
SAVED_ROUNDS = 4  # of allowance at most
PROBE_DRAFTS = {True: 1, False: 2}  # with the draft model, without
MOST_FORCED = 16


class DraftPlanner:
    """One per engine, used between rounds only. mean: acceptance of all strict sequences so far."""

    def __init__(self, costs: LiveCosts, reach: DraftReach, max_ngram: int, max_context: int) -> None:
        """reach: of the draft model. max_context: positions of one sequence."""
        self._costs, self._reach = costs, reach
        self._max_ngram, self._max_context = max_ngram, max_context
        self.mean = hopeful()
        self._allowance = 0.0  # seconds
        self._per_token = 0.0  # seconds, in the round that was planned last

    def adopt(self, job: Job) -> None:
        """A newcomer: what it is to believe before it knows better."""
        job.drafting.acceptance.parent = GUESS if job.loose else self.mean

    def plan(self, jobs: Iterable[Job], chunk: int) -> None:
        """Set `wish` and `hold` of all jobs. chunk: prompt tokens that the round may feed."""
        costs = self._costs
        jobs = list(jobs)
        if costs.now is None or costs.start is None:
            return
        adaptive = [job for job in jobs if job.sequence.request.adaptive]
        if not adaptive:
            return
        for job in adaptive:
            if job.loose:
                self._plan_loose(job, costs.start)
            else:
                job.drafting.wish = NOTHING
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
        base = self._with_blocks(plain, decoding, costs.now)
        self._plan_strict([job for job in adaptive if job.decoding and not job.loose], base, costs.now)

    def learn(self, job: Job, result: ItemResult) -> None:
        """Take in what a verification round made of the job's wish."""
        wish = job.drafting.wish
        if wish is None or not result.tokens:
            return
        job.drafting.held = 0
        outcome = job.drafting.learn(wish, result, window_of(job.sequence.request))
        if not job.loose:
            self.mean.note(outcome)
            if wish.probe:  # what it delivered has paid for itself
                self._allowance += outcome.accepted * self._per_token

    def _plan_loose(self, job: Job, costs: ForwardCosts) -> None:
        """Nothing but the job's own request and history and the costs at the start may have a say here."""
        drafting, sequence = job.drafting, job.sequence
        if drafting.known_at == sequence.output_len:
            return
        drafting.known_at, drafting.wish = sequence.output_len, NOTHING
        if sequence.output_len == 0:
            return
        cap = min(sequence.request.num_draft_tokens, self._max_context - len(sequence.tokens))
        options, match = self._options(job, cap, None)
        window, loosening = window_of(sequence.request), drafting.acceptance.loosening()
        choice, tokens, _ = choose_block(costs, len(sequence.tokens), options, window, loosening)
        if choice.option is not None:
            drafting.wish = Wish(choice.option.drafter, choice.num_drafts, match=match, tokens=tokens)
        elif drafting.idle >= drafting.pause and options:
            drafting.wish = _probe(options[0], match)

    def _with_blocks(self, plain: Base, decoding: list[Job], costs: ForwardCosts) -> Base:
        """The round with all drafts that are not for the rule to decide; sets `hold`."""
        base, steps = plain, list[float]()
        for job in sorted(decoding, key=lambda job: (job.last_turn, job.rank)):
            wish, request = job.drafting.wish, job.sequence.request
            job.drafting.hold = False
            if wish is None:  # of fixed length
                drafter, drafts, tokens = request.drafter, request.num_draft_tokens, 1.0
            else:
                drafter, drafts, tokens = wish.drafter, wish.num_drafts, wish.tokens
            if not drafts:
                continue
            turns = drafts if drafter in MODEL_DRAFTERS else 0
            if drafter == "multilevel":
                turns = max(1, round(turns / job.drafting.acceptance.per_turn()))
            after = [*steps, *[0.0] * (turns - len(steps))]
            after[:turns] = [rows + 1 for rows in after[:turns]]
            more = base._replace(tokens=base.tokens + tokens - 1, rows=base.rows + drafts, draft_rows=tuple(after))
            if wish is not None and job.drafting.held + 2 <= tokens and _too_long(costs, more):
                job.drafting.hold = True
                job.drafting.held += 1
                base = base._replace(tokens=base.tokens - 1, rows=base.rows - 1, sequences=base.sequences - 1)
            else:
                base, steps = more, after
        return base

    def _plan_strict(self, jobs: list[Job], base: Base, costs: ForwardCosts) -> None:
        if not jobs:
            return
        caps = [self._strict_cap(job) for job in jobs]
        price = base.tokens / base_seconds(costs, base) * cheapest_row(costs, base, max(1, sum(caps)))
        if price >= FULL_HOUSE:  # what the surest drafts would gain is not worth weighing
            return
        found = [self._options(job, cap, costs) for job, cap in zip(jobs, caps, strict=True)]
        verdict = choose_drafts(costs, base, [options for options, _ in found])
        bounded = base.most_seconds < float("inf")
        for job, choice, (_, match) in zip(jobs, verdict.choices, found, strict=True):
            if choice.option is not None:
                job.drafting.wish = _strict_wish(job, choice, match, bounded)
        self._allowance = min(self._allowance + PROBING * verdict.seconds, SAVED_ROUNDS * verdict.seconds)
        self._per_token = 1 / verdict.rate
        self._plan_probes(jobs, found, base, verdict.seconds, costs)

    def _plan_probes(
        self, jobs: list[Job], found: list[tuple[list[Option], int]], base: Base, seconds: float, costs: ForwardCosts
    ) -> None:
        """Those that are due, as long as the allowance lasts. One that costs more than can be saved runs it into debt:
        were it never tried, a cost that was measured wrong would stay so. seconds: of the round so far."""
        tries, saved = MOST_PROBES, SAVED_ROUNDS * seconds
        for job, (options, match) in zip(jobs, found, strict=True):
            if job.drafting.wish is NOTHING and options and job.drafting.idle >= job.drafting.pause and tries:
                tries -= 1
                wish, cost = self._affordable(options, match, base, costs)
                if job.drafting.paid:  # the draft model is still catching up for it
                    job.drafting.wish = wish
                elif min(cost, saved) <= self._allowance and seconds + cost <= base.most_seconds:
                    job.drafting.wish, job.drafting.paid = wish, True
                    self._allowance -= cost
                    seconds += cost

    def _affordable(self, options: list[Option], match: int, base: Base, costs: ForwardCosts) -> tuple[Wish, float]:
        """The cheapest probe and its seconds."""
        wishes = [(_probe(option, match), option) for option in options]
        costed = []
        for wish, option in wishes:
            seconds = costs.target.at(base.rows + wish.num_drafts) - costs.target.at(base.rows)
            if option.per_turn and costs.draft is not None:
                seconds += costs.draft.at(option.turn_rows) + LAG_ROUNDS * option.lag
            costed.append((wish, seconds))
        return min(costed, key=lambda entry: entry[1])

    def _strict_cap(self, job: Job) -> int:
        """Drafts beyond max_tokens would be waste; the bonus row gives one token."""
        sequence = job.sequence
        room = min(self._max_context - len(sequence.tokens), sequence.request.max_tokens - sequence.output_len - 1)
        return max(0, min(sequence.request.num_draft_tokens, room))

    def _options(self, job: Job, cap: int, costs: ForwardCosts | None) -> tuple[list[Option], int]:
        """What could draft for the job, and how long a suffix lookup found. costs: None leaves the draft model's lag
        out, which is no fact about the sequence alone."""
        sequence, known = job.sequence, job.drafting.acceptance
        options: list[Option] = []
        match = 0
        if cap < 1:
            return options, match
        if forced := _forced(sequence, cap):
            options.append(Option("none", 1.0, 1.0, forced))
        for drafter in (sequence.request.drafter, *sequence.request.other_drafters):
            if drafter == "prompt_lookup":
                found = peek(sequence, cap, self._max_ngram)
                if match := found.length:
                    option = Option(drafter, known.first(drafter, match), known.later(drafter), len(found.tokens))
                    options.insert(0, option)
            elif drafts_with_model(sequence, self._reach):
                most = model_draft_limit(sequence, cap, self._reach)
                per_turn = known.per_turn() if drafter == "multilevel" else 1.0
                lag = 0.0
                if costs is not None and costs.draft is not None:
                    behind = len(sequence.tokens) - sequence.draft_tokens
                    if behind > 2:  # more than a round with drafts leaves
                        lag = max(0.0, costs.draft.at(behind) - costs.draft.at(1)) / LAG_ROUNDS
                options.append(Option(drafter, known.first(drafter, 0), known.later(drafter), most, per_turn, lag))
        return options, match


def _too_long(costs: ForwardCosts, base: Base) -> bool:
    return base.most_seconds < float("inf") and base_seconds(costs, base) > base.most_seconds


def _forced(sequence: Sequence, cap: int) -> int:
    """How many tokens the sequence's grammar leaves no choice of, up to a few."""
    if sequence.grammar is None:
        return 0
    drafts: list[int] = []
    while len(drafts) < min(cap, MOST_FORCED) and (token := sequence.grammar.forced(drafts)) is not None:
        drafts.append(token)
    return len(drafts)


def _probe(option: Option, match: int) -> Wish:
    drafts = min(option.cap, PROBE_DRAFTS[option.per_turn > 0])
    return Wish(option.drafter, drafts, match=match, probe=True)


def _strict_wish(job: Job, choice: Choice, match: int, bounded: bool) -> Wish:
    """A block that the draft model stays sure of may grow to twice what is expected to pay, unless the round's time is
    bounded or its last drafts were all wrong; how sure is corrected by how right it was so far."""
    assert choice.option is not None
    wish = Wish(choice.option.drafter, choice.num_drafts, choice.min_reach, match)
    if not choice.option.per_turn:
        return wish
    cautious = bounded or not job.drafting.warm
    most = choice.num_drafts if cautious else min(2 * choice.num_drafts, choice.option.cap)
    return replace(wish, num_drafts=most, min_reach=min(0.95, choice.min_reach / job.drafting.acceptance.trust()))
