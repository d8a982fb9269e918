"""Masks: taking out of logits rows what a grammar forbids, after penalties and bias, so that nothing undoes it.

The masks of all constrained rows go to a device in one copy, one bit a token, and are unfolded there; on the CPU
numpy unfolds them, in a fifteenth of the time that torch's shifts take.
"""

from collections.abc import Sequence as Items

import numpy as np
import torch
from torch import Tensor

from core.device_copy import to_device
from core.grammar import Grammar, explore
from core.penalties import RowGroup, barred_rows
from core.token_mask import Bits


def mask_logits(logits: Tensor, groups: Items[RowGroup]) -> None:
    """Set what their grammars forbid to -inf in the groups' rows of logits, float32 [R, V], in place.

    V may be a draft model's, narrower or wider than the grammar's vocabulary: an id that only the logits
    have is forbidden. A row whose legal tokens the logits all lack becomes -inf as a whole.
    """
    constrained = [(group, group.sequence.grammar) for group in groups if group.sequence.grammar is not None]
    if not constrained:
        return
    explore((grammar, group.drafts) for group, grammar in constrained)
    words = np.concatenate([_masks(group, grammar) for group, grammar in constrained])
    legal = _unfold(words, logits.device)
    row, width = 0, min(logits.shape[1], legal.shape[1])
    forbidden = torch.full((), -torch.inf, device=logits.device)
    for group, _ in constrained:
        rows = logits[group.rows]
        known = rows[:, :width]
        torch.where(legal[row : row + group.count, :width], known, forbidden, out=known)
        rows[:, width:] = -torch.inf
        row += group.count


def _masks(group: RowGroup, grammar: Grammar) -> Bits:
    return grammar.masks(group.drafts, group.count, barred_rows(group), group.sequence.request.end_token_ids)


def _unfold(words: Bits, device: torch.device) -> Tensor:
    """Bit b of word w as column 32 w + b: int32 [n, W] to bool [n, 32 W] on the device."""
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(np.bool_))
    lanes = torch.arange(32, dtype=torch.int32, device=device)
    return (to_device(words, torch.int32, device).unsqueeze(-1) >> lanes & 1).bool().flatten(1)
