"""Log-probabilities of the prompt's own tokens, each from the row before it, gathered as the chunks go by.

Position p's row tells of token p + 1, so the first token has none and the last prompt row none to tell of:
it yields the answer's first token. A row is a vocabulary of logits wide; all that outlives the round are a
few numbers per token, kept on the sequence, so that a preempted one does not owe them again.

    prompt t0 t1 t2 t3, chunks of two
    round 1 feeds t0 t1    rows 0 1 tell of t1 t2
    round 2 feeds t2 t3    row 2 tells of t3, row 3 is verified as usual
"""

import torch
from torch import Tensor

from core.device_copy import to_device
from core.logprobs import pack_logprobs, unpack_logprobs
from core.sequence import Sequence, TokenLogprobs

_ROWS_AT_ONCE = 64  # ranking takes a few times the rows' own memory


def rows_to_score(sequence: Sequence, num_tokens: int) -> range:
    """Positions, among the next num_tokens to be fed, whose rows are owed; the last ones but perhaps one."""
    owed, begin = sequence.prompt_rows_owed, sequence.target_tokens
    return range(max(owed.start, begin), min(owed.stop, begin + num_tokens))


def score_prompt(sequence: Sequence, rows: Tensor, positions: range) -> None:
    """Keep what rows, raw logits float32 [len(positions), V], tell of the prompt's tokens behind them; all of it in
    one copy to the host."""
    num_top = sequence.request.prompt_logprobs or 0
    following = to_device(sequence.tokens[positions.start + 1 : positions.stop + 1], torch.int64, rows.device)
    pieces = [slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(rows), _ROWS_AT_ONCE)]
    tables = [pack_logprobs(rows[few], [], following[few], num_top) for few in pieces]
    for row in unpack_logprobs(torch.cat(tables).tolist()):
        sequence.prompt_logprobs.append(TokenLogprobs(row.choice, row.top))
