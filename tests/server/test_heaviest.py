from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from core.models.scratch import HeaviestRound
from server.heaviest import HeaviestRounds, estimated_scratch
from server.settings import Settings


def rounds(**sections: Any) -> HeaviestRounds:
    return HeaviestRounds.of(Settings.model_validate({"models": {"target": {"source": "./t"}}, **sections}), 4096)


def config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(
        **{
            "vocab_size": 1_000_000,
            "hidden_size": 64,
            "intermediate_size": 1000,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **changes,
        }
    )


def test_the_target_verifies_everybodys_longest_block_and_scores_prompts_besides() -> None:
    found = rounds(
        scheduler={"max_running": 4, "prefill_chunk": 100, "round_tokens": 300},
        speculation={"num_draft_tokens": 3, "max_num_draft_tokens": 9},
    )
    assert found.target == HeaviestRound(rows=300, logit_rows=4 * 10 + 50, num_drafts=9, max_context=4096)


def test_no_more_logits_than_a_round_has_rows() -> None:
    found = rounds(scheduler={"max_running": 100, "prefill_chunk": 50, "round_tokens": 60})
    assert (found.target.rows, found.target.logit_rows) == (60, 60)


def test_the_draft_reads_what_it_lags_behind_and_checks_one_guess_for_each_sequence() -> None:
    found = rounds(
        scheduler={"max_running": 4, "prefill_chunk": 100, "round_tokens": 300},
        speculation={"max_num_draft_tokens": 9},
    )
    assert found.draft == HeaviestRound(rows=100 + 4 * 11, logit_rows=4 * 7, num_drafts=6, max_context=4096)


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    # 10 rows of 2 x 64 + 3 x 1000 numbers, on a CPU 6 x 1000; 5 rows of a million logits, as they come and twice in
    # float32; on a GPU 100 bytes for each score of 4 rows, as many as are looked at together
    [
        ("cpu", torch.float32, 10 * 6128 * 4 + 5_000_000 * 12),
        ("cpu", torch.bfloat16, 10 * 6128 * 2 + 5_000_000 * 10),
        ("cuda", torch.bfloat16, 10 * 3128 * 2 + 5_000_000 * 10 + 100 * 2**22),
    ],
)
def test_a_round_takes_hidden_rows_logits_and_on_a_gpu_whole_rows_of_scores(
    device: str, dtype: torch.dtype, expected: int
) -> None:
    assert estimated_scratch(config(), dtype, device, HeaviestRound(10, 5, 4, 100)) == expected


def test_one_row_is_looked_at_however_long_it_is() -> None:
    one = HeaviestRound(1, 1, 0, 100)
    longer, shorter = config(vocab_size=10_000_000), config(vocab_size=1000)
    assert estimated_scratch(longer, torch.bfloat16, "cuda", one) > 100 * 10_000_000
    assert estimated_scratch(shorter, torch.bfloat16, "cuda", one) < 200 * 1000
