"""How much memory a round takes beside weights and KV: measured, on a device whose KV is given all that is left.

Activations, logits, what choosing and judging need beside them: one round as heavy as the limits allow is run over
a cache of a single block, which every position shares, so that nothing but the round itself takes memory.
"""

import gc
from dataclasses import dataclass

import torch

from core.evidence import VerifyBlock, gather_evidence
from core.layout import RaggedLayout, Segment
from core.models.attention import BackendSpec
from core.models.attention_batched import LONGEST_ROWS, MOST_KEYS
from core.models.graphs import MOST_GRAPHS, MOST_ROWS
from core.models.graphs_cuda import CudaRecorder
from core.models.loader import LoadedModel
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import FlyParams

_SAMPLINGS = (
    SamplingParams(temperature=1.0, logprobs=20),
    SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.1, logprobs=20),
    SamplingParams(temperature=1.0, top_k=40, top_p=0.9, logprobs=20),
)
# Several times what attention gathers together; the masks of still more keys are small beside the KV of as many.
_CROWD_KEYS = 4 * MOST_KEYS
_LOOSE = FlyParams(entropy="full")  # looks at whole rows


@dataclass(frozen=True, slots=True)
class HeaviestRound:
    """rows: of the forward. logit_rows: those of them that need logits, in blocks of num_drafts drafts and one more.
    max_context: positions of the longest sequence."""

    rows: int
    logit_rows: int
    num_drafts: int
    max_context: int

    def layout(self, block_size: int) -> RaggedLayout:
        """Rows at the far end of the longest sequence, of several where one does not have so many positions."""
        segments, rows, owed = [], self.rows, min(self.logit_rows, self.rows)
        while rows:
            count = min(rows, self.max_context)
            blocks = (0,) * -(-self.max_context // block_size)
            segments.append(Segment((0,) * count, self.max_context - count, blocks, min(count, owed)))
            rows, owed = rows - count, max(0, owed - count)
        return RaggedLayout.build(segments, block_size)

    def crowd(self, block_size: int) -> RaggedLayout:
        """Verify blocks of many long sequences, for the keys that a backend may copy together."""
        rows = min(1 + self.num_drafts, self.max_context)
        count = min(-(-self.logit_rows // rows), -(-_CROWD_KEYS // self.max_context))
        blocks = (0,) * -(-self.max_context // block_size)
        segment = Segment((0,) * rows, self.max_context - rows, blocks, 0)
        return RaggedLayout.build([segment] * max(1, count), block_size)

    def verify_blocks(self, sampling: SamplingParams) -> list[VerifyBlock]:
        blocks, width = [], 1 + self.num_drafts
        for first in range(0, min(self.logit_rows, self.rows), width):
            count = min(width, min(self.logit_rows, self.rows) - first)
            request = GenerationRequest(
                str(first), (0,), 2 + count, sampling, _LOOSE, "prompt_lookup", num_draft_tokens=width
            )
            blocks.append(VerifyBlock(Sequence(request), first, [0] * (count - 1)))
        return blocks


def run_heaviest(loaded: LoadedModel, backend: str | BackendSpec, block_size: int, heaviest: HeaviestRound) -> None:
    """Forward and evidence of such a round, once for each way of choosing tokens that takes memory of its own."""
    runner = ModelRunner(loaded, 1, block_size, backend)
    layout = heaviest.layout(block_size)
    if loaded.device.type != "cpu":
        runner.forward(heaviest.crowd(block_size))
    for sampling in _SAMPLINGS:
        blocks = heaviest.verify_blocks(sampling)
        logits = runner.forward(layout)
        if blocks:
            gather_evidence(logits, blocks, frozenset(), NoiseCache())
        del logits
    runner.wait()


def measure_scratch(loaded: LoadedModel, backend: str | BackendSpec, block_size: int, heaviest: HeaviestRound) -> int:
    """Bytes such a round takes on the model's CUDA device at its peak, beside weights and KV; 0 on a CPU, whose
    memory is not divided up beforehand.

    To be called when the device's models are loaded and nothing is served. Models that share a device run in turn,
    so the largest figure counts, not the sum. torch.OutOfMemoryError if there is no room for it.
    """
    device = loaded.device
    if device.type != "cuda":
        return 0
    _release()
    torch.cuda.reset_peak_memory_stats(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    run_heaviest(loaded, backend, block_size, heaviest)
    # Reserved too: what the allocator cannot use for fragmentation is taken all the same.
    peak = max(
        torch.cuda.max_memory_allocated(device) - allocated,
        torch.cuda.max_memory_reserved(device) - reserved,
    )
    _release()
    return peak


def measure_graphs(loaded: LoadedModel, backend: str | BackendSpec, block_size: int) -> int:
    """Bytes that recording a model's forwards takes on its CUDA device in all, once MOST_GRAPHS are recorded; to be
    called as measure_scratch is, and 0 on a CPU.

    The largest is recorded, then the smallest: all work in the memory of the first, and what the second adds is the
    graph itself, as each further one does.
    """
    device = loaded.device
    if device.type != "cuda":
        return 0
    runner = ModelRunner(loaded, 1, block_size, backend, CudaRecorder(device))
    free = [_free(device)]
    for layout in (_largest_rectangle(loaded.max_context, block_size), _smallest_rectangle(block_size)):
        runner.forward(layout)
        free.append(_free(device))
    largest, another = free[0] - free[1], free[1] - free[2]
    return max(0, largest) + (MOST_GRAPHS - 1) * max(0, another)


def _largest_rectangle(max_context: int, block_size: int) -> RaggedLayout:
    """As many rows and keys as may be recorded."""
    count = MOST_ROWS // LONGEST_ROWS
    end = max(LONGEST_ROWS, min(max_context, MOST_KEYS // count))
    segment = Segment((0,) * LONGEST_ROWS, end - LONGEST_ROWS, (0,) * -(-end // block_size), 1)
    return RaggedLayout.build([segment] * count, block_size)


def _smallest_rectangle(block_size: int) -> RaggedLayout:
    return RaggedLayout.build([Segment((0,), 0, (0,), 1)], block_size)


def _free(device: torch.device) -> int:
    _release()
    torch.cuda.synchronize(device)
    return torch.cuda.mem_get_info(device)[0]


def _release() -> None:
    gc.collect()
    torch.cuda.empty_cache()
