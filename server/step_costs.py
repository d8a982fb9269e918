"""What steps cost on this machine, measured with real forwards before anything is served.

Three things are measured of the target: plain decoding steps by batch size, the yardstick of `estimated_speedup`;
blocks of one sequence by rows, which draft lengths are weighed with; and one step behind a longer context. Of the
draft model, steps by rows, among them one that reads a piece of a text. All within seconds: a step is not run again
once two of its runs agree, and passes are left out where one takes long.
"""

import logging
import time
from collections.abc import Mapping, Sequence

import torch

from core.forward_costs import ForwardCosts, RowCurve
from core.layout import RaggedLayout, Segment
from core.models.runner import ModelRunner
from core.runtime import Runtime
from scheduler.limits import SchedulerLimits

log = logging.getLogger(__name__)

_CONTEXT = 128  # positions that each measured step attends to, or one block where that is more
_LONG_CONTEXT = 1024
_LARGEST_ON_CPU = 16  # beyond, a step takes seconds there; rounds while serving refine the table anyway
_DRAFT_ROWS = 8  # on a CPU
_READING_ON_CPU = 64  # rows of a piece of text
_STRIDE = 7919  # between the ids of a step's tokens: a prime
_PASSES = 3
_AGREED = 1.03  # of a step's two fastest runs: other load on the machine would hardly hold up both by as much
_LEAST_PASSES = 2
_PATIENCE = 4.0  # seconds after which no further pass begins


def measure_step_costs(
    runtime: Runtime, limits: SchedulerLimits, pinned: ForwardCosts | None = None, company: int = 1
) -> None:
    """Fill runtime.cost and runtime.forward_costs with the fastest of up to three steps at each size: plain ones of
    1, 2, 4, ... up to max_running sequences, and blocks of 1, 2, 4, ... up to round_tokens rows; on a CPU both to 16.

    A GPU is measured as far as rounds go: a few rows tell nothing there of where they begin to cost. pinned: what loose
    draft lengths are weighed with instead; company: as one of how many sequences. Writes over blocks, so it must run
    while nobody holds any.
    """
    size, pool_blocks = runtime.pool.block_size, runtime.pool.num_blocks
    shared = min(max(1, _CONTEXT // size), pool_blocks - 1)
    long = min(_LONG_CONTEXT // size, pool_blocks - 1)
    log.info("measuring what steps cost")
    for runner in (runtime.target, runtime.draft):
        if runner is not None:
            _lay_context(runner, max(shared, long if runner is runtime.target else 0))
            runner.forward(_block(runner, 1, shared))  # the first one of all takes longer
    on_cpu = runtime.target.device.type == "cpu"
    most = min(limits.max_running, pool_blocks - shared, _LARGEST_ON_CPU if on_cpu else limits.max_running)
    room = size * (pool_blocks - shared)
    most_rows = min(_LARGEST_ON_CPU if on_cpu else limits.round_tokens, room)
    reading = min(limits.prefill_chunk, room, _READING_ON_CPU if on_cpu else room)
    target, draft = runtime.target, runtime.draft
    steps = {("plain", n): (target, _step(target, n, shared)) for n in _batch_sizes(most)}
    steps |= {("block", n): (target, _block(target, n, shared)) for n in _batch_sizes(most_rows) if n > 1}
    if long > shared:
        steps["long", 1] = target, _block(target, 1, long)
    if draft is not None:
        for n in (*_batch_sizes(min(_DRAFT_ROWS if on_cpu else limits.max_running, most_rows)), reading):
            steps["draft", n] = draft, _block(draft, n, shared)
    seconds = _fastest(steps)
    for batch in _batch_sizes(most):
        runtime.cost.record(batch, seconds["plain", batch])
    costs = _costs(seconds, (long - shared) * size)
    runtime.forward_costs.begin(costs, pinned, company)
    _tell("a plain step takes", runtime.cost.as_dict(), "")
    _tell("a block takes", costs.target.points, " rows")
    if costs.draft is not None:
        _tell("a draft step takes", costs.draft.points, " rows")


def _lay_context(runner: ModelRunner, blocks: int) -> None:
    """Something for steps to attend to, in the first blocks: untouched memory would be read at another speed."""
    for index in range(int(runner.loaded.config.num_hidden_layers)):
        for held in runner.cache.layer(index):
            held[:blocks] = torch.linspace(-1, 1, held[:1].numel()).view_as(held[0])


def _costs(seconds: Mapping[tuple[str, int], float], more_context: int) -> ForwardCosts:
    """more_context: positions by which the long step's context is longer."""
    target = RowCurve({1: seconds["plain", 1]} | _points(seconds, "block"))
    drafted = _points(seconds, "draft")
    draft = RowCurve(drafted) if drafted else None
    # What other load held up seems dear for its sequences: the size that makes least of them is believed.
    dearer = [(one - target.at(n)) / (n - 1) for (kind, n), one in seconds.items() if kind == "plain" and n > 1]
    per_sequence = max(0.0, min(dearer, default=0.0))
    longer = seconds.get(("long", 1), 0.0) - seconds["plain", 1]
    per_position = max(0.0, longer) / more_context if more_context > 0 else 0.0
    return ForwardCosts(target, draft, per_sequence, per_position)


def _points(seconds: Mapping[tuple[str, int], float], wanted: str) -> dict[int, float]:
    return {n: one for (kind, n), one in seconds.items() if kind == wanted}


def _tell(what: str, costs: Mapping[int, float], unit: str) -> None:
    log.info("%s %s", what, ", ".join(f"{_told(seconds)} for {n}{unit}" for n, seconds in costs.items()))


def _told(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _batch_sizes(most: int) -> list[int]:
    """6 -> 1, 2, 4, 6."""
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


def _step(runner: ModelRunner, batch: int, shared: int) -> RaggedLayout:
    """One token for each of `batch` sequences behind the same `shared` blocks of context."""
    size, tokens = runner.block_size, _tokens(runner, batch)
    segments = [Segment((token,), shared * size, (*range(shared), shared + i), 1) for i, token in enumerate(tokens)]
    return RaggedLayout.build(segments, size)


def _block(runner: ModelRunner, rows: int, shared: int) -> RaggedLayout:
    """`rows` tokens of one sequence, all with logits, behind `shared` blocks of context."""
    size = runner.block_size
    blocks = tuple(range(shared + -(-rows // size)))
    return RaggedLayout.build([Segment(_tokens(runner, rows), shared * size, blocks, rows)], size)


def _tokens(runner: ModelRunner, count: int) -> tuple[int, ...]:
    """The same ones at every start, spread over the vocabulary: what a row costs may depend on its numbers."""
    return tuple(index * _STRIDE % runner.vocab_size for index in range(1, count + 1))


def _fastest(steps: Mapping[tuple[str, int], tuple[ModelRunner, RaggedLayout]]) -> dict[tuple[str, int], float]:
    """Seconds of each step, the fastest of some passes.

    Step by step within each pass, not three times the same in a row: other load on the machine comes in bursts, and
    one burst then spoils one pass only. What counts is how target and draft compare.
    """
    runs: dict[tuple[str, int], list[float]] = {name: [] for name in steps}
    began = time.perf_counter()
    for done in range(1, _PASSES + 1):
        for name, (runner, step) in steps.items():
            if not _agree(runs[name], runner):
                runs[name].append(_seconds(runner, step))
        if done >= _LEAST_PASSES and time.perf_counter() - began > _PATIENCE:
            break
    return {name: min(seconds) for name, seconds in runs.items()}


def _agree(seconds: Sequence[float], runner: ModelRunner) -> bool:
    """Whether another run would tell nothing new. Where forwards are recorded it does: the first run is not recorded
    yet, the second is being recorded."""
    if len(seconds) < 2 or runner.recorded is not None:
        return False
    fastest, second = sorted(seconds)[:2]
    return second <= _AGREED * fastest


def _seconds(runner: ModelRunner, step: RaggedLayout) -> float:
    runner.wait()
    began = time.perf_counter()
    runner.forward(step)
    runner.wait()
    return time.perf_counter() - began
