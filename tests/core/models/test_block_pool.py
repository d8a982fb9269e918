"""BlockPool against its own integrity check and a slow model of what a prefix cache may know."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.models.kv_cache import BlockPool, IntegrityError, OutOfBlocks
from core.provenance import Provenance
from core.sampling_params import SamplingParams
from core.sequence import CommittedToken, GenerationRequest, Sequence
from core.verifiers.params import OffParams


def make_sequence(prompt: list[int], name: str = "s") -> Sequence:
    return Sequence(GenerationRequest(name, tuple(prompt), 1000, SamplingParams(), OffParams()))


def computed(pool: BlockPool, prompt: list[int], draft: int = 0) -> Sequence:
    """A sequence whose prompt is computed but for its last token."""
    sequence = make_sequence(prompt)
    pool.match_prefix(sequence)
    assert pool.grow(sequence, len(prompt))
    pool.commit_tokens(sequence, len(prompt) - 1, draft)
    return sequence


def test_a_released_prompt_is_found_again_up_to_its_last_full_block() -> None:
    pool = BlockPool(8, 4)
    first = computed(pool, list(range(11)))
    assert (pool.num_used, pool.num_cached, pool.num_free) == (3, 2, 5)
    blocks = list(first.blocks)
    pool.release(first)
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 2, 8)
    again = make_sequence([*range(9), 77, 78])
    assert pool.match_prefix(again) == 8
    assert again.blocks == blocks[:2]
    assert again.target_tokens == 8
    pool.check_integrity([again])


def test_a_fully_cached_prompt_leaves_a_token_to_compute() -> None:
    pool = BlockPool(8, 4)
    first = computed(pool, list(range(9)))
    again = make_sequence(list(range(8)))
    assert pool.match_prefix(again) == 4
    assert again.pending == 4
    pool.check_integrity([first, again])


def test_equal_tokens_behind_another_context_do_not_match() -> None:
    pool = BlockPool(8, 4)
    computed(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    other = make_sequence([0, 2, 3, 4, 5, 6, 7, 8, 9])
    assert pool.match_prefix(other) == 0


def test_a_block_with_an_unverified_token_is_not_shared() -> None:
    pool = BlockPool(8, 4)
    sequence = make_sequence(list(range(4)))
    assert pool.grow(sequence, 8)
    pool.commit_tokens(sequence, 3, 0)
    assert pool.num_cached == 0
    sequence.commit([CommittedToken(9, Provenance.TARGET)])
    pool.commit_tokens(sequence, 4, 0)
    assert pool.num_cached == 1


def test_watermarks_beyond_the_known_tokens_are_refused() -> None:
    pool = BlockPool(8, 4)
    sequence = make_sequence(list(range(6)))
    assert pool.grow(sequence, 8)
    with pytest.raises(ValueError, match="6 tokens"):
        pool.commit_tokens(sequence, 7, 0)
    with pytest.raises(ValueError, match="6 tokens"):
        pool.commit_tokens(sequence, 5, 7)
    pool.commit_tokens(sequence, 5, 5)
    with pytest.raises(ValueError, match="5 of them"):
        pool.commit_tokens(sequence, 4, 0)
    pool.commit_tokens(sequence, 5, 2)  # the draft may roll back


def test_the_least_recently_released_tail_is_evicted_first() -> None:
    pool = BlockPool(4, 2)
    old, new = computed(pool, [1, 2, 3, 4, 5]), None
    pool.release(old)
    assert pool.num_cached == 2
    new = make_sequence([9] * 5)
    assert pool.grow(new, 6)  # two never used or unregistered blocks, then the tail of the old prompt
    again = make_sequence([1, 2, 3, 4, 5])
    assert pool.match_prefix(again) == 2
    pool.check_integrity([new, again])


def test_growth_is_all_or_nothing() -> None:
    pool = BlockPool(4, 2)
    first, second = make_sequence([1, 2, 3]), make_sequence([4, 5, 6])
    assert pool.grow(first, 5)
    assert not pool.grow(second, 3)
    assert second.blocks == []
    assert pool.grow(second, 2)
    with pytest.raises(OutOfBlocks):
        pool.grow(second, 9)
    pool.check_integrity([first, second])


def test_a_lone_sequence_gets_neighbouring_blocks() -> None:
    pool = BlockPool(16, 2)
    first, second = make_sequence([1]), make_sequence([2])
    assert pool.grow(first, 4)
    assert pool.grow(second, 4)
    pool.release(first)
    pool.release(second)
    third = make_sequence([3])
    for positions in range(1, 13):
        assert pool.grow(third, positions)
    assert third.blocks == list(range(third.blocks[0], third.blocks[0] + 6))


def consecutive(sequence: Sequence) -> bool:
    return sequence.blocks == list(range(sequence.blocks[0], sequence.blocks[0] + len(sequence.blocks)))


def test_sequences_that_grow_together_in_a_roomy_pool_hold_consecutive_blocks() -> None:
    pool = BlockPool(400, 4)
    together = [make_sequence([n] * 30, str(n)) for n in range(4)]
    for positions in range(30, 360):
        for sequence in together:
            assert pool.grow(sequence, positions)
    assert all(map(consecutive, together))
    pool.check_integrity(together)
    pool.release(together.pop(1))
    late = make_sequence([7], "late")
    for positions in range(1, 200):
        assert pool.grow(late, positions)
    assert consecutive(late)


def test_a_prompt_longer_than_half_a_run_is_not_split() -> None:
    pool = BlockPool(100, 4)
    first, second = make_sequence([1]), make_sequence([2] * 300)
    assert pool.grow(first, 4)
    for chunk in range(32, 301, 32):
        assert pool.grow(second, chunk)
    assert consecutive(second)
    assert second.blocks[0] > first.blocks[0] + 1


def test_draft_kv_of_shared_blocks_is_known_to_later_and_present_holders() -> None:
    pool = BlockPool(16, 4)
    prompt = list(range(13))
    first = computed(pool, prompt)
    second = make_sequence(prompt)
    assert pool.match_prefix(second) == 12
    assert second.draft_tokens == 0
    pool.commit_tokens(first, 12, 6)
    pool.refresh_draft_watermark(second)
    assert second.draft_tokens == 6
    pool.commit_tokens(first, 12, 12)
    pool.commit_tokens(first, 12, 3)  # rolled back: what was written stays written
    pool.refresh_draft_watermark(second)
    assert second.draft_tokens == 12
    pool.release(first)
    pool.release(second)
    third = make_sequence(prompt)
    pool.match_prefix(third)
    assert third.draft_tokens == 12
    pool.check_integrity([third])


def test_a_recycled_block_has_forgotten_its_draft_kv() -> None:
    pool = BlockPool(2, 2)
    first = computed(pool, [1, 2, 3], draft=3)
    pool.release(first)
    other = computed(pool, [4, 5, 6])
    pool.release(other)
    again = make_sequence([4, 5, 6])
    assert pool.match_prefix(again) == 2
    assert again.draft_tokens == 0


def test_a_preempted_copy_takes_the_place_of_its_evicted_twin() -> None:
    pool = BlockPool(6, 2)
    first, twin = make_sequence([1, 2, 3]), make_sequence([1, 2, 3])
    assert pool.grow(first, 3)
    assert pool.grow(twin, 3)
    pool.commit_tokens(first, 2, 0)
    pool.commit_tokens(twin, 2, 2)  # computed in the same round: an unregistered copy
    pool.release(first)
    greedy = make_sequence([9])
    assert pool.grow(greedy, 8)  # evicts the registered one
    assert pool.num_cached == 0
    pool.release(twin)
    assert pool.match_prefix(twin) == 2
    assert twin.draft_tokens == 2
    pool.check_integrity([twin, greedy])


def test_the_integrity_check_names_what_is_wrong() -> None:
    pool = BlockPool(8, 2)
    sequence = computed(pool, [1, 2, 3, 4, 5])
    sequence.blocks.append(7)
    with pytest.raises(IntegrityError, match="block 7"):
        pool.check_integrity([sequence])
    sequence.blocks.pop()
    sequence.tokens[0] = 99
    with pytest.raises(IntegrityError, match="do not follow from its tokens"):
        pool.check_integrity([sequence])


class PoolMachine(RuleBasedStateMachine):
    """Random lives of sequences over few tokens, so that prefixes coincide, and few blocks, so that they fight."""

    @initialize(blocks=st.integers(4, 20), size=st.integers(1, 4))
    def start(self, blocks: int, size: int) -> None:
        self.pool = BlockPool(blocks, size)
        self.live: list[Sequence] = []
        self.computed: set[tuple[int, ...]] = set()  # every verified prefix that ever filled blocks
        self.count = 0

    def pick(self, data: st.DataObject) -> Sequence:
        return data.draw(st.sampled_from(self.live))

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def arrive(self, prompt: list[int]) -> None:
        self.count += 1
        sequence = make_sequence(prompt, f"s{self.count}")
        cached = self.pool.match_prefix(sequence)
        assert cached < len(prompt)
        assert cached % self.pool.block_size == 0
        assert cached == 0 or tuple(prompt[:cached]) in self.computed
        assert sequence.draft_tokens <= cached
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.integers(0, 5), tokens=st.lists(st.integers(0, 1), max_size=3))
    def run_a_round(self, data: st.DataObject, extra: int, tokens: list[int]) -> None:
        """Feed some pending tokens and drafts; commit; move the watermarks."""
        sequence = self.pick(data)
        feed = data.draw(st.integers(1, sequence.pending)) if sequence.pending else 0
        wanted = sequence.target_tokens + feed + extra
        if wanted > self.pool.num_blocks * self.pool.block_size:
            return
        free, held = self.pool.num_free, len(sequence.blocks)
        grown = self.pool.grow(sequence, wanted)
        missing = max(0, -(-wanted // self.pool.block_size) - held)
        assert grown == (missing <= free)
        assert len(sequence.blocks) == held + (missing if grown else 0)
        if not grown:
            return
        self.pool.refresh_draft_watermark(sequence)
        target = sequence.target_tokens + feed
        if target == len(sequence.tokens):
            accepted = tokens[:extra]  # drafts whose KV is there, then the token that is not fed yet
            sequence.commit([CommittedToken(t, Provenance.NATIVE) for t in [*accepted, 1]])
            target += len(accepted)
        draft = data.draw(st.integers(0, min(target, len(sequence.tokens))))
        self.pool.commit_tokens(sequence, target, draft)
        for end in range(self.pool.block_size, target + 1, self.pool.block_size):
            self.computed.add(tuple(sequence.tokens[:end]))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sequence = self.pick(data)
        self.live.remove(sequence)
        self.pool.release(sequence)
        assert (sequence.blocks, sequence.target_tokens, sequence.draft_tokens) == ([], 0, 0)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def be_preempted_and_return(self, data: st.DataObject) -> None:
        sequence = self.pick(data)
        before = sequence.target_tokens
        self.pool.release(sequence)
        back = self.pool.match_prefix(sequence)
        assert back >= (min(before, len(sequence.tokens) - 1) // self.pool.block_size) * self.pool.block_size

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity(self.live)
            held = {block for sequence in self.live for block in sequence.blocks}
            assert self.pool.num_used == len(held)
            assert self.pool.num_free == self.pool.num_blocks - len(held)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
