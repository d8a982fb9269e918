"""Hand-made draft blocks, and the rules of ALGORITHMS 2 spelled out slowly, word by word."""

import math
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from core.correction_memory import CorrectionMemory, MemorySnapshot
from core.evidence import Evidence
from core.provenance import Provenance
from core.verifiers.params import CsdParams, FlyParams, HybridParams, LossyParams, TypicalParams

NAN = float("nan")


def make_block(
    native: Sequence[bool],
    entropy: Sequence[float] | None = None,
    gap: Sequence[float] | None = None,
    protected: Sequence[bool] | None = None,
    draft: Sequence[int] | None = None,
    probability: Sequence[float] | None = None,
) -> Evidence:
    """Evidence of K drafts. Choices are the drafts where native, else the draft + 100; the bonus is 999."""
    drafts = list(draft) if draft is not None else list(range(10, 10 + len(native)))
    choice = [token if own else token + 100 for token, own in zip(drafts, native, strict=True)]
    nothing = [NAN] * len(native)
    return Evidence(
        draft=drafts,
        choice=[*choice, 999],
        native=list(native),
        entropy=list(entropy) if entropy is not None else nothing,
        probability=list(probability) if probability is not None else nothing,
        gap=list(gap) if gap is not None else nothing,
        protected=list(protected) if protected is not None else [False] * len(native),
        logprobs=None,
    )


def bits(pattern: str) -> list[bool]:
    return [bit == "1" for bit in pattern]


def memory_of(pairs: Mapping[tuple[int, int], int], tokens: int = 0) -> MemorySnapshot:
    memory = CorrectionMemory()
    for (draft_token, target_token), count in pairs.items():
        for _ in range(count):
            memory.record("model", draft_token, target_token)
    memory.observe("model", tokens=tokens)
    memory.merge_round()
    return memory.snapshot("model")


def slow_fly(block: Evidence, params: FlyParams | HybridParams, agreeing: Sequence[bool] | None = None) -> set[int]:
    """agreeing: which drafts of a window do; the native ones if not said."""
    loosened, agreeing = set(), block.native if agreeing is None else agreeing
    num_drafts = len(block.draft)
    for j in range(num_drafts):
        if block.native[j] or block.protected[j]:
            continue
        if not block.entropy[j] >= params.entropy_threshold:
            continue
        if j + params.window > num_drafts - 1:
            continue
        if all(agreeing[i] for i in range(j + 1, j + params.window + 1)):
            loosened.add(j)
    return loosened


def slow_csd(
    block: Evidence, params: CsdParams | HybridParams, pairs: Mapping[tuple[int, int], int], tokens: int
) -> set[int]:
    loosened = set()
    for j in range(len(block.draft)):
        count = pairs.get((block.draft[j], block.choice[j]), 0)
        if params.frequency_unit == "count":
            known = count > 0 and count >= params.frequency_threshold
        else:
            known = count > 0 and count >= params.frequency_threshold * (tokens / 1e6)
        close = block.gap[j] >= math.log(params.ratio)
        if known and close and not block.native[j] and not block.protected[j]:
            loosened.add(j)
    return loosened


def slow_lossy(block: Evidence, params: LossyParams) -> set[int]:
    return {
        j
        for j in range(len(block.draft))
        if block.gap[j] >= math.log(params.threshold) and not block.native[j] and not block.protected[j]
    }


def slow_typical(block: Evidence, params: TypicalParams) -> set[int]:
    loosened = set()
    for j in range(len(block.draft)):
        if block.native[j] or block.protected[j] or math.isnan(block.entropy[j]) or math.isnan(block.probability[j]):
            continue
        enough = [params.epsilon, params.delta / math.e ** block.entropy[j]]
        if block.probability[j] > min(enough):
            loosened.add(j)
    return loosened


def positions(loosened: Sequence[Provenance | None], provenance: Provenance) -> set[int]:
    """Where the mask says `provenance`."""
    return {j for j, how in enumerate(loosened) if how is provenance}


@st.composite
def any_block(draw: st.DrawFn, max_drafts: int = 16) -> Evidence:
    """Blocks with few distinct tokens and values on both sides of every default gate, the gates included."""
    size = draw(st.integers(0, max_drafts))

    def column(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=size, max_size=size))

    native = column(st.booleans() if draw(st.booleans()) else st.sampled_from([True, True, True, True, False]))
    gates = [math.log(0.01), math.log(0.3), math.log(0.6)]
    return make_block(
        native,
        entropy=column(st.sampled_from([0.0, 0.29, 0.3, 0.5, 1.09, 2.5, NAN])),
        gap=column(st.sampled_from([0.0, -0.1, -1.0, -3.0, -9.0, float("-inf"), NAN, *gates])),
        protected=column(st.sampled_from([False, False, False, True])),
        draft=column(st.integers(0, 3)),
        probability=column(st.sampled_from([0.0, 1e-9, 0.02, 0.03, 0.09, 0.1, 0.35, 0.5, NAN])),
    )
