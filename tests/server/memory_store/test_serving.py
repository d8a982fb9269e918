"""Servers with a memory that learns: their engines teach it, and what they taught serves others."""

from pathlib import Path

from core.correction_learning import LearningMemory
from core.verifiers.params import CsdParams
from scheduler.events import FinishedEvent
from server.assembly import assemble
from server.memory_store import MemoryStore
from server.model_folders import Folders
from server.serving_config import Served
from tests.server.test_assembly import save_pair, settings_for
from tests.tiny import make_request

LOOSE = CsdParams(ratio=1e-6, frequency_threshold=2)


def assembled(tmp_path: Path, **memory: object) -> Served:
    target, draft = tmp_path / "target", tmp_path / "draft"
    if not target.exists():
        save_pair(target, seed=0)
        save_pair(draft, seed=1)
    settings = settings_for(target, draft, speculation={"correction_memory": memory})
    return assemble(settings, Folders(target, draft))


async def answers(served: Served, number: int) -> int:
    """Ask csd a few times; how many tokens were loosened."""
    loosened = 0
    for index in range(number):
        request = make_request(
            (5 + index, 6, 7), verifier=LOOSE, drafter="model", num_draft_tokens=4, max_tokens=16, ignore_eos=True
        )
        async with served.engine.submit(request) as stream:
            async for event in stream:
                if isinstance(event, FinishedEvent):
                    loosened += sum(event.counters.loosened.values())
    return loosened


async def test_two_servers_teach_one_memory_that_a_third_serves_from(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    servers = [assembled(tmp_path, source=url, dynamic=True, sync_seconds=0.05) for _ in range(2)]
    for served in servers:
        assert served.exchange is not None
        assert isinstance(served.memory, LearningMemory)
        assert "multilevel" in served.calibrated_drafters, "it may come to hold pairs"
        await served.engine.start()
        served.exchange.start()
    for served in servers:
        await answers(served, 4)
    for served in servers:
        await served.engine.stop()
        assert served.exchange is not None
        served.exchange.stop()
    taught = MemoryStore(url).load().snapshot("model")
    assert taught.num_pairs > 0

    third = assembled(tmp_path, source=url)
    assert third.exchange is None
    assert third.memory.snapshot("model").fold().occurrences.tolist() == taught.occurrences.tolist()
    await third.engine.start()
    first, again = await answers(third, 4), await answers(third, 4)
    await third.engine.stop()
    assert first == again > 0, "a memory that does not learn answers the same again"
