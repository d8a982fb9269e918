"""The one excuse for two runs that should be equal: rounding, proven (ALGORITHMS 1).

Two forwards of the same tokens in different shapes differ by rounding. A different token is excused
only if moving the logits by no more than that measured difference flips the choice.
"""

import torch

from core.layout import RaggedLayout, Segment
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.sampling import RowGroup, choose
from core.sequence import GenerationRequest, Sequence


def last_row(runner: ModelRunner, tokens: list[int], rows: int, block_size: int) -> torch.Tensor:
    """float32 [vocab]: logits after `tokens`, the last `rows` of them fed together, the rest before them.

    By the runner's model over a cache of its own, so that nothing a live runtime has cached is overwritten.
    """
    blocks = tuple(range(-(-len(tokens) // block_size)))
    runner = ModelRunner(runner.loaded, len(blocks), block_size)
    split = max(0, len(tokens) - rows)
    if split:
        runner.forward(RaggedLayout.build([Segment(tuple(tokens[:split]), 0, blocks, 0)], block_size))
    layout = RaggedLayout.build([Segment(tuple(tokens[split:]), split, blocks, 1)], block_size)
    return runner.forward(layout)[0].clone()


def excused(
    runner: ModelRunner, block_size: int, request: GenerationRequest, expected: list[int], got: list[int], rows: int
) -> bool:
    """Whether the first difference of two outputs is within rounding. `rows`: the longest block fed at once."""
    at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if at is None:
        return False  # one is longer: no rounding explains that
    tokens = [*request.prompt, *expected[:at]]
    single = last_row(runner, tokens, 1, block_size)
    block = last_row(runner, tokens, rows, block_size)
    difference = float((single - block).abs().max())
    if difference > 1e-3:
        return False  # not rounding: the shapes compute different things
    sequence = Sequence(request)
    for token in expected[:at]:
        sequence.tokens.append(token)
        sequence.output_counts[token] += 1
    moved = single.clone()
    moved[got[at]] += difference
    moved[expected[at]] -= difference
    group = RowGroup(sequence=sequence, start=0, drafts=[], count=1)
    return choose(moved[None], [group], NoiseCache()).of(group) == [got[at]]
