"""The heaviest round that a configuration allows, and about how much memory it takes beside weights and KV."""

from dataclasses import dataclass, fields
from typing import Any

import torch

from core.models.graphs import MOST_GRAPHS, MOST_ROWS
from core.models.kv_cache import kv_shape
from core.models.scratch import HeaviestRound
from core.race import SCORES_AT_ONCE
from core.runtime import Runtime
from scheduler.limits import SCORED_ROWS
from server.settings import Settings

# Rows a draft turn may have for one sequence: the guess it checks and the token before it.
_GUESS = next(int(field.default) for field in fields(Runtime) if field.name == "guess_tokens")  # type: ignore[arg-type]
_GRAPH_BYTES = 10_000_000  # of one recording: what engines that record many report
_CHOOSING_BYTES = 100  # for each score of those that are sorted together on a GPU


@dataclass(frozen=True, slots=True)
class HeaviestRounds:
    """Of the target, and of the draft model in one of its turns."""

    target: HeaviestRound
    draft: HeaviestRound

    @classmethod
    def of(cls, settings: Settings, max_context: int) -> "HeaviestRounds":
        """max_context: positions of one sequence."""
        bounds, drafts = settings.scheduler, settings.speculation.max_num_draft_tokens
        scored = min(SCORED_ROWS, bounds.prefill_chunk // 2)
        verified = bounds.max_running * (1 + drafts)
        fed = bounds.prefill_chunk + bounds.max_running * (2 + drafts)  # texts it lags behind, then what a round left
        return cls(
            HeaviestRound(bounds.round_tokens, min(bounds.round_tokens, verified + scored), drafts, max_context),
            HeaviestRound(fed, bounds.max_running * (1 + _GUESS), _GUESS, max_context),
        )


def estimated_scratch(config: Any, dtype: torch.dtype, device_type: str, heaviest: HeaviestRound) -> int:
    """Bytes, rather too many: of hidden rows in the widest part of a layer, of logits (as the model gives them, in
    float32, and kept aside for log-probabilities) and of choosing tokens from them.

    config: transformers'. dtype: of the activations. On CUDA start-up measures it (core.models.scratch).
    """
    heads, head_dim = kv_shape(config)
    hidden, inner = int(config.hidden_size), int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    inner *= int(getattr(config, "num_experts_per_tok", None) or 1)
    attention = (2 * int(config.num_attention_heads) + 2 * heads) * head_dim
    # Packed for a CPU, gate and up are columns of one product, which int8_split makes of twice the rows.
    wide = (6 if device_type == "cpu" else 3) * inner
    layer = heaviest.rows * (2 * hidden + max(wide, attention)) * dtype.itemsize
    vocab = int(config.vocab_size)
    logits = heaviest.logit_rows * vocab * (dtype.itemsize + 2 * torch.float32.itemsize)
    choosing = 0
    if device_type != "cpu":
        choosing = max(vocab, min(SCORES_AT_ONCE, heaviest.logit_rows * vocab)) * _CHOOSING_BYTES
    return layer + logits + choosing


def estimated_graphs(config: Any) -> int:
    """Bytes of recorded forwards on CUDA beside rounds, about: the logits they share, and the recordings. Start-up
    measures it (core.models.scratch)."""
    return MOST_ROWS * int(config.vocab_size) * torch.float32.itemsize + MOST_GRAPHS * _GRAPH_BYTES
