"""One calibration from its prompts to the memory: load the models, answer, write."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from core.correction_memory import CorrectionMemory
from server.assembly import assemble, serving_config
from server.calibration.destination import Destination
from server.calibration.progress import progress
from server.calibration.prompts import PromptFile, in_even_order, read_prompts
from server.calibration.recorder import Recorder
from server.calibration.run import Calibration, HowToCalibrate, Outcome, calibrated_drafter
from server.live_model import LiveModel
from server.model_folders import fetch
from server.placement import Machine, place
from server.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """samples: at most so many prompts; None for all. how.concurrency sequences run at once."""

    settings: Settings
    prompts: Sequence[Path]
    samples: int | None
    destination: Destination
    how: HowToCalibrate

    async def run(self) -> tuple[Outcome, CorrectionMemory]:
        """What was done, and the memory there is now. CalibrationError, MemoryFileError, and what loading raises."""
        files = read_prompts(self.prompts)
        self.destination.check()
        settings = _for_calibration(self.settings, self.how)
        folders = await asyncio.to_thread(fetch, settings)
        recorder = Recorder()
        served = await asyncio.to_thread(assemble, settings, folders, recorder)
        model = await asyncio.to_thread(LiveModel.build, served, serving_config(settings))
        store = await asyncio.to_thread(self.destination.open, served.memory.target, served.memory.draft)
        run = store.begin_run(self._facts(files, calibrated_drafter(model, self.how.drafter)))
        samples = in_even_order(files)[: self.samples]
        known = store.known_samples(sample.id for sample in samples)
        left = [sample for sample in samples if sample.id not in known]
        calibration = Calibration(model, _decoder(served.language.tokenizer), recorder, store, run, self.how)
        await served.engine.start()
        try:
            with progress(len(known), len(samples)) as report:
                outcome = await calibration.over(left, report)
        finally:
            await served.engine.stop()
        return outcome, await asyncio.to_thread(self.destination.finish, store)

    def _facts(self, files: Sequence[PromptFile], drafter: str) -> dict[str, Any]:
        """What anyone needs to do the same again."""
        machine, models = Machine.here(self.settings), self.settings.models
        return {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "program": f"slipstream {version('slipstream')}",
            **{
                key: {"name": model.label, "weights": place(model, machine).weights}
                for key, model in zip(("target", "draft"), (models.target, models.draft), strict=True)
                if model is not None
            },
            "drafter": drafter,
            "num_draft_tokens": self.how.num_draft_tokens,
            "max_tokens": self.how.max_tokens,
            "prompts": [{"file": one.name, "sha256": one.sha256, "prompts": len(one.samples)} for one in files],
        }


def _for_calibration(settings: Settings, how: HowToCalibrate) -> Settings:
    """Room for so many sequences with whole blocks of drafts, and no memory: strict asks none."""
    bounds = settings.scheduler
    rows = how.concurrency * (1 + how.num_draft_tokens) + bounds.prefill_chunk
    scheduler = {"max_running": how.concurrency, "round_tokens": max(bounds.round_tokens, rows)}
    return settings.model_copy(
        update={
            "scheduler": bounds.model_copy(update=scheduler),
            "speculation": settings.speculation.model_copy(update={"correction_memory": None}),
        }
    )


def _decoder(tokenizer: Any) -> Any:
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))
