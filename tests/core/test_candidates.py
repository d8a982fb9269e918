"""The target's highest ranked tokens of each row, on their way to the host."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from core.candidates import NUM_CANDIDATES, Candidates, pack_candidates, unpack_candidates


@st.composite
def rows(draw: st.DrawFn) -> torch.Tensor:
    count, vocab = draw(st.integers(1, 4)), draw(st.integers(1, 700))
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    logits = (logits * draw(st.sampled_from([0.5, 2.0, 9.0]))).round(decimals=draw(st.integers(0, 3)))  # ties
    if draw(st.booleans()):
        logits[:, draw(st.integers(0, vocab - 1)) :: draw(st.integers(1, 5))] = -torch.inf
    return logits


@given(rows())
def test_they_are_the_best_of_the_row_ties_by_lowest_id_and_nothing_that_is_masked(logits: torch.Tensor) -> None:
    found = unpack_candidates(pack_candidates(logits).tolist())
    assert len(found) == len(logits)
    for row, got in zip(logits.double().tolist(), found, strict=True):
        ranked = sorted((v for v in range(len(row)) if row[v] > -math.inf), key=lambda v: (-row[v], v))
        ranked = ranked[:NUM_CANDIDATES]
        assert got.ids == tuple(ranked)
        assert got.logits == tuple(row[v] - row[ranked[0]] for v in ranked)


def test_a_broken_row_has_none() -> None:
    logits = torch.stack([torch.full((100,), torch.nan), torch.arange(100.0)])
    broken, whole = unpack_candidates(pack_candidates(logits).tolist())
    assert broken == Candidates((), ())
    assert whole.ids == tuple(range(99, 91, -1))
