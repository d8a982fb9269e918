"""transformers as a peer: its worker's answers and what it says of time. llama.cpp is not installed with the tests."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.interleave import units
from benchmarks.peer_names import MODES, PEERS, Peer, choose, parse
from benchmarks.peer_order import trials
from benchmarks.peer_process import PeerFailedError, TransformersDoor, start_llama, start_transformers
from benchmarks.peers import PeersRun, _shifts
from benchmarks.results_file import Results
from benchmarks.transformers_worker import FastestGenerator, Generator, token_seconds
from tests.server.test_assembly import save_pair
from tests.tiny import EOS, noisy_copy, random_model, random_prompt


def test_a_padded_batch_answers_as_each_prompt_alone_and_ends_at_its_own_end() -> None:
    target = random_model(3)
    prompts = [random_prompt(seed, length) for seed, length in ((1, 9), (2, 4), (3, 6))]
    alone = Generator(target, None, [])
    whole = [alone.answers("plain", [prompt], 12)[0]["tokens"] for prompt in prompts]
    end = whole[0][4]
    together = Generator(target, None, [end]).answers("plain", prompts, 12)
    for answer, tokens in zip(together, whole, strict=True):
        cut = tokens[: tokens.index(end) + 1] if end in tokens else tokens
        assert answer["tokens"] == cut
        assert len(answer["arrivals"]) == len(cut)
        assert answer["first"] == 1


@pytest.mark.parametrize("mode", ["assisted", "lookup"])
def test_the_speculative_modes_give_the_plain_tokens_in_fewer_arrivals(mode: str) -> None:
    target = random_model(3)
    prompt = random_prompt(1, 9) * 3
    generator = Generator(target, noisy_copy(target, 0.01), [EOS])
    (plain,) = generator.answers("plain", [prompt], 40)
    (answer,) = generator.answers(mode, [prompt], 40)
    assert answer["tokens"] == plain["tokens"]
    assert 0 < len(answer["arrivals"]) < len(plain["arrivals"])
    assert answer["arrivals"] == sorted(answer["arrivals"])
    assert answer["asked"] < answer["arrivals"][0]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown mode 'beam'"):
        Generator(random_model(3), None, []).answers("beam", [[1]], 4)


TRIALS = [
    {"mode": "plain", "prompts": [[5, 6, 7], [8, 9, 10]]},
    {"mode": "assisted", "prompts": [[5, 6, 7]]},
]


async def test_a_worker_answers_through_its_door_until_it_is_stopped(tmp_path: Path) -> None:
    folder = save_pair(tmp_path / "target")
    worker = await start_transformers(folder, folder, [], 1, TRIALS)
    try:
        assert worker.hello["dtype"].keys() == {"plain, 2 at once", "assisted, 1 at once"}
        for kind, seconds in worker.hello["token_seconds"].items():
            assert seconds.keys() == {"float32", "bfloat16"}
            assert seconds[worker.hello["dtype"][kind]] == min(seconds.values()) > 0
        door = TransformersDoor(worker, "plain", lambda message: list(message.encode()), str)
        group = await door.ask(["abc", "de"], {}, 6)
        assert [answer.tokens for answer in group.answers] == [6, 6]
        assert [answer.prompt_tokens for answer in group.answers] == [3, 2]
        assert all(isinstance(answer.content, str) for answer in group.answers)
        assert group.rate is not None
    finally:
        await worker.stop()
    assert worker.process.returncode == 0


def test_each_mode_runs_in_the_dtype_that_was_faster_for_it() -> None:
    one, other = (Generator(random_model(seed), None, []) for seed in (3, 4))
    prompt = random_prompt(1, 9)
    mine, its = (generator.answers("plain", [prompt], 8)[0]["tokens"] for generator in (one, other))
    assert mine != its
    seconds = {
        ("plain", 1): {"float32": 2.0, "bfloat16": 1.0},
        ("plain", 2): {"float32": 1.0, "bfloat16": 2.0},
        ("lookup", 1): {"float32": 1.0, "bfloat16": 2.0},
    }
    chooser = FastestGenerator({"float32": one, "bfloat16": other}, seconds)
    assert chooser.answers("plain", [prompt], 8)[0]["tokens"] == its
    assert [answer["tokens"] for answer in chooser.answers("plain", [prompt, prompt], 8)] == [mine, mine]
    assert [answer["tokens"] for answer in chooser.answers("lookup", [prompt, prompt], 8)] == [mine, mine]
    with pytest.raises(ValueError, match="was not tried"):
        chooser.answers("plain", [prompt] * 3, 8)


def test_a_trial_measures_tokens_behind_the_first_round() -> None:
    class Fixed(Generator):
        def answers(self, mode: str, prompts: Any, max_tokens: int) -> list[dict[str, Any]]:
            tokens = [1] * max_tokens
            arrivals = [[1.0, 1.0 + max_tokens], [2.0, 3.0]]
            return [{"tokens": tokens, "asked": 0.0, "arrivals": times, "first": 1} for times in arrivals]

    assert token_seconds(Fixed(None, None, []), "plain", [[1], [2]]) == 24 / 46


async def test_a_peer_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerFailedError, match=r"(?s)transformers ended: .*nowhere"):
        await start_transformers(tmp_path / "nowhere", None, [], 1, TRIALS)
    order = {"model": "x.gguf", "draft": None, "mode": "plain", "options": {}, "slots": 1, "context": 64, "threads": 1}
    with pytest.raises(PeerFailedError, match=r"has no xllamacpp: pip install 'slipstream\[peers\]'"):
        # -S: without site-packages, whether or not somebody has installed it there.
        await start_llama(str(_isolated(tmp_path)), order)


def _isolated(tmp_path: Path) -> Path:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    script.chmod(0o755)
    return script


def test_peers_are_named_with_options() -> None:
    assert parse("llama.cpp:draft:n_max=8:p_min=0.5").options == {"n_max": 8, "p_min": 0.5}
    assert parse("transformers:lookup") == Peer("transformers:lookup", "transformers", "lookup", {})
    chosen, missing = choose([], draft=True)
    assert [peer.name for peer in chosen] == list(PEERS)
    assert missing == []
    assert {f"{peer.engine}:{peer.mode}" for peer in chosen} == set(MODES)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vllm:plain", "unknown peer 'vllm:plain'; known are transformers:generate, "),
        ("llama.cpp:beam", "unknown peer"),
        ("", "unknown peer ''"),
        ("transformers:generate:n=1", "transformers:generate has no options, not 'n'"),
        ("llama.cpp:plain:n_max=4", "llama.cpp:plain has no options, not 'n_max'"),
        ("llama.cpp:draft:size_n=4", "llama.cpp:draft has the options n_max, n_min, p_min, p_split, not 'size_n'"),
        ("llama.cpp:draft:n_max=many", "n_max should be a number, got 'many'"),
        ("llama.cpp:draft:n_max", "n_max should be a number, got ''"),
    ],
)
def test_a_peer_that_means_nothing_is_refused(name: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse(name)


@pytest.mark.parametrize("name", ["transformers:assisted", "llama.cpp:draft:n_max=8"])
def test_peers_with_a_draft_model_need_one(name: str) -> None:
    with pytest.raises(BenchError, match=f"{name} needs a draft model"):
        choose(["llama.cpp:plain", name], draft=False)
    chosen, missing = choose([], draft=False)
    assert name in {peer.name for peer in missing}
    assert not any(peer.needs_draft for peer in chosen)


def run_of(tmp_path: Path, peers: list[str], verifiers: list[str]) -> PeersRun:
    config = tmp_path / "none.yaml"
    return PeersRun(config, [], verifiers, peers, [1], 8, groups=1, passes=1, at_once=4, port=None)


def test_an_unknown_peer_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="unknown peer 'vllm:plain'"):
        asyncio.run(run_of(tmp_path, ["vllm:plain"], ["strict"]).measure(None, Results(tmp_path, "peers")))


def test_peers_come_in_shifts_of_so_many_processes() -> None:
    shifts = _shifts([parse(name) for name in PEERS], 6)
    assert [peer.engine for peer in shifts[0]] == ["transformers"] * 3
    assert all(1 <= len(shift) <= 6 for shift in shifts[1:])
    assert [peer.name for shift in shifts for peer in shift] == list(PEERS)


def test_dtypes_are_tried_on_the_sizes_that_are_measured() -> None:
    prompts = [Prompt("a", str(i), "x" * (i + 1)) for i in range(4)]
    work = units(prompts, [1, 4], groups=1)
    found = trials([parse("transformers:generate"), parse("transformers:lookup")], work, lambda text: [len(text)])
    assert found == [
        {"mode": "plain", "prompts": [[1]]},
        {"mode": "plain", "prompts": [[1], [2], [3], [4]]},
        {"mode": "lookup", "prompts": [[1]]},
    ]


async def test_engines_are_compared_from_configuration_to_table(tmp_path: Path) -> None:
    """transformers alone: llama.cpp is not installed with the tests."""
    folder = save_pair(tmp_path / "target")
    models = {"target": {"source": str(folder), "device": "cpu"}, "draft": {"source": "target", "device": "cpu"}}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"models": models, "kv_cache": {"tokens": 4096}, "max_context": 256}))
    prompts = [Prompt("a", str(i), text) for i, text in enumerate(("one two", "three"))]
    run = PeersRun(config, prompts, ["off", "strict"], ["transformers:generate"], [1, 2], 6, 1, 2, 4, None)
    written = json.loads((await run.measure(None, Results(tmp_path, "peers"))).read_text())
    assert len(written["runs"]) == 3 * 3 * 2  # units, runners, passes
    assert all(len(one["texts"]) == one["concurrency"] for one in written["runs"])
    rows = {(row["runner"], row["concurrency"]): row for row in written["summary"]}
    assert rows["ours:strict", 1]["compared"] == rows["ours:strict", 1]["equal"] == 4
    theirs = rows["transformers:generate", 2]
    assert theirs["samples"] == 2
    assert theirs["tokens"] > 0
    assert theirs["compared"] == 4
    assert not (tmp_path / "peers.json.partial").exists()
