"""Token Recycling (Luo et al. 2024): propose what the target last ranked highest behind each token.

Costs no forward. What it draws on, the target's candidates in every row that was checked, rejected drafts' rows among
them, is otherwise thrown away (core/successor_table.py, which says in what it differs from the paper: one table a
sequence, and a line rather than a tree). It goes on where lookup has nothing to go by, in text that neither
restates its prompt nor itself; it is right less often than lookup where that finds a long suffix.
"""

from collections.abc import Sequence as Items

from core.candidates import Candidates
from core.drafters.base import DraftJob
from core.drafters.proposing import draft_freely, keep_legal
from core.ngram_index import LookupMatch
from core.sequence import Sequence
from core.successor_table import SuccessorTable


def draft_by_recycling(jobs: list[DraftJob]) -> None:
    """Draft what the tables say, and what a grammar forces before, between and behind."""
    draft_freely(
        jobs, lambda wants: keep_legal([(job, _walk(job.sequence, job.drafts, limit)) for job, limit in wants])
    )


def peek_recycled(sequence: Sequence, limit: int) -> LookupMatch:
    """What would be proposed next, at most `limit` tokens, and how sure its first one is (SuccessorTable.certainty).

    For planning between rounds. Its grammar, which may forbid some of them, is not asked.
    """
    return LookupMatch(_walk(sequence, [], limit), successors(sequence).certainty(sequence.tokens[-1]))


def recycle(sequence: Sequence, drafts: Items[int], rows: Items[Candidates], accepted: int) -> None:
    """Learn from the rows of a block before it is committed: row j stands behind drafts[:j].

    accepted: the leading drafts that are right. What the target says behind them counts more than what it says
    behind wrong ones, so it is taken last.
    """
    table, known = successors(sequence), (sequence.tokens[-1], *drafts)
    for index in (*range(accepted + 1, len(rows)), *range(accepted + 1)):
        table.learn(known[index], rows[index])


def successors(sequence: Sequence) -> SuccessorTable:
    """The sequence's table, begun if it has none."""
    if sequence.successors is None:
        sequence.successors = SuccessorTable(sequence.request.prompt, sequence.request.sampling)
    return sequence.successors


def _walk(sequence: Sequence, drafts: list[int], limit: int) -> list[int]:
    last = drafts[-1] if drafts else sequence.tokens[-1]
    return successors(sequence).walk(last, len(sequence.tokens) + len(drafts), limit)
