"""What drafting neighbours cost somebody who does not draft: the pauses between one `off` answer's tokens, once among
`off` company and once among company of each setting, in turns."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.answers import Answer
from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.interleave import balanced, rotated
from benchmarks.matrix import GREEDY, OFF, Setting
from benchmarks.progress import progress
from benchmarks.samples import Spread
from benchmarks.stack import Stack
from core.round import RoundResult

_NEIGHBOURS_TOKENS = 512  # of a neighbour's answer; the next one follows at once
_FEWEST = 0.75  # of the company that was asked for: one may just be between two answers


@dataclass(frozen=True, slots=True)
class Watched:
    """An `off` answer among others. running: how many others ran at its end. company: how many decoded beside it (loose
    ones may be held back for its sake), drafts: what they drafted, in the mean of the rounds between its first token
    and its last."""

    answer: Answer
    running: int
    company: float
    drafts: float

    def pauses(self) -> dict[str, float]:
        found = sorted(later - earlier for earlier, later in pairwise(self.answer.arrivals))
        p95 = found[min(len(found) - 1, int(0.95 * len(found)))]
        return {"mean": statistics.fmean(found), "median": statistics.median(found), "p95": p95}


async def neighbours(
    stack: Stack, prompts: Sequence[Prompt], settings: Sequence[Setting], company: int, max_tokens: int
) -> dict[str, Any]:
    """Each prompt in turn is the one watched; the next `company` ones are its company. By setting: pauses over those
    beside `off` company. BenchError if there are too few prompts, or the company did not run throughout."""
    if len(prompts) <= company:
        raise BenchError(f"{company} neighbours need {company + 1} prompts, there are {len(prompts)}")
    encoded = [stack.encode_chat(prompt.text) for prompt in prompts]
    seen: dict[str, list[Watched]] = {setting.name: [] for setting in [OFF, *settings]}
    with progress("company", len(seen) * len(encoded)) as report:
        for turn in range(len(encoded)):
            watched, *others = rotated(encoded, turn)
            for setting in balanced([OFF, *settings], turn):
                one = await _beside(stack, watched, others[:company], setting, max_tokens)
                if one.running < _FEWEST * company:
                    raise BenchError(
                        f"{one.running} of {company} {setting.name} neighbours ran beside the watched answer; the "
                        "configuration must let them all run at once (scheduler.max_running, kv_cache)"
                    )
                seen[setting.name].append(one)
                report()
            parts = [f"{one.name} {_ratios(seen, one)['mean'][-1]:.2f}x" for one in settings]
            report(f"mean pause beside {', '.join(parts)}", steps=0)
    return {"company": company, **{one.name: _told(seen, one) for one in settings}}


def _told(seen: Mapping[str, list[Watched]], setting: Setting) -> dict[str, Any]:
    each = _ratios(seen, setting)
    return {
        **{f"{name}_pause_ratio": Spread.of(values) for name, values in each.items()},
        "neighbours_decoding": statistics.fmean(one.company for one in seen[setting.name]),
        "drafts_a_round": statistics.fmean(one.drafts for one in seen[setting.name]),
        "each": each,
    }


def _ratios(seen: Mapping[str, list[Watched]], setting: Setting) -> dict[str, list[float]]:
    """Pauses beside a setting over those beside `off`, by prompt."""
    pairs = [(mine.pauses(), alike.pauses()) for mine, alike in zip(seen[setting.name], seen[OFF.name], strict=True)]
    return {name: [mine[name] / alike[name] for mine, alike in pairs] for name in ("mean", "median", "p95")}


async def _beside(
    stack: Stack, prompt: list[int], others: Sequence[list[int]], setting: Setting, max_tokens: int
) -> Watched:
    """An `off` answer while the others decode: each begins again as soon as it is finished, until this one is."""
    begun = [asyncio.Event() for _ in others]
    fields = {**GREEDY, **setting.fields, "ignore_eos": True}

    async def neighbour(other: list[int], event: asyncio.Event) -> None:
        while True:
            await stack.answer(other, fields, min(_NEIGHBOURS_TOKENS, stack.model.max_context - len(other)), event)

    tasks = [asyncio.create_task(neighbour(*one)) for one in zip(others, begun, strict=True)]
    try:
        all_begun: asyncio.Future[Any] = asyncio.gather(*(event.wait() for event in begun))
        await asyncio.wait([all_begun, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for ended in (task for task in tasks if task.done()):
            all_begun.cancel()
            await ended  # they end by failing only
        first = len(stack.log.rounds)
        answer = await stack.answer(prompt, {**GREEDY, **OFF.fields, "ignore_eos": True}, max_tokens)
        running = stack.engine.stats().running
        rounds = stack.log.rounds[first:][-answer.tokens + 1 :]
        return Watched(answer, running, _mean_company(rounds), _mean_drafts(rounds))
    finally:
        for task in tasks:
            task.cancel()
        for failed in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(failed, Exception):
                raise failed
        # They leave at the end of a round, which no event tells of; the next company begins without them.
        while stack.engine.stats().running:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def _mean_company(rounds: Sequence[RoundResult]) -> float:
    """Without the watched answer itself."""
    return statistics.fmean(one.decoding for one in rounds) - 1


def _mean_drafts(rounds: Sequence[RoundResult]) -> float:
    return statistics.fmean(sum(item.drafted for item in one.items) for one in rounds)
