"""Which columns of its logits a sequence's penalties touch, kept on every device that computes with them."""

from collections import Counter

import torch
from torch import Tensor

from core.device_copy import to_device

_Where = tuple[torch.device, int]
"""A device and a vocabulary: ids beyond it have no column."""


class PenaltyColumns:
    """Of one sequence. The prompt's never change; the output's are copied once for each length of the output,
    whoever asks: the draft in all its steps, and the target."""

    def __init__(self, prompt: frozenset[int]) -> None:
        """prompt: its tokens, if prompt tokens are penalised, else none."""
        self.prompt_tokens = prompt
        self._prompt: dict[_Where, Tensor] = {}
        self._output: dict[_Where, tuple[int, Tensor, Tensor]] = {}

    def prompt(self, device: torch.device, vocab: int) -> Tensor:
        """Ids of the prompt's tokens, int64 [m]."""
        if (device, vocab) not in self._prompt:
            ids = [token for token in self.prompt_tokens if token < vocab]
            self._prompt[device, vocab] = to_device(ids, torch.int64, device)
        return self._prompt[device, vocab]

    def output(self, counted: Counter[int], length: int, device: torch.device, vocab: int) -> tuple[Tensor, Tensor]:
        """Ids of the tokens of an output of this length, int64 [m], and how often each occurred, float64 [m]."""
        known = self._output.get((device, vocab))
        if known is None or known[0] != length:
            pairs = [(token, count) for token, count in counted.items() if token < vocab]
            ids, counts = to_device(pairs, torch.float64, device).view(-1, 2).unbind(1)
            known = self._output[device, vocab] = length, ids.long(), counts
        return known[1:]
