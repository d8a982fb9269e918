"""Walking along what the target last ranked behind each token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.candidates import NUM_CANDIDATES, Candidates, pack_candidates, unpack_candidates
from core.noise import NoiseCache
from core.penalties import RowGroup
from core.sampling import choose
from core.sampling_params import SamplingParams
from core.sequence import Sequence
from core.successor_table import MOST_TOKENS, SuccessorTable
from tests.tiny import make_request

GREEDY = SamplingParams(temperature=0.0)
TOKENS = st.integers(0, 5)
LISTS = st.lists(TOKENS, min_size=1, max_size=4, unique=True)


def candidates(ids: list[int]) -> Candidates:
    return Candidates(tuple(ids), tuple(-0.5 * rank for rank in range(len(ids))))


@given(
    st.lists(TOKENS, min_size=1, max_size=12),
    st.lists(st.tuples(TOKENS, LISTS), max_size=12),
    TOKENS,
    st.integers(0, 8),
)
def test_at_temperature_0_it_goes_by_the_latest_best_and_by_the_prompt_where_there_is_none(
    prompt: list[int], learned: list[tuple[int, list[int]]], start: int, count: int
) -> None:
    table = SuccessorTable(tuple(prompt), GREEDY)
    for token, ids in learned:
        table.learn(token, candidates(ids))

    def follower(token: int) -> int | None:
        for known, ids in reversed(learned):
            if known == token:
                return ids[0]
        for place in range(len(prompt) - 2, -1, -1):
            if prompt[place] == token:
                return prompt[place + 1]
        return None

    expected: list[int] = []
    token = follower(start)
    while token is not None and len(expected) < count:
        expected.append(token)
        token = follower(token)
    assert table.walk(start, 40, count) == expected
    known = {token for token, _ in learned}
    assert (table.certainty(start) >= 2) == (start in known)
    assert (table.certainty(start) == 0) == (follower(start) is None)


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=NUM_CANDIDATES),
    st.floats(0.1, 2.0),
    st.integers(0, 10),
    st.sampled_from([1.0, 0.95, 0.6, 0.1]),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.integers(-99, 99),
    st.integers(0, 60),
)
def test_above_it_takes_what_the_target_would_of_a_row_that_is_all_candidates(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, before: int
) -> None:
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    sequence = Sequence(make_request([0] * (1 + before), **filters))
    row = torch.tensor([logits], dtype=torch.float32)
    table = SuccessorTable((0,), sequence.request.sampling)
    [known] = unpack_candidates(pack_candidates(row).tolist())
    table.learn(0, known)
    [expected] = choose(row, [RowGroup(sequence, 0, [], 1)], NoiseCache()).tokens.tolist()
    [got] = table.walk(0, len(sequence.tokens), 1)
    weights = (row[0].double() / temperature).softmax(-1)
    cut = abs(weights.sort(descending=True).values.cumsum(-1) - top_p).min() < 1e-9  # the filter's sums round
    assert got == expected or cut


def test_its_noise_is_that_of_the_position() -> None:
    sampling = SamplingParams(temperature=1.0, seed=3)
    table = SuccessorTable((), sampling)
    table.learn(7, Candidates(tuple(range(8)), (0.0,) * 8))
    assert len({table.walk(7, position, 1)[0] for position in range(60)}) == 8
    assert table.walk(7, 9, 1) == table.walk(7, 9, 1)


@pytest.mark.parametrize(("logits", "sure"), [((0.0,), 4), ((0.0, -1.0), 3), ((0.0, -0.1, -0.2), 2)])
def test_it_is_the_surer_the_more_of_the_probability_the_best_has(logits: tuple[float, ...], sure: int) -> None:
    table = SuccessorTable((3, 4, 5), GREEDY)
    assert (table.certainty(3), table.certainty(5)) == (1, 0)
    table.learn(3, Candidates(tuple(range(len(logits))), logits))
    assert table.certainty(3) == sure


def test_it_is_bounded_and_forgets_what_it_heard_of_longest_ago() -> None:
    table = SuccessorTable((), GREEDY)
    for token in range(MOST_TOKENS):
        table.learn(token, candidates([1]))
    table.learn(0, candidates([2]))
    table.learn(MOST_TOKENS, candidates([3]))
    assert len(table) == MOST_TOKENS
    assert (table.certainty(0), table.certainty(1), table.certainty(2)) == (4, 0, 4)


def test_a_row_without_candidates_teaches_nothing() -> None:
    table = SuccessorTable((), GREEDY)
    table.learn(5, candidates([6]))
    table.learn(5, Candidates((), ()))
    assert table.walk(5, 0, 1) == [6]
