"""A shop floor without a model: the real Batcher and pool, and rounds whose tokens are made up.

Each sequence's tokens, and how many drafts are accepted, are a pure function of its id and of the
length of its history, as with a real model and a fixed seed. So whatever depends on scheduling shows.
"""

import hashlib
import itertools
from dataclasses import dataclass, field

from core.drafters.base import MODEL_DRAFTERS
from core.drafters.model import DraftReach
from core.forward_costs import LiveCosts
from core.models.kv_cache import BlockPool
from core.provenance import Provenance
from core.round import ItemResult, RoundItem, RoundResult
from core.sampling_params import SamplingParams
from core.sequence import CommittedToken, GenerationRequest, Sequence
from core.verifiers.params import FlyParams, OffParams, StrictParams, VerifierParams
from scheduler.admission import WaitingRoom
from scheduler.batching import Batch, Batcher
from scheduler.drafting import is_loose
from scheduler.job import Job
from scheduler.limits import SchedulerLimits
from scheduler.stats import Totals

VERIFIERS: dict[str, VerifierParams] = {"off": OffParams(), "strict": StrictParams(), "fly": FlyParams()}


def limits(**changes: int) -> SchedulerLimits:
    usual = {"max_running": 8, "max_waiting": 100, "prefill_chunk": 32, "round_tokens": 64, "max_context": 512}
    return SchedulerLimits(**{**usual, **changes})


def number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


def request(
    name: str,
    verifier: str = "off",
    drafts: int = 0,
    prompt: int = 10,
    max_tokens: int = 20,
    priority: int = 0,
    drafter: str = "prompt_lookup",
    text: str = "",
    adaptive: bool = False,
) -> GenerationRequest:
    """text: requests with the same one begin alike."""
    return GenerationRequest(
        request_id=name,
        prompt=tuple(number(text or name, i) % 1000 for i in range(prompt)),
        max_tokens=max_tokens,
        sampling=SamplingParams(),
        verifier=VERIFIERS[verifier],
        drafter=drafter if drafts else "none",
        num_draft_tokens=drafts,
        adaptive=adaptive and drafts > 0,
        priority=priority,
    )


def job(asked: GenerationRequest, arrival: int = 0, at: float = 0.0) -> Job:
    return Job(Sequence(asked), arrival, at)


@dataclass
class Floor:
    num_blocks: int = 1000
    block_size: int = 4
    limits: SchedulerLimits = field(default_factory=limits)
    reach: DraftReach = field(default_factory=DraftReach)
    costs: LiveCosts = field(default_factory=LiveCosts)
    acceptance: float | None = None  # of each draft; None: any number of them alike
    confidence: float | None = None  # the draft model's own, in each draft; None: it is never asked
    boundaries: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # name -> (output length, drafts)
    committed: dict[str, list[CommittedToken]] = field(default_factory=dict)  # name -> what its last round delivered

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks, self.block_size)
        self.waiting = WaitingRoom()
        self.totals = Totals()
        self.batcher = Batcher(self.pool, self.limits, self.waiting, self.totals, self.reach, self.costs)
        self.jobs: dict[str, Job] = {}
        self.finished: list[str] = []

    def add(self, asked: GenerationRequest, at: float = 0.0) -> Job:
        new = job(asked, len(self.jobs), at)
        self.jobs[asked.request_id] = new
        self.waiting.put(new)
        return new

    def round(self) -> dict[str, RoundItem]:
        """Plan a round, check its promises, make up its results. Returns the items by name."""
        batch = self.batcher.plan()
        assert batch is not None
        self.check(batch)
        items = {job.request_id: item for job, item in zip(batch.jobs, batch.plan.items, strict=True)}
        for entry in batch.plan.catch_up:
            self.pool.commit_tokens(entry.sequence, entry.sequence.target_tokens, entry.upto)
        results = [self.commit(job, item) for job, item in zip(batch.jobs, batch.plan.items, strict=True)]
        self.batcher.learn(batch, RoundResult(tuple(results), 0.0, 0.0, 0.0, 0.0, len(results)))
        return items

    def check(self, batch: Batch) -> None:
        items = batch.plan.items
        assert len({id(item.sequence) for item in items}) == len(items)
        assert sum(item.num_tokens + item.num_drafts for item in items) <= self.limits.round_tokens
        prefilled = sum(i.num_tokens for i in items if not (i.sequence.output_len and i.sequence.pending == 1))
        assert prefilled <= self.limits.prefill_chunk
        assert len(self.batcher.running) <= self.limits.max_running
        for item in items:
            sequence = item.sequence
            assert 1 <= item.num_tokens <= sequence.pending
            end = sequence.target_tokens + item.num_tokens + item.num_drafts
            assert end <= len(sequence.blocks) * self.block_size
            assert end <= self.batcher.max_context
            if not item.yields or sequence.output_len == 0:
                assert item.num_drafts == 0
            elif is_loose(sequence.request):
                assert not any(entry.sequence is sequence for entry in batch.plan.catch_up)
                most = min(sequence.request.num_draft_tokens, self.batcher.max_context - len(sequence.tokens))
                wish = self.jobs[sequence.request.request_id].drafting.wish
                assert item.num_drafts == (most if wish is None else wish.num_drafts) <= most
            else:
                assert item.num_drafts <= sequence.request.max_tokens - sequence.output_len - 1
        self.check_feeding(batch)
        self.pool.check_integrity([job.sequence for job in self.batcher.running])
        for waiting in self.jobs.values():
            if waiting not in self.batcher.running:
                assert not waiting.sequence.blocks

    def check_feeding(self, batch: Batch) -> None:
        """The draft reads a bounded number of tokens, each shared block for one sequence only."""
        fed, free, written = 0, 0, list[int]()
        ends = [(entry.sequence, entry.upto) for entry in batch.plan.catch_up]
        drafting = [i.sequence for i in batch.plan.items if i.num_drafts and i.proposer in MODEL_DRAFTERS]
        computed = {id(i.sequence): i.sequence.target_tokens + i.num_tokens for i in batch.plan.items}
        for sequence, upto in [*ends, *((sequence, len(sequence.tokens) - 1) for sequence in drafting)]:
            assert sequence.blocks
            assert upto <= computed.get(id(sequence), sequence.target_tokens)
            lag = max(0, upto - sequence.draft_tokens)
            if lag <= sequence.request.num_draft_tokens:
                free += lag
            else:
                fed += lag
            if lag:
                written += sequence.blocks[sequence.draft_tokens // self.block_size : -(-upto // self.block_size)]
        assert fed <= self.limits.prefill_chunk
        assert len(set(written)) == len(written)

    def commit(self, job: Job, item: RoundItem) -> ItemResult:
        sequence = item.sequence
        if not item.yields:
            self.pool.commit_tokens(sequence, sequence.target_tokens + item.num_tokens, sequence.draft_tokens)
            return ItemResult(sequence, (), 0, 0)
        known, name = len(sequence.tokens), job.request_id
        drafts = item.num_drafts
        if self.confidence is not None and item.min_reach > 0:  # the first that is too doubtful is still taken
            drafts = next((n for n in range(1, drafts) if self.confidence ** (item.doubt * n) < item.min_reach), drafts)
        if sequence.output_len:
            self.boundaries.setdefault(name, []).append((sequence.output_len, drafts))
        accepted = self.accepted(name, known, drafts)
        tokens = [CommittedToken(number(name, known + j) % 1000, Provenance.NATIVE) for j in range(accepted + 1)]
        self.committed[name] = sequence.commit(tokens)
        valid = min(known + accepted, len(sequence.tokens))
        model = item.num_drafts > 0 and item.proposer in MODEL_DRAFTERS
        fed = known + drafts - 1 if model else sequence.draft_tokens
        self.pool.commit_tokens(sequence, valid, min(fed, valid))
        if sequence.finished and job in self.batcher.running:
            self.batcher.remove(job)
            self.finished.append(name)
        reaches: tuple[float, ...] = ()
        if self.confidence is not None and item.min_reach > 0:
            reaches = tuple(self.confidence**n for n in range(1, drafts + 1))
        delivered = tuple(self.committed[name])
        turns = drafts if model else 0
        return ItemResult(sequence, delivered, drafts, min(accepted, len(delivered)), reaches, turns)

    def accepted(self, name: str, known: int, drafts: int) -> int:
        """How many of the drafts behind so many known tokens are right."""
        if self.acceptance is None:
            return number(name, known) % (drafts + 1)
        right = (number(name, known + j, "right") % 10**6 < self.acceptance * 10**6 for j in range(drafts))
        return sum(1 for _ in itertools.takewhile(bool, right))

    def run(self, most_rounds: int = 3000) -> int:
        """Rounds until everybody has finished."""
        for count in range(most_rounds):
            if len(self.finished) == len(self.jobs):
                self.pool.check_integrity(())
                assert self.pool.num_free == self.pool.num_blocks
                return count
            self.round()
        raise AssertionError(f"only {len(self.finished)} of {len(self.jobs)} finished in {most_rounds} rounds")
