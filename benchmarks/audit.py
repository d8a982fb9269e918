"""What loose answers lose, by the shadow audit's measure: every loosened token of every answer is replayed.

The same replays as a server's (server/audit/), of all answers at once rather than of a share in idle rounds.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.calibration import calibrate
from benchmarks.datasets import Prompt, load
from benchmarks.errors import BenchError
from benchmarks.matrix import GREEDY, Setting
from benchmarks.progress import progress
from benchmarks.results_file import Results, Table, configuration
from benchmarks.stack import Stack, open_stack
from core.verifiers.params import VerifierParams
from scheduler.events import FinishedEvent, TokensEvent
from server.audit.figures import Figures
from server.audit.record import AnswerRecord
from server.audit.replay import replay
from server.audit.report import AuditedVerifier
from server.audit.spare_time import SpareTime
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import CompletionBody

TITLE = "Loosened tokens after which the target comes back"
_HEAD = (
    "verifier",
    "answers replayed",
    "loosened",
    "replayed",
    "re-converged",
    "95 %",
    "gap (nats a token)",
)
_numbers = itertools.count()


async def measure_audit(
    config: Path,
    prompts: Sequence[Prompt],
    sources: Sequence[str],
    settings: Sequence[Setting],
    max_tokens: int,
    within: int,
    calibration: int,
    results: Results,
) -> Path:
    """sources: where the prompts are from. within: tokens in which the target must come back. calibration: how many
    other prompts of each source fill CSD's memory first."""
    if any(setting.verifier in ("off", "strict") for setting in settings):
        raise BenchError("off and strict loosen nothing that could be audited")
    async with open_stack(config) as stack:
        memory = await _calibrate(stack, prompts, sources, calibration, max_tokens) if calibration else None
        audit = _Audit(stack, max_tokens, within)
        about: dict[str, Any] = {
            "configuration": configuration(stack.settings, config),
            "prompts": list(sources),
            "max_tokens": max_tokens,
            "reconverge_tokens": within,
            "calibration": memory,
        }
        with progress("audit", len(prompts) * len(settings)) as report:
            for prompt, setting in itertools.product(prompts, settings):
                report(f"{prompt.name} {setting.name}: {await audit.add(prompt, setting)}")
                results.keep("audit", TITLE, {**about, "verifiers": audit.figures_by_setting()})
        told = audit.figures_by_setting()
    return results.write("audit", TITLE, {**about, "verifiers": told}, [Table(_HEAD, audit.rows())])


async def _calibrate(
    stack: Stack, prompts: Sequence[Prompt], sources: Sequence[str], calibration: int, max_tokens: int
) -> dict[str, int]:
    kinds = dict.fromkeys(source.rpartition(":")[0] or source for source in sources)
    others = load([f"{kind}:{calibration}" for kind in kinds], besides={prompt.text for prompt in prompts})
    return await calibrate(stack, [prompt.text for prompt in others], max_tokens)


class _Audit:
    """figures: by verifier and parameters. asked: all answers by setting, those without loosened tokens too."""

    def __init__(self, stack: Stack, max_tokens: int, within: int) -> None:
        self._stack = stack
        self._max_tokens = max_tokens
        self._within = within
        self._spare_time = SpareTime(stack.engine, 0.0)
        self._figures = Figures(None, 1)
        self._params: dict[str, VerifierParams] = {}
        self._asked: dict[str, int] = {}

    async def add(self, prompt: Prompt, setting: Setting) -> str:
        """Ask and replay; what was found, in words."""
        record = await self._ask(prompt, setting)
        self._params[setting.name] = record.request.verifier
        self._asked[setting.name] = self._asked.get(setting.name, 0) + 1
        context = self._stack.engine.max_context
        positions = record.judgeable(self._within, context)
        if not positions:
            return f"{len(record.loosened)} loosened, none to be judged"
        found = await replay(record, positions, self._within, context, self._spare_time)
        self._figures.add(record.request.verifier, found)
        return f"{sum(found.reconverged)} of {len(positions)} re-converged, gap {found.gap:.3f}"

    async def _ask(self, prompt: Prompt, setting: Setting) -> AnswerRecord:
        """RuntimeError if the engine fails."""
        stack, ids = self._stack, self._stack.encode_chat(prompt.text)
        body = CompletionBody.model_validate(
            {"model": stack.config.model, "prompt": ids, "max_tokens": self._max_tokens, **GREEDY, **setting.fields}
        )
        plan = make_plan(body, [ids], f"audit-bench-{next(_numbers)}", stack.config, stack.model, "prompt")
        record = AnswerRecord(plan.requests[0], lambda: None)
        async for event in stack.engine.submit(plan.requests[0]):
            if isinstance(event, TokensEvent):
                record.push(event.tokens)
            elif isinstance(event, FinishedEvent):
                if event.message is not None:
                    raise RuntimeError(event.message)
                record.finish(event.reason)
        return record

    def figures_by_setting(self) -> dict[str, Any]:
        """AuditedVerifier by the setting's name, of those with anything to tell."""
        sets = {figures.params: figures for figures in self._figures.sets()}
        return {
            name: {"asked": self._asked[name], **AuditedVerifier.of(sets[params]).model_dump()}
            for name, params in self._params.items()
            if params in sets
        }

    def rows(self) -> list[Sequence[str]]:
        told = self.figures_by_setting()
        return [
            _row(name, told[name]) if name in told else (name, f"0 of {asked}", "0", "0", "", "", "")
            for name, asked in self._asked.items()
        ]


def _row(name: str, told: dict[str, Any]) -> Sequence[str]:
    low, high = told["interval"]
    gap, error = told["logprob"]["gap"], told["logprob"]["standard_error"]
    return (
        name,
        f"{told['answers']} of {told['asked']}",
        str(told["loosened_tokens"]),
        str(told["audited_tokens"]),
        f"{told['reconverged_share']:.1%}",
        f"{low:.0%}..{high:.0%}",
        f"{gap:.3f}" + ("" if error is None else f" +- {error:.3f}"),
    )
