"""The draft model's backlog: bounded a round, fed once for all that share it, and no answer moved by it."""

from collections import Counter
from dataclasses import replace

from core.drafters.model import DraftReach
from core.layout import RaggedLayout
from core.models.kv_cache import BlockPool
from core.provenance import FinishReason, Provenance
from core.runtime import Runtime
from core.sequence import CommittedToken, GenerationRequest
from core.verifiers.params import FlyParams, StrictParams, VerifierParams
from scheduler.draft_feed import DraftFeed
from scheduler.events import FinishedEvent
from scheduler.job import Job
from scheduler.sharing import Share
from tests.scheduler.floor import Floor, job, limits, number, request
from tests.scheduler.serving import Recorder, answers, runtime, serving, settled
from tests.tiny import make_request, random_prompt

CHUNK, K = 32, 7
SHARED = random_prompt(400, seed=8)
FLY = FlyParams(entropy_threshold=0.05, window=2)
BOUNDS = limits(prefill_chunk=CHUNK, round_tokens=64)


def asked(name: str, verifier: VerifierParams, drafter: str, **sampling: object) -> GenerationRequest:
    return make_request(
        [*SHARED, *random_prompt(3, len(name))],
        verifier=verifier,
        drafter=drafter,
        num_draft_tokens=K,
        max_tokens=30,
        request_id=name,
        ignore_eos=True,
        **sampling,
    )


COMPANY = [
    asked("strict", StrictParams(), "model"),
    asked("loose", FLY, "multilevel"),
    asked("loose at 1", FLY, "model", temperature=1.0, seed=3),
]
PLAIN = make_request(SHARED, max_tokens=2, request_id="off", ignore_eos=True)


def watched(on: Runtime) -> list[RaggedLayout]:
    """The layouts of the draft's forwards from now on."""
    assert on.draft is not None
    layouts: list[RaggedLayout] = []
    forward = on.draft.forward

    def watch(layout: RaggedLayout) -> object:
        layouts.append(layout)
        return forward(layout)

    on.draft.forward = watch  # type: ignore[assignment, method-assign]
    return layouts


async def after_an_off_request(
    on: Runtime, requests: list[GenerationRequest], recorder: Recorder | None = None
) -> list[tuple[list[int], FinishedEvent]]:
    async with serving(on, BOUNDS, recorder) as engine:
        await answers(engine, [PLAIN])
        results = await answers(engine, requests)
        await settled(engine)
    assert all(last.cached_prompt_tokens == 400 for _, last in results)
    return results


async def test_no_draft_forward_reads_more_than_a_chunk_and_no_shared_slot_is_written_twice() -> None:
    on = runtime()
    layouts = watched(on)
    await after_an_off_request(on, COMPANY)
    assert max(layout.num_rows for layout in layouts) <= CHUNK + len(COMPANY) * (1 + K)
    feeding = [layout for layout in layouts if not layout.num_logits]
    assert 0 < max(layout.num_rows for layout in feeding) <= CHUNK
    shared = {block for layout in layouts for s in layout.segments for block in s.blocks[: 400 // 16]}
    assert len(shared) == 400 // 16
    written = Counter(slot for layout in layouts for slot in layout.slots() if slot // 16 in shared)
    assert set(written.values()) == {1}
    assert len(written) == 400


async def test_answers_are_those_of_a_cold_runtime_and_of_off() -> None:
    results = await after_an_off_request(runtime(), COMPANY)
    for one, (tokens, last) in zip(COMPANY, results, strict=True):
        async with serving(runtime(), BOUNDS) as engine:
            [(alone, figures)] = await answers(engine, [one])
        assert tokens == alone
        if one.verifier.type == "fly":
            assert last.counters.loosened == figures.counters.loosened
            assert last.counters.draft_tokens == figures.counters.draft_tokens
            assert last.counters.rounds == figures.counters.rounds
        else:
            off = replace(one, verifier=PLAIN.verifier, drafter="none", num_draft_tokens=0)
            async with serving(runtime(), BOUNDS) as engine:
                assert (await answers(engine, [off]))[0][0] == tokens
    assert sum(sum(last.counters.loosened.values()) for _, last in results) > 0


async def test_first_tokens_come_at_once_and_strict_decodes_while_loose_waits() -> None:
    recorder = Recorder()
    await after_an_off_request(runtime(), COMPANY, recorder)
    rounds = recorder.rounds
    began = next(n for n, result in enumerate(rounds) if len(result.items) == 3)
    assert all(item.tokens for item in rounds[began].items)
    waiting = rounds[began + 1 : began + 1 + 400 // CHUNK]
    for result in waiting:
        assert [item.sequence.request.request_id for item in result.items] == ["strict"]
        assert result.items[0].drafted == 0
        assert result.draft_seconds > 0
    assert {item.drafted for item in rounds[began + len(waiting) + 2].items} == {K}


async def test_a_round_may_be_nothing_but_catching_up() -> None:
    recorder = Recorder()
    [(tokens, last)] = await after_an_off_request(runtime(), [COMPANY[1]], recorder)
    empty = [result for result in recorder.rounds if not result.items]
    assert len(empty) == 400 // CHUNK
    assert all(result.forward_seconds == 0 and result.draft_seconds > 0 for result in empty)
    assert (len(tokens), last.reason) == (30, FinishReason.LENGTH)


async def test_a_failing_catch_up_ends_those_it_was_for() -> None:
    on = runtime()
    assert on.draft is not None
    forward = on.draft.forward
    async with serving(on, BOUNDS) as engine:
        await answers(engine, [PLAIN])

        def fail(layout: object) -> object:
            on.draft.forward = forward  # type: ignore[method-assign, union-attr]
            raise MemoryError

        on.draft.forward = fail  # type: ignore[assignment, method-assign]
        [(_, last)] = await answers(engine, [COMPANY[1]])
        assert last.reason is FinishReason.ERROR
        [(_, last)] = await answers(engine, [COMPANY[1]])
        assert last.reason is FinishReason.LENGTH
        stats = await settled(engine)
    assert (stats.failed_rounds, stats.blocks_used) == (1, 0)


def test_a_long_prompt_is_fed_to_the_draft_with_its_chunks() -> None:
    floor = Floor(reach=DraftReach(1000), limits=limits(prefill_chunk=32))
    floor.add(request("a", "fly", 4, prompt=100, drafter="model"))
    fed = []
    while not floor.jobs["a"].sequence.output_len:
        floor.round()
        fed.append(floor.jobs["a"].sequence.draft_tokens)
    assert fed == [32, 64, 96, 96]
    assert floor.round()["a"].num_drafts == 4


def decoding(pool: BlockPool, name: str, lag: int, arrival: int, text: str = "") -> Job:
    """A strict job with K = 4 that has decoded one token; the draft lacks the last `lag` tokens of its 51."""
    entry = job(request(name, "strict", 4, prompt=50, drafter="model", text=text), arrival)
    sequence = entry.sequence
    cached = pool.match_prefix(sequence)
    assert pool.grow(sequence, 60)
    sequence.commit([CommittedToken(number(name), Provenance.TARGET)])
    pool.commit_tokens(sequence, 50, max(cached and sequence.draft_tokens, 51 - lag))
    return entry


def test_a_lag_of_a_round_is_free_and_a_longer_one_is_charged_by_rank() -> None:
    pool = BlockPool(100, 4)
    lags = {"all of it": 11, "a piece": 40, "nothing left": 7, "free": 5}
    jobs = [decoding(pool, name, lag, arrival) for arrival, (name, lag) in enumerate(lags.items())]
    feed = DraftFeed(pool, budget=32, reach=DraftReach(1 << 32))
    feed.consider_all(reversed(jobs))
    assert {job.request_id: job.drafts_wait for job in jobs} == {
        "all of it": False,
        "a piece": True,
        "nothing left": True,
        "free": False,
    }
    shares = [Share(job, 1, 0 if job.drafts_wait else 4, prefill=False) for job in jobs]
    assert {job.request_id: order.upto for job, order in feed.catch_ups(jobs, shares).items()} == {"a piece": 11 + 22}
    without_rows = feed.catch_ups(jobs, shares[1:])  # who is within the budget but does not run is fed all the same
    assert {job.request_id: order.upto for job, order in without_rows.items()} == {"all of it": 50, "a piece": 33}


def test_even_a_short_lag_in_shared_blocks_is_fed_by_one_only() -> None:
    pool = BlockPool(100, 4)
    jobs = [decoding(pool, name, 5, arrival, text="same") for arrival, name in enumerate("ab")]
    assert jobs[0].sequence.blocks[:12] == jobs[1].sequence.blocks[:12]
    feed = DraftFeed(pool, budget=32, reach=DraftReach(1 << 32))
    feed.consider_all(jobs)
    assert [job.drafts_wait for job in jobs] == [False, True]


def test_an_id_that_the_draft_lacks_ends_the_catching_up() -> None:
    pool = BlockPool(100, 4)
    lagging = decoding(pool, "a", 40, 0)
    feed = DraftFeed(pool, budget=32, reach=DraftReach(lagging.sequence.highest_token))
    feed.consider(lagging)
    assert not lagging.drafts_wait
    assert feed.catch_ups([lagging], []) == {}
