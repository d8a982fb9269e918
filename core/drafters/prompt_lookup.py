"""Prompt lookup decoding (Saxena 2023): propose what followed the current suffix where it stood before.

Costs no forward and pays wherever an answer restates its prompt or itself: code edits, summaries,
extraction. The index lives on the sequence and grows with its verified tokens only.
"""

from core.drafters.base import DraftJob, legal_part
from core.ngram_index import LookupMatch, NgramIndex
from core.sequence import Sequence

_PIECE = 2048


def index_text(sequence: Sequence, upto: int, max_ngram: int) -> NgramIndex:
    """The sequence's index, grown over its first `upto` tokens at least.

    32,000 tokens at once would take 40 ms, so a long prompt is indexed chunk by chunk as it is prefilled, and what
    comes at once, from the prefix cache, a piece a round (`index_piece`).
    """
    index = sequence.ngrams
    if index is None:
        index = sequence.ngrams = NgramIndex(max_ngram)
    if not len(index) and upto > _PIECE:
        index.begin_with(sequence.tokens[:upto])
    elif len(index) < upto:
        index.extend(sequence.tokens[len(index) : upto])
    return index


def index_piece(sequence: Sequence, upto: int, max_ngram: int) -> None:
    """A round's part in it, which takes some 2.5 ms at most."""
    index = index_text(sequence, upto, max_ngram)
    if index.behind:
        index.catch_up(_PIECE)


def peek(sequence: Sequence, limit: int, max_ngram: int) -> LookupMatch:
    """What lookup would propose next, at most `limit` tokens, and how long a suffix it found again.

    For planning between rounds. Its grammar, which may forbid some of them, is not asked.
    """
    return index_text(sequence, len(sequence.tokens), max_ngram).find([], limit)


def guess(job: DraftJob, limit: int, max_ngram: int, trust: int | None = None) -> list[int]:
    """What lookup finds behind the job's drafts, up to the first token that the grammar forbids.

    trust: take at most so many tokens for each token of the suffix that was found again; None for no such bound.
    """
    found, length = index_text(job.sequence, len(job.sequence.tokens), max_ngram).find(job.drafts, limit)
    if trust is not None:
        found = found[: trust * length]
    grammar = job.sequence.grammar
    return found if grammar is None or not found else legal_part(grammar, job.drafts, found)


def draft_by_lookup(jobs: list[DraftJob], max_ngram: int) -> None:
    """Draft what lookup finds, and what a grammar forces before, between and behind.

    max_ngram: longest suffix looked for, in tokens; shorter ones are tried after it.
    """
    for job in jobs:
        more = True
        while more and job.force():
            found = guess(job, job.limit - len(job.drafts), max_ngram)
            more = bool(found) and job.extend(found) and job.sequence.grammar is not None
