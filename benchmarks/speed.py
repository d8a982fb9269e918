"""Speed against `off`: a matrix of settings over prompts, in turns, ratio by ratio."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.answers import Door, Group
from benchmarks.datasets import Prompt
from benchmarks.http_door import RefusedError
from benchmarks.interleave import BalancedOrders, Unit, units
from benchmarks.matrix import GREEDY, OFF, PRIME_DRAFT, PRIME_TOKENS, Setting, strict_beside
from benchmarks.progress import progress
from benchmarks.samples import Sample
from server.errors import ApiError

_WARM_UP = "Say hello, then count from one to ten in words."
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """passes: how often everything runs. groups: how many sets of prompts are asked at every concurrency, where it is
    more than 1. waves: prompts that each of several clients asks, one after the other. sampling: fields of every
    request."""

    prompts: Sequence[Prompt]
    settings: Sequence[Setting]
    concurrency: Sequence[int] = (1,)
    max_tokens: int = 128
    passes: int = 1
    groups: int = 3
    waves: int = 2
    sampling: Mapping[str, Any] = field(default_factory=lambda: dict(GREEDY))


def no_keeper(_samples: list[Sample]) -> None: ...


async def measure(door: Door, plan: Plan, keep: Callable[[list[Sample]], None] = no_keeper) -> list[Sample]:
    """Run the plan; samples in the order of measurement, the baseline's included. keep: told of all samples so far
    after each unit."""
    run = _Run(door, plan)
    work = units(plan.prompts, plan.concurrency, plan.groups, plan.waves)
    total = plan.passes * sum(len(unit.prompts) for unit in work) * len(run.settings)
    samples: list[Sample] = []
    with progress("speed", total) as report:
        report(await run.warm_up(), steps=0)
        for turn in range(plan.passes * len(work)):
            repeat, index = divmod(turn, len(work))
            found = await run.unit(work[index], turn, repeat)
            samples += found
            keep(samples)
            report(line_of(found), steps=len(work[index].prompts) * len(run.settings))
    return samples


class _Run:
    def __init__(self, door: Door, plan: Plan) -> None:
        self._door, self._plan = door, plan
        self.settings = [OFF, *plan.settings]
        self._primers = [OFF, PRIME_DRAFT]
        self._orders = BalancedOrders()
        self._asked: set[str] = set()

    async def warm_up(self) -> str | None:
        """Every setting once, so that nobody pays for first times; returns what there is to say."""
        for setting in self.settings:
            await self._ask([_WARM_UP], setting, _WARM_UP_TOKENS)
        try:
            await self._ask([_WARM_UP], PRIME_DRAFT, PRIME_TOKENS)
        except (ApiError, RefusedError) as error:
            self._primers = [OFF]
            return f"no draft model is primed: {error}"
        return None

    async def unit(self, unit: Unit, turn: int, repeat: int) -> list[Sample]:
        """All settings on one unit.

        Its prompts are computed before, by target and draft model, so that whoever comes first does not fill the
        prefix cache for the others. That also tells what a prompt takes that nobody has asked before: up to the first
        token all settings do the same.
        """
        texts = [prompt.text for prompt in unit.prompts]
        clients = unit.concurrency
        primed = [await self._ask(texts, primer, PRIME_TOKENS, clients) for primer in self._primers]
        # Those that all clients asked at the same moment; the others come when somebody is free.
        cold = Group(primed[0].answers[:clients]) if self._asked.isdisjoint(texts) else None
        self._asked.update(texts)
        groups: dict[str, Group] = {}
        for setting in self._orders.order(unit, self.settings):
            groups[setting.name] = await self._ask(texts, setting, self._plan.max_tokens, clients)
        baseline = groups[OFF.name]
        samples = []
        for one in self.settings:
            strict = strict_beside(one, self.settings)
            samples.append(
                Sample.of(
                    unit,
                    one.name,
                    turn,
                    groups[one.name],
                    baseline,
                    strict=None if strict is None else groups[strict.name],
                    cold=cold if one is OFF else None,
                    repeat=repeat,
                )
            )
        return samples

    async def _ask(self, texts: Sequence[str], setting: Setting, max_tokens: int, clients: int | None = None) -> Group:
        return await self._door.ask(texts, {**self._plan.sampling, **setting.fields}, max_tokens, clients)


def line_of(samples: Sequence[Sample]) -> str:
    """One unit in a line: "humaneval, 1 at once: off 6.1 tokens/s, strict 2.31x"."""
    first = samples[0]
    parts = [
        f"{sample.setting} {sample.rate or 0:.1f} tokens/s"
        if sample.ratio is None
        else f"{sample.setting} {sample.ratio:.2f}x"
        for sample in samples
    ]
    return f"{first.category}, {first.concurrency} at once: {', '.join(parts)}"
