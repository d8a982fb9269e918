"""Speed against `off`: a matrix of settings over prompts, in turns, ratio by ratio."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.answers import Door, Group
from benchmarks.datasets import Prompt
from benchmarks.interleave import Unit, rotated, units
from benchmarks.matrix import GREEDY, OFF, Setting
from benchmarks.progress import progress
from benchmarks.samples import Sample

_PRIME_TOKENS = 4
_WARM_UP = "Say hello, then count from one to ten in words."
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """passes: how often everything runs. groups: how many groups of each concurrency above 1. sampling: fields of
    every request."""

    prompts: Sequence[Prompt]
    settings: Sequence[Setting]
    concurrency: Sequence[int] = (1,)
    max_tokens: int = 128
    passes: int = 1
    groups: int = 3
    sampling: Mapping[str, Any] = field(default_factory=lambda: dict(GREEDY))


async def measure(door: Door, plan: Plan) -> list[Sample]:
    """Run the plan; samples in the order of measurement, the baseline's included."""
    run = _Run(door, plan)
    work = units(plan.prompts, plan.concurrency, plan.groups)
    total = plan.passes * sum(unit.concurrency for unit in work) * len(run.settings)
    await run.warm_up()
    samples: list[Sample] = []
    with progress("speed", total) as report:
        for turn in range(plan.passes * len(work)):
            unit = work[turn % len(work)]
            found = await run.unit(unit, turn, first=turn < len(work))
            samples += found
            report(line_of(found), steps=unit.concurrency * len(run.settings))
    return samples


class _Run:
    def __init__(self, door: Door, plan: Plan) -> None:
        self._door, self._plan = door, plan
        self.settings = [OFF, *plan.settings]

    async def warm_up(self) -> None:
        """Every setting once, so that nobody pays for first times."""
        for setting in self.settings:
            await self._ask([_WARM_UP], setting, _WARM_UP_TOKENS)

    async def unit(self, unit: Unit, turn: int, first: bool) -> list[Sample]:
        """All settings on one unit.

        Its prompts are computed before, by target and draft model, so that whoever comes first does not fill the
        prefix cache for the others. Who computes them changes from unit to unit; on the first pass that tells what
        a prompt takes that nobody has asked before.
        """
        texts = [prompt.text for prompt in unit.prompts]
        order = rotated(self.settings, turn)
        cold = await self._ask(texts, order[0], _PRIME_TOKENS)
        if order[0] is OFF:
            await self._ask(texts, self.settings[-1], _PRIME_TOKENS)  # the draft model's part
        groups = {setting.name: await self._ask(texts, setting, self._plan.max_tokens) for setting in order}
        baseline = groups[OFF.name]
        return [
            Sample.of(unit, one.name, turn, groups[one.name], baseline, cold if one is order[0] and first else None)
            for one in self.settings
        ]

    async def _ask(self, texts: Sequence[str], setting: Setting, max_tokens: int) -> Group:
        return await self._door.ask(texts, {**self._plan.sampling, **setting.fields}, max_tokens)


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
