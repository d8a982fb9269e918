"""What prompt lookup would have been corrected in, had it drafted: told from the answer alone, without a forward.

Under strict an answer is the same whoever drafts, and lookup's drafts are a function of the text so far. So the rounds
can be gone through afterwards:

    text    p0 p1 | t0 t1 t2 t3 t4          the first token has no round; K = 3
    after t0, lookup finds  t1 x t3         t1 is right, x is not: (x, t2) is counted, the round gave t1 t2
    after t2, lookup finds  t3 t4           both right; t5 would have been the bonus
"""

from collections import Counter
from collections.abc import Sequence

from core.correction_table import pair_key
from core.ngram_index import NgramIndex


def lookup_corrections(prompt: Sequence[int], answer: Sequence[int], num_drafts: int, max_ngram: int) -> Counter[int]:
    """The first mismatch of every round: pair key -> how often. num_drafts: K. max_ngram: longest suffix looked up."""
    counts: Counter[int] = Counter()
    index = NgramIndex(max_ngram)
    index.extend((*prompt, *answer[:1]))
    position = 1  # of the token that the round's first row decides
    while position < len(answer):
        drafts = index.propose([], num_drafts)
        rest = answer[position : position + len(drafts)]
        right = next(
            (j for j, (draft, token) in enumerate(zip(drafts, rest, strict=False)) if draft != token), len(rest)
        )
        if right < len(rest):
            counts[pair_key(drafts[right], rest[right])] += 1
        index.extend(answer[position : position + right + 1])
        position += right + 1
    return counts
