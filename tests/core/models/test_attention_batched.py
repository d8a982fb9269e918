"""Batched SDPA against the same segment by segment: on any layout, whoever shares a group, whatever lies unused."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.layout import RaggedLayout, Segment
from core.models import attention_batched
from core.models.attention_batched import BatchedSdpa, UniformAttention, group_segments, prepare_batched
from core.models.attention_sdpa import SdpaAttention
from core.models.uniform_batch import UniformShape
from tests.simulated_device import DEVICE, Remote, SimulatedDevice

CPU = torch.device("cpu")
POOL, SIZE = 60, 16
DECODING_THEN_CHUNK = RaggedLayout.build(
    [Segment((0,), 20, (0, 1), 1), Segment((0,), 3, (2,), 1), Segment((0,) * 40, 0, (3, 4, 5), 0)], SIZE
)


@st.composite
def layouts(draw: st.DrawFn) -> RaggedLayout:
    """Decode rows, verify blocks and prefill chunks over blocks in any order."""
    free = draw(st.permutations(range(POOL)))
    segments = []
    for _ in range(draw(st.integers(1, 8))):
        context = draw(st.sampled_from([0, 1, 15, 16, 17]) | st.integers(0, 150))
        rows = draw(st.sampled_from([1, 1, 1, 2, 5, 16, 32, 33, 60]))
        needed = -(-(context + rows) // SIZE)
        if needed > len(free):
            continue
        spare = draw(st.integers(0, 1)) if needed < len(free) else 0  # a table may be longer than what is read
        segments.append(Segment((0,) * rows, context, tuple(free[: needed + spare]), rows))
        free = free[needed + spare :]
    return RaggedLayout.build(segments, SIZE)


def filled_cache(layout: RaggedLayout, shape: tuple[int, int]) -> Tensor:
    """Normal numbers where a segment has keys, enormous ones everywhere else: whoever lets those count is found out."""
    cache = torch.full((POOL, SIZE, *shape), 1e4)
    for segment in layout.segments:
        for position in range(segment.context + len(segment.tokens)):
            block, offset = divmod(position, SIZE)
            cache[segment.blocks[block], offset] = torch.randn(shape)
    return cache


@example(DECODING_THEN_CHUNK, (4, 2), None, None, 4096, 0)
@given(
    layout=layouts(),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    window=st.sampled_from([None, None, 1, 5, 100, 5000]),
    softcap=st.sampled_from([None, None, 2.0]),
    group_cost=st.sampled_from([0, 100, 4096]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_it_computes_what_every_segment_alone_gives(
    layout: RaggedLayout, heads: tuple[int, int], window: int | None, softcap: float | None, group_cost: int, seed: int
) -> None:
    torch.manual_seed(seed)
    query = torch.randn(heads[0], layout.num_rows, 16).transpose(0, 1)  # as transformers hands them over
    keys, values = (filled_cache(layout, (heads[1], 16)) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_batched, "_GROUP_COST", group_cost)
        batched = prepare_batched(layout, torch.float32, CPU)
    arguments = (query, keys, values, 0.3, window, softcap)
    exact = SdpaAttention(layout, torch.float32, CPU)(*arguments)
    torch.testing.assert_close(batched(*arguments), exact, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(batched(*arguments), exact, atol=1e-5, rtol=1e-4)  # as in the next layer


def test_sequences_with_one_row_each_need_no_reordering() -> None:
    decoding = [Segment((0,), context, tuple(range(9)), 1) for context in (100, 20, 60)]
    assert isinstance(prepare_batched(RaggedLayout.build(decoding, SIZE), torch.float32, CPU), UniformAttention)
    chunk = Segment((0,) * 40, 0, (0, 1, 2), 0)
    assert isinstance(prepare_batched(RaggedLayout.build([*decoding, chunk], SIZE), torch.float32, CPU), BatchedSdpa)


def test_a_row_depends_on_its_own_segment_alone() -> None:
    torch.manual_seed(0)
    own = Segment((0,) * 3, 40, (3, 1, 2), 3)
    query = torch.randn(8, 4, 16)
    keys, values = torch.randn(POOL, SIZE, 2, 16), torch.randn(POOL, SIZE, 2, 16)
    results = []
    for company in (Segment((0,) * 5, 0, (7,), 1), Segment((0,) * 5, 200, tuple(range(20, 33)), 1)):
        layout = RaggedLayout.build([own, company], SIZE)
        batched = prepare_batched(layout, torch.float32, CPU)
        assert isinstance(batched, BatchedSdpa)
        keys[7] = values[20] = 1e4  # of the company alone
        results.append(batched(query, keys, values, 0.25, None, None)[:3])
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=0.0)


def lengths_of_groups(ends: list[int]) -> list[list[int]]:
    segments = [Segment((0,), end - 1, tuple(range(-(-end // SIZE))), 1) for end in ends]
    return [[ends[index] for index in group] for group in group_segments(segments, range(len(ends)))]


def test_similar_lengths_share_a_group_and_very_different_ones_do_not() -> None:
    assert lengths_of_groups([900, 100, 1000, 30]) == [[30, 100, 900, 1000]]  # 1970 keys of padding
    assert lengths_of_groups([9000, 100, 8900, 200]) == [[100, 200], [8900, 9000]]
    assert lengths_of_groups([5000, 300]) == [[300], [5000]]


def test_a_group_never_gathers_more_than_its_bound_unless_one_segment_does() -> None:
    bound = attention_batched.MOST_KEYS
    assert lengths_of_groups([bound + 1, bound + 1]) == [[bound + 1]] * 2
    assert [len(group) for group in lengths_of_groups([bound // 4] * 9)] == [4, 4, 1]


def test_a_rectangle_is_padded_in_front() -> None:
    segments = [Segment((0,) * 3, 6, (2, 5, 9), 3), Segment((0,), 4, (1, 3, 8), 1)]
    shape = UniformShape(sequences=2, rows=3, blocks=3)
    batch = shape.batch(torch.tensor(shape.values(segments, 4)), 4, 9)
    assert batch.positions.tolist() == [[6, 7, 8], [4, 4, 4]]
    assert batch.ends.tolist() == [9, 5]
    assert batch.table.tolist() == [[2, 5, 9], [1, 3, 0]]


def test_a_device_gets_all_indices_in_one_copy_and_is_never_waited_for() -> None:
    segments = [Segment((0,) * n, 20 * n, tuple(range(9 * n, 9 * n + 9)), 1) for n in (1, 2, 4)]
    long = Segment((0,) * 40, 0, (0, 1, 2), 1)
    layout = RaggedLayout.build([*segments, long], SIZE)
    query, keys, values = torch.randn(47, 4, 8), torch.randn(POOL, SIZE, 2, 8), torch.randn(POOL, SIZE, 2, 8)
    exact = SdpaAttention(layout, torch.float32, CPU)(query, keys, values, 0.3, 9, None)
    with SimulatedDevice() as device:
        batched = prepare_batched(layout, torch.float32, DEVICE)
        assert len(device.copies) == 1
        got = batched(Remote(query), Remote(keys), Remote(values), 0.3, 9, None)
        assert device.waits == []
    torch.testing.assert_close(got.local, exact, atol=1e-5, rtol=1e-4)  # type: ignore[attr-defined]
