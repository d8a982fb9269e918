"""Prompt lookup decoding (Saxena 2023): propose what followed the current suffix where it stood before.

Costs no forward and pays wherever an answer restates its prompt or itself: code edits, summaries,
extraction. The index lives on the sequence and grows with its verified tokens only.
"""

from core.drafters.base import DraftJob
from core.ngram_index import NgramIndex
from core.noise import NoiseCache
from core.sequence import Sequence


def lookup(sequence: Sequence, drafts: list[int], limit: int, max_ngram: int) -> list[int]:
    """What followed the latest earlier occurrence of the longest suffix of `tokens + drafts`; may be empty."""
    index = sequence.ngrams
    if index is None:
        index = sequence.ngrams = NgramIndex(max_ngram)
    index.extend(sequence.tokens[len(index) :])
    return index.propose(drafts, limit)


class PromptLookupDrafter:
    def __init__(self, max_ngram: int = 4) -> None:
        """max_ngram: longest suffix looked for, in tokens; shorter ones are tried after it."""
        self.max_ngram = max_ngram

    def draft(self, jobs: list[DraftJob], noise: NoiseCache) -> None:
        for job in jobs:
            job.extend(lookup(job.sequence, job.drafts, job.limit, self.max_ngram))
