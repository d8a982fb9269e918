"""REST (He et al. 2023): propose what most often followed the current suffix in the server's own files.

Costs no forward, like prompt lookup, and pays where answers resemble texts that are at hand: a team's code, manuals,
earlier answers. The store (core/token_store.py) is frozen at start-up, so what it proposes is a function of the text so
far and stays the same for everybody; drafts here are a line, of which the paper makes a tree.
"""

from core.drafters.base import DraftJob
from core.drafters.proposing import draft_freely, keep_legal
from core.ngram_index import LookupMatch
from core.sequence import Sequence
from core.token_store import TokenStore


def draft_from_store(jobs: list[DraftJob], store: TokenStore) -> None:
    """Draft what the store has, and what a grammar forces before, between and behind."""
    draft_freely(
        jobs, lambda wants: keep_legal([(job, find(store, job.sequence, job.drafts, n).tokens) for job, n in wants])
    )


def find(store: TokenStore, sequence: Sequence, drafts: list[int], limit: int) -> LookupMatch:
    """What the store has behind the sequence and the drafts, at most `limit` tokens, and how long a suffix it found.

    Its grammar, which may forbid some of them, is not asked.
    """
    most = store.max_match
    return store.find([*sequence.tokens[-most:], *drafts[-most:]], limit)
