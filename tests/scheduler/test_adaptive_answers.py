"""Adaptive lengths through the real engine on tiny models: strict is still off, loose is still its own affair."""

from dataclasses import replace

import pytest

from core.correction_memory import CorrectionMemory
from core.correction_table import MemorySnapshot, pair_key
from core.forward_costs import ForwardCosts, RowCurve
from core.provenance import Provenance
from core.runtime import Runtime
from core.sequence import GenerationRequest
from core.token_store import TokenStore
from core.verifiers.params import CsdParams, FlyParams, HybridParams, LossyParams, TypicalParams, VerifierParams
from scheduler.events import CounterSnapshot
from tests.core.test_exactness import SAMPLING, Comparison, draft_model, expected, request_for, target_model
from tests.scheduler.floor import limits
from tests.scheduler.serving import Recorder, answers, serving
from tests.tiny import VOCAB, make_runtime

CHEAP = ForwardCosts(RowCurve({1: 1.0, 8: 1.2, 32: 2.0}), RowCurve({1: 0.02, 8: 0.03}))
MIDDLING = ForwardCosts(RowCurve({1: 1.0, 8: 1.6, 32: 4.0}), RowCurve({1: 0.05, 8: 0.06}))
DEAR = ForwardCosts(RowCurve({1: 1.0, 4: 1.1, 8: 1.6, 32: 5.0}), RowCurve({1: 0.3, 8: 0.4}))


# Whatever the draft model proposes instead of the target's choice is known to be a frequent mismatch.
ANY_PAIR = MemorySnapshot(
    recent={pair_key(draft, target): 9 for draft in range(VOCAB) for target in range(VOCAB)}
).fold()


def runtime(draft: str, costs: ForwardCosts, **options: int) -> Runtime:
    made = make_runtime(target_model(), draft_model(draft), **options)
    made.memory = CorrectionMemory(tables={"model": ANY_PAIR})
    made.forward_costs.begin(costs)
    return made


def free(name: str, **options: object) -> GenerationRequest:
    """Under `auto`: multilevel or lookup, as many drafts as pay."""
    asked = request_for(name, drafter="multilevel", num_draft_tokens=12, **options)
    return replace(asked, other_drafters=("prompt_lookup",), adaptive=True)


@pytest.mark.parametrize("costs", [CHEAP, DEAR], ids=["cheap", "dear"])
@pytest.mark.parametrize("draft", ["equal", "random", "noisy"])
async def test_strict_equals_off(draft: str, costs: ForwardCosts) -> None:
    on, recorder = runtime(draft, costs), Recorder()
    comparison = Comparison(on)
    requests = [free(name) for name in SAMPLING]
    async with serving(on, limits(max_running=5), recorder) as engine:
        for request, (tokens, _) in zip(requests, await answers(engine, requests), strict=True):
            comparison.check(request, tokens)
    assert comparison.excuses <= 1
    drafted = [item.drafted for result in recorder.rounds for item in result.items]
    assert len(set(drafted)) > 2


async def test_named_drafters_and_constant_neighbours_change_nothing() -> None:
    on = runtime("noisy", CHEAP)
    comparison = Comparison(on)
    requests = []
    for index, name in enumerate(SAMPLING):
        drafter = ("model", "prompt_lookup", "none", "multilevel")[index % 4]
        plain = request_for(name, drafter=drafter, num_draft_tokens=0 if drafter == "none" else 6)
        requests.append(replace(plain, adaptive=drafter != "none" and index < 6))
    async with serving(on) as engine:
        for request, (tokens, _) in zip(requests, await answers(engine, requests), strict=True):
            comparison.check(request, tokens)
    assert comparison.excuses <= 1


LOOSE: dict[str, VerifierParams] = {
    "csd": CsdParams(ratio=0.1),
    "fly": FlyParams(entropy_threshold=0.05, window=2),
    "hybrid": HybridParams(entropy_threshold=0.3, window=2, ratio=0.9),
    "lossy": LossyParams(threshold=0.05),
    "typical": TypicalParams(epsilon=0.03),
}


@pytest.mark.parametrize("verifier", list(LOOSE))
@pytest.mark.parametrize("name", ["greedy", "t1.3-free"])
async def test_a_loose_answer_and_its_blocks_are_the_same_alone_in_company_and_preempted(
    name: str, verifier: str
) -> None:
    mine = replace(free(name, verifier=LOOSE[verifier], max_tokens=60, ignore_eos=True), priority=1)
    bounds = limits(max_context=128, prefill_chunk=24)
    async with serving(runtime("noisy", MIDDLING), bounds) as engine:
        [(alone, last)] = await answers(engine, [mine])
    others = [free(n, max_tokens=70, ignore_eos=True) for n in ("t1.3-min_p", "t1.3-bias-negative-seed")]
    others.append(request_for("greedy-penalties", max_tokens=70, ignore_eos=True))
    crowded = runtime("noisy", MIDDLING, num_blocks=17, block_size=8)
    crowded.forward_costs.now = DEAR  # as serving may have come to see it
    recorder = Recorder()
    async with serving(crowded, bounds, recorder) as engine:
        *_, (tokens, crowd) = await answers(engine, [*others, mine])
    assert tokens == alone
    assert figures(crowd.counters) == figures(last.counters)
    assert name in recorder.preempted
    assert last.counters.loosened
    assert 0 < last.counters.draft_tokens != 12 * last.counters.rounds


@pytest.mark.parametrize("known", [{"model"}, {"model", "prompt_lookup"}])
async def test_csd_asks_the_table_of_whoever_drafted(known: set[str]) -> None:
    """Lookup stands in for the draft model where that pays; it has a table of its own, or none."""
    on, recorder = runtime("noisy", DEAR), Recorder()
    on.memory = CorrectionMemory(tables=dict.fromkeys(known, ANY_PAIR))
    asked = [free(name, verifier=LOOSE["csd"], max_tokens=140, ignore_eos=True) for name in SAMPLING]
    async with serving(on, observer=recorder) as engine:
        await answers(engine, asked)
    blocks = [item for one in recorder.rounds for item in one.items if item.drafted]
    by_lookup = [item for item in blocks if not item.draft_turns]
    assert any(item.accepted for item in by_lookup)
    rescued = [any(token.provenance is Provenance.CALIBRATED for token in item.tokens) for item in by_lookup]
    assert any(rescued) == ("prompt_lookup" in known)
    assert any(token.provenance is Provenance.CALIBRATED for item in blocks for token in item.tokens)


@pytest.mark.parametrize("drafter", ["token_recycling", "datastore"])
async def test_drafters_without_a_forward_draft_as_much_as_pays_alone_in_company_and_preempted(drafter: str) -> None:
    def made(**options: int) -> Runtime:
        on = runtime("noisy", CHEAP, **options)
        on.store = TokenStore([expected("greedy"), expected("t1.3-free")])
        return on

    asked = request_for("t1.3-free", drafter=drafter, num_draft_tokens=12, max_tokens=60, ignore_eos=True)
    asked = replace(asked, verifier=LossyParams(threshold=1e-4), adaptive=True, priority=1)
    bounds = limits(max_context=128, prefill_chunk=24)
    async with serving(made(), bounds) as engine:
        [(alone, last)] = await answers(engine, [asked])
    others = [
        replace(request_for(name, drafter=drafter, num_draft_tokens=9, max_tokens=60, ignore_eos=True), adaptive=True)
        for name in ("greedy", "t1.3-min_p", "t1.3-bias-negative-seed")
    ]
    crowded = made(num_blocks=17, block_size=8)
    crowded.forward_costs.now = DEAR
    recorder = Recorder()
    async with serving(crowded, bounds, recorder) as engine:
        [(greedy, _), *_, (tokens, crowd)] = await answers(engine, [*others, asked])
    assert tokens == alone
    assert figures(crowd.counters) == figures(last.counters)
    assert "t1.3-free" in recorder.preempted
    assert last.counters.loosened or drafter == "datastore"
    assert 0 < last.counters.draft_tokens != 12 * last.counters.rounds
    assert greedy[: len(expected("greedy"))] == list(expected("greedy"))


def figures(counters: CounterSnapshot) -> tuple[object, ...]:
    return (
        counters.rounds,
        counters.draft_tokens,
        counters.accepted_tokens,
        dict(counters.loosened),
        counters.bonus_tokens,
    )
