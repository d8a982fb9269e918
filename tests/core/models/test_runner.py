"""The ragged forward computes what transformers' plain forward computes, sequence by sequence."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from core.layout import RaggedLayout, Segment
from core.models.loader import load_model
from core.models.runner import ModelRunner
from tests.core.models.tiny import FAMILIES, save_model

BLOCK, BLOCKS = 4, 64


class Replay:
    """Feeds whole sequences to a runner in rounds of mixed segments and collects the logits it returns."""

    def __init__(self, runner: ModelRunner, lengths: list[int], scattered: bool, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.runner = runner
        self.tokens = [[self.random.randrange(199) for _ in range(n)] for n in lengths]
        self.fed = [0] * len(lengths)
        ids = list(range(BLOCKS))
        if scattered:
            self.random.shuffle(ids)
        self.tables = [tuple(ids.pop(0) for _ in range(-(-n // BLOCK))) for n in lengths]
        self.logits: list[dict[int, Tensor]] = [{} for _ in lengths]

    def round(self, rows: dict[int, int], logits: dict[int, int]) -> None:
        """rows: sequence -> how many of its next tokens; logits: sequence -> of how many rows."""
        segments = [
            Segment(tuple(self.tokens[s][self.fed[s] : self.fed[s] + n]), self.fed[s], self.tables[s], logits[s])
            for s, n in rows.items()
        ]
        out = self.runner.forward(RaggedLayout.build(segments, BLOCK))
        assert out.dtype == torch.float32
        cursor = 0
        for s, n in rows.items():
            for position in range(self.fed[s] + n - logits[s], self.fed[s] + n):
                self.logits[s][position] = out[cursor]
                cursor += 1
            self.fed[s] += n
        assert cursor == len(out)


@pytest.mark.parametrize("scattered", [False, True], ids=["consecutive blocks", "scattered blocks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches_equal_the_plain_forward(family: str, scattered: bool, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, family)
    runner = ModelRunner(load_model(tmp_path, "float32"), BLOCKS, BLOCK)
    replay = Replay(runner, [23, 50, 9, 40], scattered)
    replay.round({0: 7, 1: 40}, {0: 0, 1: 1})  # a chunk with more to come; a prompt in one piece, longer than the fold
    replay.round({0: 9, 2: 8, 1: 1}, {0: 1, 2: 8, 1: 1})  # its end; another prompt, all rows; a decode row
    replay.round(
        {2: 1, 1: 5, 0: 4, 3: 40}, {2: 1, 1: 5, 0: 4, 3: 0}
    )  # decode; two verify blocks; a chunk without logits
    replay.round({0: 3, 1: 4}, {0: 2, 1: 4})
    assert runner.forwards == 4
    for tokens, logits in zip(replay.tokens, replay.logits, strict=True):
        with torch.no_grad():
            expected = oracle(torch.tensor([tokens])).logits[0]
        for position, row in logits.items():
            torch.testing.assert_close(row, expected[position], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_rejected_drafts_leave_no_trace(family: str, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, family)
    runner = ModelRunner(load_model(tmp_path, "float32"), BLOCKS, BLOCK)
    prompt, wrong, right = [5, 6, 7, 8, 9, 10, 11], [100, 101, 102, 103], [50, 51, 52]
    table = (9, 3, 5, 1)
    runner.forward(RaggedLayout.build([Segment(tuple(prompt), 0, table, 1)], BLOCK))
    runner.forward(RaggedLayout.build([Segment(tuple(wrong), 7, table, 4)], BLOCK))
    rolled_back = runner.forward(RaggedLayout.build([Segment(tuple(right), 7, table, 3)], BLOCK))
    with torch.no_grad():
        expected = oracle(torch.tensor([prompt + right])).logits[0, -3:]
    torch.testing.assert_close(rolled_back, expected, atol=5e-5, rtol=1e-4)


def test_a_sequence_computes_the_same_alone_and_in_company(tmp_path: Path) -> None:
    """Attention is bitwise the sequence's own; the linear layers may differ by ulps between row counts."""
    save_model(tmp_path, "qwen2")
    runner = ModelRunner(load_model(tmp_path, "float32"), BLOCKS, BLOCK)
    alone, company = Replay(runner, [21], True, seed=3), Replay(runner, [21, 30, 12], True, seed=3)
    company.tokens[0] = alone.tokens[0]
    alone.round({0: 16}, {0: 1})
    alone.round({0: 5}, {0: 5})
    company.round({1: 20, 0: 16}, {1: 1, 0: 1})
    company.round({2: 12, 0: 5, 1: 10}, {2: 1, 0: 5, 1: 1})
    for position, row in alone.logits[0].items():
        torch.testing.assert_close(company.logits[0][position], row, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_no_numbers_stay_their_own_sequences_affair(value: float, tmp_path: Path) -> None:
    """Neither in the block behind a sequence's last one nor in its own rolled back drafts."""
    save_model(tmp_path, "qwen2")
    loaded, broken, sound = load_model(tmp_path, "float32"), 77, 78
    embedding = loaded.model.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(embedding.weight.clone(), requires_grad=False)  # the output layer's no more
    embedding.weight[broken] = value

    def logits_beside(token: int) -> Tensor:
        runner = ModelRunner(loaded, BLOCKS, BLOCK)
        neighbour = Segment((token,) * 3, 0, (1,), 1)
        runner.forward(RaggedLayout.build([Segment((5, 6), 0, (0,), 1), neighbour], BLOCK))
        drafts = Segment((9, token), 2, (0,), 2)
        seen = [runner.forward(RaggedLayout.build([drafts, Segment((8,), 3, (1,), 1)], BLOCK))]
        seen.append(runner.forward(RaggedLayout.build([Segment((7,), 3, (0,), 1)], BLOCK)))
        assert torch.isfinite(seen[0][1:]).all() == (token == sound)
        return torch.cat([seen[0][:1], seen[1]])

    assert torch.equal(logits_beside(broken), logits_beside(sound))


def test_no_logit_rows_run_no_output_layer(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "float32")
    runner = ModelRunner(loaded, BLOCKS, BLOCK)
    calls: list[int] = []
    loaded.model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    out = runner.forward(RaggedLayout.build([Segment((1, 2, 3), 0, (0,), 0)], BLOCK))
    assert out.shape == (0, 199)
    assert calls == []


def test_logits_may_be_edited_in_place(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    runner = ModelRunner(load_model(tmp_path, "float32"), BLOCKS, BLOCK)
    out = runner.forward(RaggedLayout.build([Segment((1, 2, 3), 0, (0,), 3)], BLOCK))
    out[0, 5] = float("-inf")
    assert not out.requires_grad


@pytest.mark.parametrize("weights", ["bfloat16", "fp16", "int8_split", "int8"])
def test_other_weights_stay_near_the_plain_forward(weights: str, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, "qwen2", initializer_range=0.1)
    runner = ModelRunner(load_model(tmp_path, weights), BLOCKS, BLOCK)  # type: ignore[arg-type]
    replay = Replay(runner, [20], True)
    replay.round({0: 15}, {0: 15})
    replay.round({0: 5}, {0: 5})
    with torch.no_grad():
        expected = oracle(torch.tensor(replay.tokens)).logits[0]
    got = torch.stack([replay.logits[0][p] for p in range(20)])
    error = (got - expected).norm() / expected.norm()
    assert error < {"bfloat16": 0.05, "fp16": 0.002, "int8_split": 0.05, "int8": 0.1}[weights]


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "float32")
    with pytest.raises(ValueError, match="sdpa"):
        ModelRunner(loaded, BLOCKS, BLOCK, backend="telepathy")
    runner = ModelRunner(loaded, BLOCKS, BLOCK)
    with pytest.raises(ValueError, match="blocks of 8"):
        runner.forward(RaggedLayout.build([Segment((1,), 0, (0,), 1)], 8))


def test_blocks_that_the_cache_does_not_have_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    runner = ModelRunner(load_model(tmp_path, "fp16"), 4, 4)
    for segment in (Segment((1, 2), 0, (4,), 1), Segment((1,), 5, (9, 1), 1)):
        with pytest.raises(ValueError, match="the cache has"):
            runner.forward(RaggedLayout.build([segment], 4))
