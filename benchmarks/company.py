"""What drafting neighbours cost somebody who does not draft: the pauses between one `off` answer's tokens, once among
`off` company and once among drafting company, in turns."""

import asyncio
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.answers import Answer
from benchmarks.datasets import Prompt
from benchmarks.interleave import rotated
from benchmarks.matrix import GREEDY, OFF, Setting
from benchmarks.progress import progress
from benchmarks.samples import Spread
from benchmarks.stack import Stack

_LONGER = 4  # neighbours must outlast the one that is watched, drafts or not
_MOST_OUTPUT = 1024


async def neighbours(
    stack: Stack, prompts: Sequence[Prompt], drafting: Setting, company: int, max_tokens: int
) -> dict[str, Any]:
    """Each prompt in turn is the one watched; the next `company` ones are its company. ValueError if there are too few
    prompts."""
    if len(prompts) <= company:
        raise ValueError(f"{company} neighbours need {company + 1} prompts, there are {len(prompts)}")
    encoded = [stack.encode_chat(prompt.text) for prompt in prompts]
    ratios: dict[str, list[float]] = {"median": [], "p95": []}
    with progress("company", 2 * len(encoded)) as report:
        for turn in range(len(encoded)):
            watched, *others = rotated(encoded, turn)
            pauses = {}
            for setting in rotated([OFF, drafting], turn):
                answer = await _beside(stack, watched, others[:company], setting, max_tokens)
                pauses[setting.name] = [later - earlier for earlier, later in pairwise(answer.arrivals)]
                report()
            for name, quantile in (("median", 0.5), ("p95", 0.95)):
                beside, alike = (_quantile(pauses[one.name], quantile) for one in (drafting, OFF))
                ratios[name].append(beside / alike)
            report(f"pauses {ratios['median'][-1]:.2f}x in the median, p95 {ratios['p95'][-1]:.2f}x", steps=0)
    spreads = {f"{name}_pause_ratio": Spread.of(values) for name, values in ratios.items()}
    return {"company": company, "setting": drafting.name, **spreads, "each": ratios}


async def _beside(
    stack: Stack, prompt: list[int], others: Sequence[list[int]], setting: Setting, max_tokens: int
) -> Answer:
    """An `off` answer while the others decode; they are given up when it is finished."""
    most = min(_LONGER * max_tokens, _MOST_OUTPUT)
    begun = [asyncio.Event() for _ in others]
    fields = {**GREEDY, **setting.fields, "ignore_eos": True}
    tasks = [
        asyncio.create_task(stack.answer(other, fields, most, event))
        for other, event in zip(others, begun, strict=True)
    ]
    try:
        await asyncio.gather(*(event.wait() for event in begun))
        return await stack.answer(prompt, {**GREEDY, **OFF.fields, "ignore_eos": True}, max_tokens)
    finally:
        for task in tasks:
            task.cancel()
        for failed in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(failed, Exception):
                raise failed


def _quantile(values: Sequence[float], quantile: float) -> float:
    ordered = sorted(values)
    return (
        ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if quantile != 0.5 else statistics.median(values)
    )
