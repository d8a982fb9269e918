"""Who drafts in a round, how far, and what the round tells of it."""

import dataclasses
import functools
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from core.confidence import chosen_probabilities
from core.drafters.base import DraftJob
from core.drafters.prompt_lookup import guess, index_round, peek
from core.noise import NoiseCache
from core.penalties import RowGroup
from core.round import ItemResult, RoundItem, RoundPlan, run_round
from core.runtime import Runtime
from core.sampling import choose
from core.sequence import GenerationRequest, Sequence
from tests.naive import plain_logits
from tests.tiny import Driver, make_request, make_runtime, noisy_copy, outputs, random_model, random_prompt

K = 6
PROMPT = random_prompt(12, seed=3) * 2
SAMPLING: dict[str, dict[str, object]] = {
    "greedy": {},
    "penalties": {"presence_penalty": 0.7, "repetition_penalty": 1.2},
    "free": {"temperature": 1.2, "seed": 1},
    "filtered": {"temperature": 0.8, "top_p": 0.9, "top_k": 30, "min_p": 0.02, "seed": 2},
}


@functools.cache
def target_model() -> PreTrainedModel:
    return random_model(1, sharpness=1.0)


@functools.cache
def draft_model(kind: str) -> PreTrainedModel:
    match kind:
        case "equal":
            return target_model()
        case "random":
            return random_model(2, sharpness=1.0)
        case _:
            return noisy_copy(target_model(), scale=0.1)


def ask(name: str = "greedy", drafter: str = "model", **options: object) -> GenerationRequest:
    settings = {"num_draft_tokens": K if drafter != "none" else 0, "max_tokens": 40, "ignore_eos": True}
    return make_request(PROMPT, drafter=drafter, **{**settings, **SAMPLING[name], **options})  # type: ignore[arg-type]


def rounds(runtime: Runtime, request: GenerationRequest, **item: object) -> tuple[Sequence, list[ItemResult]]:
    """Run the request to its end, each of its rounds with these fields of RoundItem; the results of those."""
    sequence, results = Sequence(request), []
    Driver(runtime).step([sequence])
    while not sequence.finished:
        assert runtime.pool.grow(sequence, len(sequence.tokens) + K)
        plan = RoundPlan((RoundItem(sequence, 1, K, **item),))  # type: ignore[arg-type]
        results += run_round(plan, runtime).items
    runtime.pool.release(sequence)
    return sequence, results


@pytest.mark.parametrize("drafter", ["model", "multilevel"])
@pytest.mark.parametrize("draft", ["equal", "noisy", "random"])
@pytest.mark.parametrize("name", list(SAMPLING))
def test_strict_equals_off_however_early_drafting_stops(name: str, draft: str, drafter: str) -> None:
    [plain] = outputs(make_runtime(target_model()), [ask(name, "none")])
    runtime = make_runtime(target_model(), draft_model(draft))
    for min_reach in (1e-6, 0.3, 1.0):
        sequence, results = rounds(runtime, ask(name, drafter), min_reach=min_reach)
        assert sequence.output == plain
        for result in results:
            assert len(result.reaches) == result.drafted
            assert all(later <= earlier for earlier, later in pairwise([1.0, *result.reaches]))
            assert all(reach >= min_reach for reach in result.reaches[:-1])
            assert result.drafted == K or result.reaches[-1] < min_reach


@pytest.mark.parametrize("name", list(SAMPLING))
def test_guesses_change_neither_the_drafts_nor_their_reach(name: str) -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    _, plain = rounds(runtime, ask(name), min_reach=0.1)
    _, guessed = rounds(runtime, ask(name, "multilevel"), min_reach=0.1)
    assert [r.drafted for r in plain] == [r.drafted for r in guessed]
    for one, other in zip(plain, guessed, strict=True):
        assert one.reaches == pytest.approx(other.reaches, rel=1e-3)
    assert sum(r.draft_turns for r in guessed) <= sum(r.draft_turns for r in plain)


@pytest.mark.parametrize("drafter", ["model", "multilevel"])
def test_a_guess_keeps_a_doubtful_draft_model_going_where_it_may_yield_more(drafter: str) -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    least, guessed = 0.9, 1e-9
    _, alike = rounds(runtime, ask(drafter=drafter), min_reach=least)
    _, results = rounds(runtime, ask(drafter=drafter), min_reach=least, min_guessed_reach=guessed)
    beyond = sum(reach < least for result in results for reach in result.reaches[:-1])
    assert (beyond > 0) == (drafter == "multilevel")  # without guesses the other bound means nothing
    assert all(reach >= least for result in alike for reach in result.reaches[:-1])
    if drafter == "model":
        assert [result.reaches for result in results] == [result.reaches for result in alike]


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12),
    st.floats(0.1, 3.0),
    st.floats(0.0, 1.0),
    st.floats(0.01, 0.95),
)
def test_drafting_stops_behind_the_first_draft_too_unlikely_to_be_right_or_forgiven(
    chances: list[float], doubt: float, forgiving: float, least: float
) -> None:
    job = DraftJob(Sequence(ask()), 12, least, doubt=doubt, forgiving=forgiving)
    for chance in chances:
        if not job.extend([7], [chance]):
            break
    reach, expected = 1.0, 0
    for chance in chances:
        right = chance**doubt
        reach *= 1 - (1 - right) * (1 - forgiving)
        expected += 1
        if reach < least:
            break
    assert len(job.drafts) == expected or reach == pytest.approx(least)
    assert job.reaches[-1] == pytest.approx(math.prod(chances[: len(job.drafts)]))


def test_reach_is_the_product_of_the_drafts_own_probabilities() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    sequence = Sequence(ask())
    Driver(runtime).step([sequence])
    known = list(sequence.tokens)
    assert runtime.pool.grow(sequence, len(known) + K)
    [result] = run_round(RoundPlan((RoundItem(sequence, 1, K, min_reach=1e-9),)), runtime).items
    reach, tokens = 1.0, known
    for got in result.reaches:
        row = plain_logits(draft_model("noisy"), tokens)[-1].softmax(-1)
        tokens = [*tokens, int(row.argmax())]
        reach *= float(row.max())
        assert got == pytest.approx(reach, rel=1e-3)


def test_without_min_reach_nothing_is_estimated() -> None:
    _, results = rounds(make_runtime(target_model(), draft_model("noisy")), ask())
    assert all(result.reaches == () and result.drafted == K for result in results)
    assert all(result.draft_turns == K for result in results)


@st.composite
def rows_and_filters(draw: st.DrawFn) -> tuple[torch.Tensor, dict[str, object]]:
    seed, count, vocab = draw(st.integers(0, 999)), draw(st.integers(1, 4)), draw(st.integers(3, 200))
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * draw(st.floats(0.1, 8.0))
    if draw(st.booleans()):
        logits[:, :: draw(st.integers(2, 3))] = -torch.inf
    temperature = draw(st.sampled_from([0.0, 0.4, 1.0, 1.7]))
    filters: dict[str, object] = {"temperature": temperature, "seed": seed}
    if draw(st.booleans()):
        filters |= {"top_k": draw(st.integers(1, 250)), "top_p": draw(st.floats(0.1, 1.0))}
    if draw(st.booleans()):
        filters["min_p"] = draw(st.floats(0.0, 0.9))
    return logits, filters


@given(rows_and_filters())
def test_the_chosen_tokens_probability_is_that_of_the_processed_distribution(
    case: tuple[torch.Tensor, dict[str, object]],
) -> None:
    logits, filters = case
    request = make_request([5], **filters)  # type: ignore[arg-type]
    group = RowGroup(Sequence(request), 0, [3] * (len(logits) - 1), len(logits))
    tokens = choose(logits, [group], NoiseCache()).tokens
    got = chosen_probabilities(logits, [group], tokens).tolist()
    for row, token, probability in zip(logits, tokens.tolist(), got, strict=True):
        assert probability == pytest.approx(slow_probability(row, token, request), rel=1e-4, abs=1e-9)


def slow_probability(row: torch.Tensor, token: int, request: GenerationRequest) -> float:
    params = request.sampling
    scaled = (row.double() / (params.temperature or 1.0)).softmax(-1)
    ranked = sorted(range(len(row)), key=lambda v: (-float(row[v]), v))
    if not params.greedy:
        ranked = ranked[: params.top_k or len(ranked)]
        total, mass, kept = sum(float(scaled[v]) for v in ranked), 0.0, []
        for v in ranked:
            if kept and params.top_p < 1.0 and mass >= params.top_p * total:
                break
            kept.append(v)
            mass += float(scaled[v])
        ranked = [v for v in kept if float(scaled[v]) >= params.min_p * float(scaled[kept[0]])]
    return float(scaled[token]) / sum(float(scaled[v]) for v in ranked)


@pytest.mark.parametrize("drafter", ["model", "prompt_lookup", "multilevel"])
def test_a_round_may_be_drafted_by_another_than_the_requests_own(drafter: str) -> None:
    [plain] = outputs(make_runtime(target_model()), [ask(drafter="none")])
    runtime = make_runtime(target_model(), draft_model("noisy"))
    assert runtime.draft is not None
    sequence, results = rounds(runtime, ask(drafter="multilevel"), drafter=drafter)
    assert sequence.output == plain
    assert (runtime.draft.forwards == 0) == (drafter == "prompt_lookup")
    assert any(result.drafted for result in results)


def test_drafters_may_take_turns_on_one_sequence() -> None:
    [plain] = outputs(make_runtime(target_model()), [ask(drafter="none")])
    runtime = make_runtime(target_model(), draft_model("noisy"))
    sequence, turn = Sequence(ask(drafter="multilevel")), 0
    Driver(runtime).step([sequence])
    while not sequence.finished:
        assert runtime.pool.grow(sequence, len(sequence.tokens) + K)
        drafter = ("prompt_lookup", "model", "multilevel", None)[turn % 4]
        run_round(RoundPlan((RoundItem(sequence, 1, K * (turn % 3 > 0), drafter),)), runtime)
        runtime.pool.check_integrity([sequence])
        turn += 1
    assert sequence.output == plain


def test_a_round_tells_its_draft_forwards() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    sequences = [Sequence(ask()), Sequence(ask(num_draft_tokens=2))]
    Driver(runtime).step(sequences)
    lag = sum(len(s.tokens) - s.draft_tokens for s in sequences)
    result = Driver(runtime).step(sequences)
    assert [(s.rows, s.sequences) for s in result.draft_steps] == [(lag, 2), (2, 2), *[(1, 1)] * (K - 2)]
    assert all(step.seconds > 0 for step in result.draft_steps)
    assert sum(step.seconds for step in result.draft_steps) <= result.draft_seconds
    assert [item.draft_turns for item in result.items] == [K, 2]


@given(st.lists(st.integers(3, 7), min_size=1, max_size=40), st.integers(1, 8), st.integers(1, 5))
def test_peek_tells_what_lookup_would_propose_and_how_long_a_suffix_it_found(
    tokens: list[int], limit: int, max_ngram: int
) -> None:
    sequence = Sequence(make_request(tokens))
    found, length = peek(sequence, limit, max_ngram)
    for size in range(min(max_ngram, len(tokens)), 0, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                assert (found, length) == (tokens[start + size : start + size + limit], size)
                return
    assert (found, length) == ([], 0)


def test_a_round_indexes_one_piece_for_all_and_finds_the_same_before_and_after() -> None:
    texts = [random_prompt(700 + 400 * n, seed=n) * 2 for n in range(4)]
    sequences = [Sequence(make_request(text)) for text in texts]
    expected = [peek(Sequence(make_request(text)), 5, 4) for text in texts]
    wanted = [(sequence, len(sequence.tokens)) for sequence in sequences]
    entered, rounds = 0, 0
    while entered < sum(map(len, texts)):
        index_round(wanted, 4)
        now = sum(sequence.ngrams.entered for sequence in sequences if sequence.ngrams)
        assert 0 < now - entered <= 2048
        entered, rounds = now, rounds + 1
        assert [peek(sequence, 5, 4) for sequence in sequences] == expected
    assert rounds == -(-sum(map(len, texts)) // 2048)


def test_a_prompt_is_indexed_in_rounds_for_whoever_may_come_to_look_it_up() -> None:
    prompt = random_prompt(40, seed=1)
    request = make_request(prompt, drafter="model", num_draft_tokens=2)
    for others, indexed in (((), 0), (("prompt_lookup",), len(prompt) + 1)):  # and its first token
        sequence = Sequence(dataclasses.replace(request, other_drafters=others))
        Driver(make_runtime(target_model(), draft_model("equal")), prefill_chunk=64).step([sequence])
        assert (0 if sequence.ngrams is None else len(sequence.ngrams)) == indexed


def test_a_guess_is_as_long_as_its_suffix_is_to_be_trusted() -> None:
    text = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    for suffix in ([5], [5, 6], [5, 6, 7]):
        job = DraftJob(Sequence(make_request([*text, *suffix])), limit=20)
        behind = [*text, *suffix][len(suffix) :]
        assert guess([(job, 20)], 4) == [behind]
        assert guess([(job, 20)], 4, trust=3) == [behind[: 3 * len(suffix)]]
