"""The CPU's own attention: against the plain sum in float64, and a row's sameness in any shape of forward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.layout import RaggedLayout, Segment
from core.models import attention_paged
from core.models.attention_paged import PagedAttention

POOL = 60  # blocks
Masks = tuple[int | None, float | None]  # window, soft cap


@st.composite
def layouts(draw: st.DrawFn) -> RaggedLayout:
    """Prompt pieces, verify blocks and decode rows over blocks of any size in any order."""
    size = draw(st.sampled_from([3, 4, 16, 64]))
    free = draw(st.permutations(range(POOL)))
    segments: list[Segment] = []
    for _ in range(draw(st.integers(1, 4))):
        context = draw(st.sampled_from([0, 31, 32, 63, 100]) | st.integers(0, 130))
        rows = draw(st.sampled_from([1, 1, 2, 5, 11, 33, 70]))
        needed = -(-(context + rows) // size)
        if needed > len(free):
            continue
        segments.append(Segment((0,) * rows, context, tuple(free[:needed]), rows))
        free = free[needed:]
    return RaggedLayout.build(segments or [Segment((0,), 2, (1,), 1)], size)


shapes = st.sampled_from([(4, 4), (4, 2), (6, 1), (14, 2), (9, 3), (70, 1)])  # heads, key heads
masks = st.tuples(st.sampled_from([None, 1, 5, 32, 40, 5000]), st.sampled_from([None, None, 2.0]))
dims = st.sampled_from([8, 16, 64, 80, 128, 256])


def cache(layout: RaggedLayout, kv_heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values, NaN wherever no segment has any."""
    keys, values = (torch.full((POOL, layout.block_size, kv_heads, dim), torch.nan) for _ in range(2))
    for segment in layout.segments:
        for position in range(segment.context + len(segment.tokens)):
            block, offset = divmod(position, layout.block_size)
            for kept in (keys, values):
                kept[segment.blocks[block], offset] = torch.randn(kv_heads, dim)
    return keys, values


def plain(layout: RaggedLayout, query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Masks) -> Tensor:
    """Row by row in float64."""
    window, softcap = mask
    group, rows = query.shape[1] // keys.shape[2], []
    for segment in layout.segments:
        own = [kept[list(segment.blocks)].flatten(0, 1).double() for kept in (keys, values)]
        for position in range(segment.context, segment.context + len(segment.tokens)):
            begin = 0 if window is None else max(0, position - window + 1)
            k, v = (kept[begin : position + 1].repeat_interleave(group, dim=1) for kept in own)
            scores = torch.einsum("hd,khd->hk", query[len(rows)].double(), k) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), v))
    return torch.stack(rows)


def attend(layout: RaggedLayout, query: Tensor, keys: Tensor, values: Tensor, mask: Masks) -> Tensor:
    return PagedAttention(layout)(query, keys, values, query.shape[2] ** -0.5, *mask)


@settings(deadline=None)
@given(layout=layouts(), heads=shapes, dim=dims, mask=masks, seed=st.integers(0, 99), transposed=st.booleans())
def test_it_is_attention(
    layout: RaggedLayout, heads: tuple[int, int], dim: int, mask: Masks, seed: int, transposed: bool
) -> None:
    torch.manual_seed(seed)
    query = torch.randn(layout.num_rows, heads[0], dim)
    if transposed:  # as transformers hands it over
        query = query.transpose(0, 1).contiguous().transpose(0, 1)
    keys, values = cache(layout, heads[1], dim)
    expected = plain(layout, query, keys, values, dim**-0.5, mask)
    torch.testing.assert_close(attend(layout, query, keys, values, mask).double(), expected, atol=2e-5, rtol=1e-4)


@settings(deadline=None)
@given(layout=layouts(), heads=shapes, dim=dims, mask=masks, seed=st.integers(0, 99), data=st.data())
def test_a_row_is_the_same_to_the_bit_in_any_forward(
    layout: RaggedLayout, heads: tuple[int, int], dim: int, mask: Masks, seed: int, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    query = torch.randn(layout.num_rows, heads[0], dim)
    keys, values = cache(layout, heads[1], dim)
    together = attend(layout, query, keys, values, mask)
    index = data.draw(st.integers(0, len(layout.segments) - 1))
    segment, start = layout.segments[index], layout.query_starts[index]
    first = data.draw(st.integers(0, len(segment.tokens) - 1))
    count = data.draw(st.integers(1, len(segment.tokens) - first))
    piece = RaggedLayout.build([Segment((0,) * count, segment.context + first, segment.blocks, 1)], layout.block_size)
    rows = slice(start + first, start + first + count)
    assert torch.equal(attend(piece, query[rows], keys, values, mask), together[rows])


@pytest.mark.parametrize("mask", [(None, None), (40, None), (None, 30.0)])
def test_threads_and_the_width_of_vectors_change_no_bit(mask: Masks, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layout = RaggedLayout.build(
        [Segment((0,) * 60, 41, tuple(range(7)), 1), Segment((0,), 99, tuple(range(7, 14)), 1)], 16
    )
    query, (keys, values) = torch.randn(61, 6, 16), cache(layout, 2, 16)
    results = []
    for shared in (0, 1 << 60):
        for wide in (True, False):
            monkeypatch.setattr(attention_paged, "_SHARED", shared)
            monkeypatch.setattr(attention_paged, "_wide", lambda wide=wide: wide)
            results.append(attend(layout, query, keys, values, mask))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("window", [None, 3])
def test_a_row_sees_nothing_of_what_is_not_its_own(value: float, window: int | None) -> None:
    """Neither later rows of its own sequence nor what has left its window."""
    torch.manual_seed(0)
    layout = RaggedLayout.build([Segment((0,) * 9, 30, (4, 2, 0), 1)], 16)
    query, (keys, values) = torch.randn(9, 4, 8), cache(layout, 2, 8)
    sound = attend(layout, query, keys, values, (window, None))
    for kept in (keys, values):
        kept[0, 2] = value  # position 34, row 4's own
    got = attend(layout, query, keys, values, (window, None))
    blind = [row for row in range(9) if row < 4 or (window is not None and row >= 4 + window)]
    assert torch.equal(got[blind], sound[blind])
    assert got[[row for row in range(9) if row not in blind]].isnan().any(-1).all()


def test_scores_of_any_size_are_weighed() -> None:
    torch.manual_seed(0)
    layout = RaggedLayout.build([Segment((0,) * 3, 70, tuple(range(5)), 1)], 16)
    query, (keys, values) = torch.randn(3, 2, 16) * 1e4, cache(layout, 2, 16)
    expected = plain(layout, query, keys, values, 0.25, (None, None))
    torch.testing.assert_close(
        attend(layout, query, keys, values, (None, None)).double(), expected, atol=1e-3, rtol=1e-3
    )


def test_another_dtype_is_refused() -> None:
    layout = RaggedLayout.build([Segment((0,), 0, (0,), 1)], 16)
    half = torch.zeros(1, 16, 2, 8, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"float32, not torch\.float32 with torch\.bfloat16"):
        attend(layout, torch.zeros(1, 2, 8), half, half, (None, None))


def test_compiled_code_touches_nothing_of_a_call_that_is_laid_out_in_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_paged, "LAYOUT", attention_paged.LAYOUT + 1)
    layout = RaggedLayout.build([Segment((1,), 0, (0,), 1)], 4)
    rows = torch.ones(1, 2, 8)
    with pytest.raises(RuntimeError, match="numba kept code"):
        PagedAttention(layout)(rows, torch.ones(1, 4, 1, 8), torch.ones(1, 4, 1, 8), 1.0, None, None)
