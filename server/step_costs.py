"""What a plain decoding step costs on this machine, measured with real forwards before anything is served."""

import logging
import time

from core.layout import RaggedLayout, Segment
from core.models.runner import ModelRunner
from core.runtime import Runtime

log = logging.getLogger(__name__)

_CONTEXT = 128  # positions that each measured step attends to, or one block where that is more
_LARGEST_ON_CPU = 16  # beyond, a step takes seconds there; rounds while serving refine the table anyway
_PASSES = 3


def measure_step_costs(runtime: Runtime, max_running: int) -> None:
    """Fill runtime.cost with the fastest of three steps at each batch size 1, 2, 4, ... up to max_running, on a CPU
    to 16.

    Writes over blocks, so it must run while nobody holds any.
    """
    size, pool_blocks = runtime.pool.block_size, runtime.pool.num_blocks
    shared = min(max(1, _CONTEXT // size), pool_blocks - 1)
    if shared:  # doubles as warm-up
        prompt = Segment((0,) * (shared * size), 0, tuple(range(shared)), 0)
        runtime.target.forward(RaggedLayout.build([prompt], size))
    log.info("measuring what a plain decoding step costs, for estimated_speedup")
    most = min(max_running, pool_blocks - shared)
    if runtime.target.device.type == "cpu":
        most = min(most, _LARGEST_ON_CPU)
    steps = {batch: _step(batch, shared, size) for batch in _batch_sizes(most)}
    # Size by size within each pass, not three times the same in a row: other load on the machine comes in bursts,
    # and one burst then spoils one pass only.
    passes = [{batch: _seconds(runtime.target, step) for batch, step in steps.items()} for _ in range(_PASSES)]
    for batch in steps:
        runtime.cost.record(batch, min(one[batch] for one in passes))
    costs = runtime.cost.as_dict().items()
    log.info("a plain step takes %s", ", ".join(f"{1000 * seconds:.3g} ms for {batch}" for batch, seconds in costs))


def _batch_sizes(most: int) -> list[int]:
    """6 -> 1, 2, 4, 6."""
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


def _step(batch: int, shared: int, size: int) -> RaggedLayout:
    """One token for each of `batch` sequences behind the same `shared` blocks of context."""
    segments = [Segment((0,), shared * size, (*range(shared), shared + i), 1) for i in range(batch)]
    return RaggedLayout.build(segments, size)


def _seconds(runner: ModelRunner, step: RaggedLayout) -> float:
    runner.wait()
    began = time.perf_counter()
    runner.forward(step)
    runner.wait()
    return time.perf_counter() - began
