"""The one excuse for two runs that should be equal: rounding, proven (ALGORITHMS 1).

Two forwards of the same tokens in different shapes differ by rounding. A different token is excused
only if moving the logits by no more than that measured difference flips the choice.
"""

from itertools import pairwise

import torch

from core.layout import RaggedLayout, Segment
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.sampling import RowGroup, choose
from core.sequence import GenerationRequest, Sequence


def last_row(runner: ModelRunner, tokens: list[int], begin: int, rows: int) -> torch.Tensor:
    """float32 [vocab] on the CPU: logits after `tokens`, fed up to `begin` at once and from there `rows` at a time.

    By the runner's model over a cache of its own, so that nothing a live runtime has cached is overwritten.
    """
    size = runner.block_size
    blocks = tuple(range(-(-len(tokens) // size)))
    runner = ModelRunner(runner.loaded, len(blocks), size, runner.backend)
    first = (len(tokens) - begin - 1) % rows + 1  # the only piece that may be shorter
    ends = [*([begin] if begin else []), *range(begin + first, len(tokens) + 1, rows)]
    for start, end in pairwise([0, *ends]):
        layout = RaggedLayout.build([Segment(tuple(tokens[start:end]), start, blocks, 1)], size)
        logits = runner.forward(layout)
    return logits[0].cpu()


def excused(runner: ModelRunner, request: GenerationRequest, expected: list[int], got: list[int], rows: int) -> bool:
    """Whether the first difference of two outputs is within rounding. `rows`: the longest block fed at once."""
    at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if at is None:
        return False  # one is longer: no rounding explains that
    tokens = [*request.prompt, *expected[:at]]
    exact = runner.loaded.dtype == torch.float32
    # In half precision the last digits of every key and value count too, so the whole answer is fed as it was made.
    begin = max(0, len(tokens) - rows) if exact else len(request.prompt) - 1
    single = last_row(runner, tokens, len(tokens) - 1 if exact else begin, 1)
    block = last_row(runner, tokens, begin, rows)
    difference = float((single - block).abs().max())
    if difference > (1e-3 if exact else 0.1 * float(single.std())):
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
