"""Prompt lookup decoding (Saxena 2023): propose what followed the current suffix where it stood before.

Costs no forward and pays wherever an answer restates its prompt or itself: code edits, summaries,
extraction. The index lives on the sequence and grows with its verified tokens only.
"""

from collections.abc import Iterable

from core.drafters.base import DraftJob
from core.drafters.proposing import draft_freely, keep_legal
from core.ngram_index import LookupMatch, NgramIndex
from core.sequence import Sequence

_PIECE = 2048  # tokens, some 2.5 ms


def index_text(sequence: Sequence, upto: int, max_ngram: int, at_once: int = _PIECE) -> NgramIndex:
    """The sequence's index, which has taken in its first `upto` tokens at least; at_once: a new one enters no more of
    them than that, but leaves all to be entered later (`index_round`)."""
    index = sequence.ngrams
    if index is None:
        index = sequence.ngrams = NgramIndex(max_ngram)
    known = len(index)
    if not known and upto > at_once:
        index.begin_with(sequence.tokens[:upto])
    elif known < upto:
        index.extend(sequence.tokens[known:upto])
    return index


def index_round(wanted: Iterable[tuple[Sequence, int]], max_ngram: int) -> None:
    """Index each sequence's first so many tokens, as far as a round has time for it.

    32,000 tokens would take 40 ms, so a long prompt is indexed chunk by chunk as it is prefilled, and what comes at
    once, from the prefix cache, a piece a round; one piece for all sequences, the first of them first.
    """
    left = _PIECE
    for sequence, upto in wanted:
        known = 0 if sequence.ngrams is None else sequence.ngrams.entered
        index = index_text(sequence, upto, max_ngram, left)
        left = max(0, left - (index.entered - known))
        if index.behind and left:
            piece = min(left, index.behind)
            index.catch_up(piece)
            left -= piece


def index_delivered(sequences: Iterable[Sequence]) -> None:
    """Index what a round delivered, so that nobody waits for it where the next one is planned."""
    for sequence in sequences:
        if sequence.ngrams is not None and not sequence.finished:
            index_text(sequence, len(sequence.tokens), sequence.ngrams.max_ngram)


def peek(sequence: Sequence, limit: int, max_ngram: int) -> LookupMatch:
    """What lookup would propose next, at most `limit` tokens, and how long a suffix it found again.

    For planning between rounds. Its grammar, which may forbid some of them, is not asked.
    """
    return index_text(sequence, len(sequence.tokens), max_ngram).find([], limit)


def guess(wants: list[tuple[DraftJob, int]], max_ngram: int, trust: int | None = None) -> list[list[int]]:
    """What lookup finds behind each job's drafts, at most so many tokens, up to the first that its grammar forbids.

    trust: take at most so many tokens for each token of the suffix that was found again; None for no such bound.
    """
    guesses: list[tuple[DraftJob, list[int]]] = []
    for job, limit in wants:
        if limit > 0:
            index = index_text(job.sequence, len(job.sequence.tokens), max_ngram)
            found, length = index.find(job.drafts, limit)
            guesses.append((job, found if trust is None else found[: trust * length]))
        else:
            guesses.append((job, []))
    return keep_legal(guesses)


def draft_by_lookup(jobs: list[DraftJob], max_ngram: int) -> None:
    """Draft what lookup finds, and what a grammar forces before, between and behind.

    max_ngram: longest suffix looked for, in tokens; shorter ones are tried after it.
    """
    draft_freely(jobs, lambda wants: guess(wants, max_ngram))
