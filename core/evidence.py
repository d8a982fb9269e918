"""Evidence: the facts about a round's target rows, gathered once for the whole batch.

A verifier decides on facts, not on tensors: which token the target itself takes in each row, whether
the draft is that token, and, where a loose verifier could loosen the row, how undecided the target is
there (entropy), how close the draft comes (gap, probability), and whether the request forbids loosening it
(protected). Everything about a row is a function of the row and its request.

Only rows that a loose verifier might loosen are judged: the mismatches of its requests up to the first
that is certainly rejected, which ends the block whatever stands behind it. On CUDA, where asking which
these are would cost a second copy from the device, all its draft rows are judged and those that are not
among them dropped on the host: one copy, and the same evidence.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile

import torch
from torch import Tensor

from core.block_evidence import Evidence
from core.candidates import Candidates, pack_candidates, unpack_candidates
from core.correction_table import MemorySnapshot
from core.device_copy import to_device
from core.drafters.base import drafters_of
from core.filters import block_maxima, prunes
from core.judging import judge
from core.logprobs import RowLogprobs, pack_logprobs, unpack_logprobs
from core.noise import NoiseCache
from core.penalties import RowGroup, edits
from core.sampling import choose
from core.sequence import Sequence
from core.verifiers.needs import NEEDS
from core.verifiers.registry import VERIFIERS

__all__ = ["Evidence", "RowLogprobs", "VerifyBlock", "gather_evidence"]


@dataclass(frozen=True, slots=True)
class VerifyBlock:
    """One sequence's rows of the target's logits: first_row .. first_row + len(drafts). memory: this round's,
    of the sequence's drafter. learns: whether it wants to hear of mismatches that it does not know yet."""

    sequence: Sequence
    first_row: int
    drafts: list[int]
    memory: MemorySnapshot = field(default_factory=MemorySnapshot)
    learns: bool = False


def gather_evidence(
    logits: Tensor, blocks: list[VerifyBlock], control_ids: frozenset[int], noise: NoiseCache
) -> list[Evidence]:
    """Evidence of every block, in order.

    logits: the target's, float32 [R, V], contiguous; edited in place (`choose`). control_ids: the
    model's control tokens, which are never loosened. noise: this round's, shared with the drafters.
    """
    groups = [RowGroup(b.sequence, b.first_row, b.drafts, len(b.drafts) + 1) for b in blocks]
    # Log-probabilities are of the rows as the model gave them: rows about to be edited are kept aside.
    raw = [(logits[g.rows].clone() if edits(g) else logits[g.rows]) if _wants_logprobs(g) else None for g in groups]
    tokens = choose(logits, groups, noise).tokens
    wanted = [_rows_to_judge(group, tokens, block) for group, block in zip(groups, blocks, strict=True)]

    tables = [tokens.double().unsqueeze(1)]
    for group, rows, indices in zip(groups, raw, wanted, strict=True):
        if indices:
            tables.append(_judge_block(logits, group, indices))
        if rows is not None:
            num_top = group.sequence.request.sampling.logprobs or 0
            tables.append(pack_logprobs(rows, group.drafts, tokens[group.rows], num_top))
        if _recycles(group):
            tables.append(pack_candidates(logits[group.rows]))
    host = _copy_to_host(tables)

    choices = [int(token) for [token] in next(host)]
    evidence = []
    for group, rows, indices, block in zip(groups, raw, wanted, blocks, strict=True):
        facts = dict(zip(indices, next(host), strict=True)) if indices else {}
        logprobs = None if rows is None else unpack_logprobs(next(host))
        candidates = unpack_candidates(next(host)) if _recycles(group) else None
        evidence.append(_assemble(block, choices[group.rows], facts, control_ids, logprobs, candidates))
    return evidence


def _wants_logprobs(group: RowGroup) -> bool:
    return group.sequence.request.sampling.logprobs is not None


def _recycles(group: RowGroup) -> bool:
    return "token_recycling" in drafters_of(group.sequence.request)


def _rows_to_judge(group: RowGroup, tokens: Tensor, block: VerifyBlock) -> list[int]:
    """Indices into the block's drafts: of the rows that count, or where asking which do costs a copy, of all."""
    if VERIFIERS[group.sequence.request.verifier.type].may_loosen is None:
        return []
    if group.sequence.grammar is not None:  # what a grammar rules is protected throughout
        return []
    if not prunes(tokens):
        return list(range(len(group.drafts)))
    loosenable, learned = _rows_that_count(block, tokens[group.rows].tolist())
    return loosenable if learned is None else [*loosenable, learned]


def _rows_that_count(block: VerifyBlock, choice: list[int]) -> tuple[list[int], int | None]:
    """The mismatches of a loose request's block that might be loosened, and the one behind them, certain to be
    rejected, where the memory wants to learn of it if its logits nearly tie."""
    params, drafts, memory = block.sequence.request.verifier, block.drafts, block.memory
    may_loosen = VERIFIERS[params.type].may_loosen
    assert may_loosen is not None
    native = [d == c for d, c in zip(drafts, choice, strict=False)]
    mismatches = [index for index, same in enumerate(native) if not same]
    loosenable = list(takewhile(lambda j: may_loosen(j, drafts, choice, native, params, memory), mismatches))
    learns = block.learns and NEEDS[params.type].memory and len(loosenable) < len(mismatches)
    return loosenable, mismatches[len(loosenable)] if learns else None


def _judge_block(logits: Tensor, group: RowGroup, indices: list[int]) -> Tensor:
    """`judge` of some rows of a block, float64 [len(indices), 4]."""
    request, drafts = group.sequence.request, to_device(group.drafts, torch.int64, logits.device)
    if not prunes(logits):
        return judge(logits[group.rows][:-1], None, drafts, request)
    judged = []
    for index in indices:
        row = logits[group.start + index].unsqueeze(0)
        judged.append(judge(row, block_maxima(row), drafts[index : index + 1], request))
    return torch.cat(judged)


def _copy_to_host(tables: list[Tensor]) -> Iterator[list[list[float]]]:
    """Float64 tables [rows, columns] as nested lists, in order, by a single copy from the device."""
    numbers = iter(torch.cat([table.flatten() for table in tables]).tolist())
    for table in tables:
        rows, columns = table.shape
        yield [list(islice(numbers, columns)) for _ in range(rows)]


def _assemble(
    block: VerifyBlock,
    choice: list[int],
    facts: dict[int, list[float]],
    control_ids: frozenset[int],
    logprobs: list[RowLogprobs] | None,
    candidates: list[Candidates] | None,
) -> Evidence:
    draft, sequence, request = block.drafts, block.sequence, block.sequence.request
    native = [d == c for d, c in zip(draft, choice, strict=False)]
    entropy, probability, gap = ([math.nan] * len(draft) for _ in range(3))
    protected = [True] * len(draft)
    untouchable = request.end_token_ids | control_ids
    in_span = sequence.spans.protected(draft, choice) if sequence.spans is not None and facts else [False] * len(draft)
    loosenable, learned = _rows_that_count(block, choice) if facts else ([], None)
    for index in loosenable if learned is None else [*loosenable, learned]:
        entropy[index], probability[index], gap[index], survives = facts[index]
        protected[index] = (
            in_span[index]
            or draft[index] in untouchable
            or choice[index] in untouchable
            or not gap[index] > -math.inf  # masked; NaN from a broken row is no licence either
            or not survives
            or request.sampling.logit_bias.get(draft[index], 0.0) < 0.0
            or sequence.output_len + index < request.strict_prefix
        )
    return Evidence(draft, choice, native, entropy, probability, gap, protected, logprobs, learned, candidates)
