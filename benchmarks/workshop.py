"""The scheduler's real batcher and draft planner over made-up tokens: a round takes what a cost table says."""

import itertools
from dataclasses import dataclass, field
from random import Random
from time import thread_time

from core.drafters.model import DraftReach
from core.drafters.prompt_lookup import index_delivered
from core.forward_costs import ForwardCosts, LiveCosts
from core.models.kv_cache import BlockPool
from core.provenance import Provenance
from core.round import ItemResult, RoundItem, RoundResult
from core.sampling_params import SamplingParams
from core.sequence import CommittedToken, GenerationRequest, Sequence
from core.verifiers.params import OffParams, StrictParams, VerifierParams
from scheduler.admission import WaitingRoom
from scheduler.batching import Batcher
from scheduler.job import Job
from scheduler.limits import SchedulerLimits
from scheduler.stats import Totals

PROMPT, BLOCK = 8, 16


@dataclass
class Workshop:
    """acceptance: the chance that the draft model's next draft is right, known to it too. running: sequences at once,
    each replaced by a new one when it ends. drafts: K, or the cap where the length is adaptive. verifiers: the
    sequences', in turns; strict where drafts are made at all, if none is given. drafters: the request's own and the
    others. words: that texts are made of, at random. planning: processor seconds of planning each round that only
    decoded, and of learning from it."""

    costs: ForwardCosts
    acceptance: float
    running: int
    drafts: int
    adaptive: bool
    answer: int = 200
    seed: int = 0
    verifiers: tuple[VerifierParams, ...] = ()
    drafters: tuple[str, ...] = ("model",)
    words: int = 1
    seconds: float = 0.0
    tokens: int = 0
    planning: list[float] = field(default_factory=list)
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        context = PROMPT + self.answer
        self._pool = BlockPool(self.running * (2 + context // BLOCK + self.drafts), BLOCK)
        limits = SchedulerLimits(
            max_running=self.running,
            max_waiting=1,
            prefill_chunk=PROMPT * self.running,
            round_tokens=self.running * (1 + self.drafts + PROMPT),
            max_context=context,
        )
        self.verifiers = self.verifiers or (StrictParams() if self.drafts else OffParams(),)
        live = LiveCosts()
        live.begin(self.costs)
        self._waiting = WaitingRoom()
        self._batcher = Batcher(self._pool, limits, self._waiting, Totals(), DraftReach(PROMPT + 2 + self.words), live)
        self._random, self._texts = Random(self.seed), Random(self.seed)

    def tokens_per_second(self, rounds: int) -> float:
        """Of so many decoding rounds; rounds that read a prompt are not counted."""
        while rounds > 0:
            for _ in range(self.running - len(self._batcher.running) - len(self._waiting)):
                self._waiting.put(self._job())
            rounds -= self._round()
        return self.tokens / self.seconds

    def _job(self) -> Job:
        number = next(self._names)
        request = GenerationRequest(
            request_id=str(number),
            prompt=tuple(range(2, 2 + PROMPT)),
            max_tokens=self.answer,
            sampling=SamplingParams(),
            verifier=self.verifiers[number % len(self.verifiers)],
            drafter=self.drafters[0] if self.drafts else "none",
            other_drafters=self.drafters[1:] if self.drafts else (),
            num_draft_tokens=self.drafts,
            adaptive=self.adaptive,
        )
        return Job(Sequence(request), number, float(number))

    def _round(self) -> bool:
        """Run one; whether it only decoded."""
        began = thread_time()
        batch = self._batcher.plan()
        planning = thread_time() - began
        assert batch is not None  # somebody always runs
        decoding = all(job.decoding for job in batch.jobs)
        for order in batch.plan.catch_up:
            self._pool.commit_tokens(order.sequence, order.sequence.target_tokens, order.upto)
        steps: dict[int, int] = {}
        results = [self._result(item, steps) for item in batch.plan.items]
        if decoding:
            rows = len(results) + sum(result.drafted for result in results)
            positions = sum(len(result.sequence.tokens) for result in results)
            self.seconds += self.costs.verify(rows, len(results), positions)
            self.seconds += sum(self.costs.draft.at(n) for n in steps.values()) if self.costs.draft else 0.0
            self.tokens += sum(len(result.tokens) for result in results)
        index_delivered(result.sequence for result in results)  # as a real round does at its end
        began = thread_time()
        self._batcher.learn(batch, RoundResult(tuple(results), 0.0, 0.0, 0.0, 0.0, len(results)))
        if decoding:
            self.planning.append(planning + thread_time() - began)
        for job in batch.jobs:
            if job.sequence.finished:
                self._batcher.remove(job)
        return decoding

    def _word(self) -> int:
        return self._texts.randrange(self.words)

    def _result(self, item: RoundItem, steps: dict[int, int]) -> ItemResult:
        """Draft as far as the draft model is sure enough, accept by chance, commit. steps: sequences by draft step."""
        sequence, known = item.sequence, len(item.sequence.tokens)
        if not item.yields:
            self._pool.commit_tokens(sequence, sequence.target_tokens + item.num_tokens, sequence.draft_tokens)
            return ItemResult(sequence, (), 0, 0)
        drafted = item.num_drafts
        if drafted and item.min_reach > 0:
            sure = (step for step in range(1, drafted) if self.acceptance ** (item.doubt * step) < item.min_reach)
            drafted = next(sure, drafted)  # the first that is too doubtful is still taken
        for step in range(drafted):
            steps[step] = steps.get(step, 0) + 1
        accepted = 0
        while accepted < drafted and self._random.random() < self.acceptance:
            accepted += 1
        tokens = tuple(sequence.commit(CommittedToken(self._word(), Provenance.NATIVE) for _ in range(accepted + 1)))
        valid = min(known + accepted, len(sequence.tokens))
        fed = known + drafted - 1 if drafted else sequence.draft_tokens
        self._pool.commit_tokens(sequence, valid, min(fed, valid))
        reaches = tuple(self.acceptance**step for step in range(1, drafted + 1)) if item.min_reach > 0 else ()
        return ItemResult(sequence, tokens, drafted, min(accepted, len(tokens)), reaches, drafted)
