"""transformers as a peer: its worker's answers and what it says of time. llama.cpp is not installed with the tests."""

import asyncio
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.peer_process import PeerFailedError, TransformersDoor, start_llama, start_transformers
from benchmarks.peers import PEERS, PeersRun, _parsed
from benchmarks.results_file import Results
from benchmarks.transformers_worker import Generator
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


async def test_a_worker_answers_through_its_door_until_it_is_stopped(tmp_path: Path) -> None:
    folder = save_pair(tmp_path / "target")
    worker = await start_transformers(folder, folder, [], threads=1)
    try:
        assert worker.hello["dtype"] in ("float32", "bfloat16")
        door = TransformersDoor(worker, "plain", lambda message: list(message.encode()))
        group = await door.ask(["abc", "de"], {}, 6)
        assert [answer.tokens for answer in group.answers] == [6, 6]
        assert [answer.prompt_tokens for answer in group.answers] == [3, 2]
        assert group.rate is not None
    finally:
        await worker.stop()
    assert worker.process.returncode == 0


async def test_a_peer_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerFailedError, match=r"(?s)transformers ended: .*nowhere"):
        await start_transformers(tmp_path / "nowhere", None, [], threads=1)
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
    assert _parsed("llama.cpp:draft:n_max=8:p_min=0.5") == ("llama.cpp", "draft", {"n_max": 8, "p_min": 0.5})
    assert [_parsed(name)[2] for name in PEERS] == [{}] * len(PEERS)
    for wrong in ("vllm:plain", "llama.cpp:beam", "transformers:generate:n=1", ""):
        with pytest.raises(ValueError, match="unknown peer"):
            _parsed(wrong)


def test_an_unknown_peer_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run = PeersRun(tmp_path / "none.yaml", [], ["strict"], ["vllm:plain"], [1], 8, 1, 0)
    with pytest.raises(ValueError, match="unknown peer 'vllm:plain'"):
        asyncio.run(run.measure(None, Results(tmp_path, "peers")))


def test_the_faster_dtype_is_one_of_two() -> None:
    from benchmarks.transformers_worker import faster_dtype

    assert faster_dtype(random_model(3)) in (torch.float32, torch.bfloat16)
