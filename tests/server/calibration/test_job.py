"""A whole calibration of a tiny pair: what it counts, where it puts it, and that nothing counts twice."""

import asyncio
import functools
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from core.correction_memory import CorrectionMemory, MemoryFileError
from core.correction_table import pair_key
from server.calibration.destination import Destination
from server.calibration.errors import CalibrationError
from server.calibration.job import Job
from server.calibration.run import Calibration, HowToCalibrate
from server.memory_store.place import MemoryPlace
from server.settings_loading import load_settings
from tests.naive import plain_logits
from tests.server import serving
from tests.server.test_assembly import save_pair
from tests.tiny import noisy_copy

K, TOKENS = 4, 24
PROMPTS = [f"the quick brown fox number {number}" for number in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of which the draft is a noisy copy, and prompts."""
    folder = tmp_path_factory.mktemp("pair")
    target = save_pair(folder / "target")
    noisy_copy(AutoModelForCausalLM.from_pretrained(target), scale=0.3).save_pretrained(folder / "draft")
    serving.tokenizer().save_pretrained(folder / "draft")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return folder


def job(folder: Path, place: str, *, resume: bool = False, merge: bool = False, **changes: object) -> Job:
    config = folder / "config.yaml"
    config.write_text("{}")
    models = {
        name: {"source": str(folder / name), "device": "cpu", "weights": "float32"} for name in ("target", "draft")
    }
    settings = load_settings(config, {"models": models, "kv_cache": {"tokens": 1024}})
    how = HowToCalibrate(num_draft_tokens=K, max_tokens=TOKENS, concurrency=3, max_ngram=4)
    whole = Job(settings, [folder / "prompts.jsonl"], None, Destination(MemoryPlace.of(place), resume, merge), how)
    return replace(whole, **changes)  # type: ignore[arg-type]


def held(memory: CorrectionMemory, proposer: str = "model") -> dict[int, int]:
    table = memory.snapshot(proposer).fold()
    return dict(zip(table.keys.tolist(), table.occurrences.tolist(), strict=True))


@functools.cache
def slow_counts(folder: Path) -> tuple[Counter[int], int]:
    """Token by token with whole forwards: the first mismatch of every round of K drafts; and how many tokens."""
    target, draft = (AutoModelForCausalLM.from_pretrained(folder / name).eval() for name in ("target", "draft"))
    counts: Counter[int] = Counter()
    delivered = 0
    for text in PROMPTS:
        chat = [{"role": "user", "content": text}]
        tokenizer = serving.tokenizer()
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(rendered, add_special_tokens=False)
        answer = greedy(target, prompt)
        guesses = plain_logits(draft, prompt + answer).argmax(-1).tolist()[len(prompt) - 1 :]
        delivered += len(answer)
        position = 1
        while position < len(answer):
            # The last token that max_tokens leaves is never drafted: a row without a draft gives it as well.
            block = range(position, min(position + K, len(answer), TOKENS - 1))
            wrong = next((at for at in block if guesses[at] != answer[at]), None)
            if wrong is not None:
                counts[pair_key(guesses[wrong], answer[wrong])] += 1
            position = position + K + 1 if wrong is None else wrong + 1
    return counts, delivered


def greedy(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    answer: list[int] = []
    while len(answer) < TOKENS and not serving.eos_ids().intersection(answer):
        answer.append(int(plain_logits(model, prompt + answer)[-1].argmax()))
    return answer


async def test_it_counts_the_first_mismatch_of_every_round_and_says_what_it_was_made_of(
    folder: Path, tmp_path: Path
) -> None:
    outcome, memory = await job(folder, f"{tmp_path}/m.npz").run()
    expected, tokens = slow_counts(folder)
    assert outcome.counted == len(PROMPTS)
    assert held(memory) == dict(expected) != {}
    assert memory.snapshot("prompt_lookup").num_pairs > 0
    for proposer in ("model", "prompt_lookup"):
        table = memory.snapshot(proposer)
        assert (table.calibrated_samples, table.calibrated_tokens) == (len(PROMPTS), tokens)
    (run,) = memory.origin.runs
    assert run["target"] == {"name": "target", "weights": "float32"}
    assert run["draft"] == {"name": "draft", "weights": "float32"}
    assert (run["drafter"], run["num_draft_tokens"], run["max_tokens"]) == ("multilevel", K, TOKENS)
    assert (run["samples"], run["tokens"]) == (len(PROMPTS), tokens)
    (prompts,) = run["prompts"]  # type: ignore[misc]
    assert (prompts["file"], prompts["prompts"]) == ("prompts.jsonl", len(PROMPTS))
    assert os.listdir(tmp_path) == ["m.npz"]
    assert held(CorrectionMemory.load(tmp_path / "m.npz")) == held(memory)


async def test_drafts_of_another_drafter_are_counted_as_its_own(folder: Path, tmp_path: Path) -> None:
    whole = job(folder, f"{tmp_path}/m.npz")
    _, memory = await replace(whole, how=replace(whole.how, drafter="token_recycling")).run()
    assert memory.snapshot("token_recycling").num_pairs > 0
    for proposer in ("model", "prompt_lookup", "datastore"):
        assert memory.snapshot(proposer).num_pairs == memory.snapshot(proposer).calibrated_samples == 0
    assert CorrectionMemory.load(tmp_path / "m.npz").snapshot("token_recycling").num_pairs > 0
    other = job(folder, f"{tmp_path}/other.npz")
    other = replace(other, how=replace(other.how, drafter="datastore"))
    with pytest.raises(CalibrationError, match=r"^no drafter 'datastore' with this configuration; allowed: auto, m"):
        await other.run()


async def test_an_interrupted_run_goes_on_where_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.npz"
    one = Calibration._one

    async def one_until_interrupted(self: Calibration, sample: object, outcome: object) -> None:
        await one(self, sample, outcome)  # type: ignore[arg-type]
        if outcome.counted == 2:  # type: ignore[attr-defined]
            running.cancel()

    monkeypatch.setattr(Calibration, "_one", one_until_interrupted)
    running = asyncio.ensure_future(job(folder, str(file)).run())
    with pytest.raises(asyncio.CancelledError):
        await running
    monkeypatch.undo()
    assert not file.exists()
    with pytest.raises(CalibrationError, match="--resume goes on"):
        await job(folder, str(file)).run()
    outcome, memory = await job(folder, str(file), resume=True).run()
    assert 0 < outcome.counted <= len(PROMPTS) - 2
    assert held(memory) == dict(slow_counts(folder)[0])
    assert len(memory.origin.runs) == 1


@pytest.mark.parametrize("place", ["%s/m.npz", "sqlite:///%s/m.db"])
async def test_merging_counts_only_prompts_that_are_new(folder: Path, tmp_path: Path, place: str) -> None:
    place = place.replace("%s", str(tmp_path))
    outcome, _ = await job(folder, place, samples=2).run()
    assert outcome.counted == 2
    with pytest.raises(CalibrationError, match="--merge adds to it"):
        await job(folder, place).run()
    outcome, memory = await job(folder, place, merge=True).run()
    assert outcome.counted == len(PROMPTS) - 2
    assert held(memory) == dict(slow_counts(folder)[0])
    outcome, again = await job(folder, place, merge=True).run()
    assert outcome.counted == 0
    assert held(again) == held(memory)


async def test_a_memory_of_other_models_is_not_added_to(folder: Path, tmp_path: Path) -> None:
    CorrectionMemory("other", "models").save(tmp_path / "m.npz")
    with pytest.raises(MemoryFileError, match="of target 'other'"):
        await job(folder, f"{tmp_path}/m.npz", merge=True).run()


async def test_prompts_without_room_for_an_answer_are_told_and_turns_see_the_answers_before(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text(
        json.dumps({"turns": ["the sea", "and the dog", "x" * 4000]}) + "\n" + json.dumps("y" * 4000) + "\n"
    )
    outcome, memory = await job(folder, f"{tmp_path}/m.npz", prompts=[file]).run()
    assert (outcome.counted, outcome.too_long) == (1, 1)
    assert TOKENS < memory.snapshot("model").calibrated_tokens <= 2 * TOKENS


async def test_no_prompt_is_begun_when_time_is_up(folder: Path, tmp_path: Path) -> None:
    whole = job(folder, f"{tmp_path}/m.npz")
    outcome, memory = await replace(whole, how=replace(whole.how, seconds=0.0)).run()
    assert (outcome.counted, outcome.left) == (0, len(PROMPTS))
    assert held(memory) == {}
