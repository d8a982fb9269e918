"""One evaluation from its items to its files: asked, judged, summarised, written, drawn."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchError
from benchmarks.evaluation import plots
from benchmarks.evaluation.in_process import InProcess
from benchmarks.evaluation.journal import Journal
from benchmarks.evaluation.over_http import OverHttp
from benchmarks.evaluation.reply import Asker, Question
from benchmarks.evaluation.run import Outcome, Plan, Run, group_name
from benchmarks.evaluation.sandbox import Sandbox
from benchmarks.evaluation.scoring import Judge
from benchmarks.evaluation.summary import Judged, Row, summarise
from benchmarks.evaluation.tables import HEAD, cells
from benchmarks.progress import progress
from benchmarks.results_file import Results, Table, configuration
from benchmarks.stack import open_stack


@dataclass(frozen=True, slots=True)
class Findings:
    """rows: of the items that every setting has answered under every seed; judged: their answers."""

    rows: Sequence[Row]
    judged: Sequence[Judged]


@dataclass
class Evaluation:
    """sources: the specifications that the plan's items come from. trusted: whether programs may run without
    isolation where there is none."""

    plan: Plan
    results: Results
    sources: Sequence[str]
    drawn: bool = True
    trusted: bool = False
    _outcome: Outcome = field(default_factory=Outcome)

    async def in_process(self, config: Path) -> Findings:
        """Load what the config names into this process."""
        judge = self.judge()
        async with loaded(config, self.plan.clients) as asker:
            stack = asker.stack
            about = {"configuration": configuration(stack.settings, config)}
            return await self.measured(asker, f"Evaluation of {stack.config.model}", about, judge)

    async def over_http(self, url: str, model: str, key: str) -> Findings:
        """Ask a running server. RefusedError if it cannot be asked."""
        judge, asker = self.judge(), OverHttp(url, model, key)
        try:
            return await self.measured(asker, f"Evaluation of {model}, over HTTP", {"server": "over HTTP"}, judge)
        finally:
            await asker.close()

    def judge(self) -> Judge:
        """SandboxError, before anything is loaded, if there are programs to run and they cannot be isolated."""
        runs_code = any(item.scorer is not None and item.scorer.runs_code for item in self.plan.items)
        return Judge(Sandbox.open(trusted=self.trusted) if runs_code else None)

    async def measured(self, asker: Asker, title: str, about: dict[str, Any], judge: Judge) -> Findings:
        """As it goes, what is known so far lies beside the file that is written in the end."""
        path = self.results.path(".answers.jsonl")
        with Journal(path, asker.identity, self.plan.common, asker.particular) as journal:

            def keep() -> None:
                self.results.keep("evaluation", title, self._told(self._found(journal, judge), asker, about, judge))

            with progress("evaluate", self.plan.questions) as report:
                run = Run(asker, self.plan, journal, report, keep, self._outcome)
                await run.ask_everything()
            found = self._found(journal, judge)
            if not found.judged:
                raise BenchError("there was no time for a single item under all settings; the same command goes on")
            self._written(title, self._told(found, asker, about, judge), found, asker.notes)
        return found

    def _found(self, journal: Journal, judge: Judge) -> Findings:
        plan, first = self.plan, self.plan.settings[0]
        answers = []
        for item in plan.items:
            replies = {(one, seed): journal.reply(Question(item, one, seed)) for one, seed in plan.turns}
            if all(reply is not None for reply in replies.values()):
                answers += [(item, one, seed, reply, replies[first, seed]) for (one, seed), reply in replies.items()]
        verdicts = judge.judge([(item, reply.text) for item, _, _, reply, _ in answers if reply])
        judged = [
            Judged(item, setting.name, seed, reply, verdict, baseline)
            for (item, setting, seed, reply, baseline), verdict in zip(answers, verdicts, strict=True)
            if reply and baseline
        ]
        return Findings(summarise(judged, self._ratios(journal)) if judged else [], judged)

    def _ratios(self, journal: Journal) -> dict[str, list[float]]:
        """Measured speeds over the baseline's, of every group and seed that one run measured under both; the latest."""
        found: dict[str, list[float]] = {}
        for group in self.plan.groups:
            name = group_name(group, self.plan)
            for setting, seed in self.plan.turns:
                if setting is self.plan.settings[0]:
                    continue
                mine, its = (journal.rates(name, one, seed) for one in (setting, self.plan.settings[0]))
                if both := [run for run in mine if run in its]:
                    found.setdefault(setting.name, []).append(mine[both[-1]] / its[both[-1]])
        return found

    def _told(self, found: Findings, asker: Asker, about: dict[str, Any], judge: Judge) -> dict[str, Any]:
        items = {judged.item for judged in found.judged}
        return {
            **about,
            "complete": len(items) + len(self._outcome.too_long) == len(self.plan.items),
            "tasks": list(self.sources),
            "items": {"asked for": len(self.plan.items), "answered under every setting": len(items)},
            "too_long": sorted(item.name for item in self._outcome.too_long),
            "settings": {setting.name: setting.fields for setting in self.plan.settings},
            "seeds": list(self.plan.seeds),
            **self.plan.common,
            "clients": self.plan.clients,
            "programs": judge.described,
            "notes": asker.notes,
            "summary": [row.as_dict() for row in found.rows],
            "answers": [_told_of(judged) for judged in found.judged],
        }

    def _written(self, title: str, content: dict[str, Any], found: Findings, notes: Sequence[str]) -> None:
        rest = content["items"]["asked for"] - content["items"]["answered under every setting"]
        subset = f" (without {rest} of its items)" if rest else ""
        self.results.write("evaluation", title + subset, content, [Table(HEAD, [cells(row) for row in found.rows])])
        for note in notes:
            print(f"note: {note}", flush=True)
        if self.drawn:
            for plot in plots.draw(found.rows, self.results.folder, self.results.name):
                print(f"drawn: {plot}", flush=True)


def _told_of(judged: Judged) -> dict[str, Any]:
    """Without its text, which the journal has."""
    verdict = None if judged.verdict is None else asdict(judged.verdict)
    about = {"task": judged.item.task, "item": judged.item.name, "setting": judged.setting, "seed": judged.seed}
    reply = judged.reply
    figures = {"tokens": reply.tokens, "cut": reply.cut, "speedup": reply.speedup, **asdict(reply.speculated)}
    return {**about, "verdict": verdict, "as_baseline": reply.text == judged.baseline.text, **figures}


@asynccontextmanager
async def loaded(config: Path, clients: int) -> AsyncIterator[InProcess]:
    """BenchError if so many clients would wait for each other."""
    async with open_stack(config) as stack:
        most = stack.settings.scheduler.max_running
        if clients > most:
            raise BenchError(
                f"{clients} clients, but scheduler.max_running = {most}: ask with fewer, or set "
                f"SLIPSTREAM_SCHEDULER__MAX_RUNNING={clients}"
            )
        yield InProcess(stack)
