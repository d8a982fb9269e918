"""How a round's rows are shared out: pure functions over jobs, no blocks yet.

Worked example, round_tokens = 16: three decoding sequences in turn order, `strict` with K = 10, `fly`
with K = 7, `off`. First everyone's least share: 1 row, 1 + 7 rows (a loose block is never cut), 1 row.
Of the 6 rows left the strict one gets 6 as drafts instead of its 10. Had 8 rows been all, fly would
not have fitted behind strict and would wait; next round it is first in turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from core.round_plan import RoundItem
from scheduler.job import Job

BACKGROUND_CHUNK = 16  # of a round's chunk, at most: whoever arrives meanwhile waits for that round


@dataclass(slots=True, eq=False)
class Share:
    """What one job gets of a round; becomes a RoundItem. prefill: it feeds prompt or recomputed tokens, and each
    takes token_cost of the round's chunk."""

    job: Job
    num_tokens: int
    num_drafts: int
    prefill: bool
    token_cost: int = 1

    @property
    def rows(self) -> int:
        return self.num_tokens + self.num_drafts

    @property
    def item(self) -> RoundItem:
        wish = self.job.drafting.wish
        if wish is None or not self.num_drafts:
            return RoundItem(self.job.sequence, self.num_tokens, self.num_drafts)
        caution = wish.min_reach, wish.min_guessed_reach, wish.doubt, wish.forgiving
        return RoundItem(self.job.sequence, self.num_tokens, self.num_drafts, wish.drafter, *caution)

    @property
    def chunk_cost(self) -> int:
        return self.num_tokens * self.token_cost


def wanted_drafts(job: Job, max_context: int) -> int:
    """K of the job's next verification round, before any cut.

    Where the length is adaptive, what draft_planner.py found. Otherwise a loose one always wants all it may have: its
    settings, its own length and the server's max_context alone decide (ALGORITHMS.md 2). For a strict one, drafts
    beyond max_tokens would be waste, and the planner may have cut some. While the draft model has to catch up, none; a
    loose one then has no verification round at all.
    """
    sequence = job.sequence
    request = sequence.request
    if request.drafter == "none" or sequence.output_len == 0 or job.drafts_wait:
        return 0
    if job.drafting.wish is not None:
        return job.drafting.wish.num_drafts
    wanted = min(request.num_draft_tokens, max_context - len(sequence.tokens))
    if job.drafting.most is not None:
        wanted = min(wanted, job.drafting.most)
    if not job.loose:
        wanted = min(wanted, request.max_tokens - sequence.output_len - 1)
    return max(wanted, 0)


def share_decode_rows(jobs: Iterable[Job], rows: int, max_context: int) -> list[Share]:
    """Shares of decoding jobs within `rows`; those that were left out longest come first.

    Everyone's least share comes before anyone's optional drafts. Whoever does not fit waits, is first
    next time, and so never waits twice for the sake of the same neighbours.
    """
    shares: list[Share] = []
    cuttable: list[tuple[int, Share]] = []
    for job in sorted(jobs, key=attrgetter("last_turn", "rank")):
        if job.loose and (job.drafts_wait or job.drafting.hold):
            continue
        wanted = wanted_drafts(job, max_context)
        share = Share(job, 1, wanted if job.loose else 0, prefill=False)
        if share.rows > rows:
            continue
        rows -= share.rows
        shares.append(share)
        if wanted > share.num_drafts:
            cuttable.append((wanted, share))
    # Equal parts; whoever wants less than its part leaves the rest to the others.
    cuttable.sort(key=lambda entry: entry[0])
    for index, (wanted, share) in enumerate(cuttable):
        share.num_drafts = min(wanted, rows // (len(cuttable) - index))
        rows -= share.num_drafts
    return shares


def share_prefill_rows(job: Job, chunk: int, rows: int, max_context: int, scored_cost: int) -> Share | None:
    """The next chunk of the job's known tokens, at most `chunk` of them, with its drafts in `rows` rows.

    A token whose row of logits is owed counts as scored_cost of them: such rows are as wide as the vocabulary.
    Background work keeps to small rounds.

    A preempted sequence drafts in the round that ends its re-prefill, as it would have drafted then had
    it never been preempted. If a loose block does not fit behind the chunk, or its drafts have to wait,
    one token is held back for a later round.
    """
    pending = job.sequence.pending
    if job.sequence.request.background:
        chunk = min(chunk, BACKGROUND_CHUNK)
    token_cost = scored_cost if job.sequence.prompt_rows_owed else 1
    num_tokens = min(pending, -(-chunk // token_cost), rows)
    if num_tokens < 1:
        return None
    num_drafts = 0
    if num_tokens == pending:
        num_drafts = wanted_drafts(job, max_context)
        fits = num_tokens + num_drafts <= rows
        if job.loose:
            if job.drafts_wait or not fits:
                num_tokens, num_drafts = num_tokens - 1, 0
        elif not fits:
            num_drafts = rows - num_tokens
    return Share(job, num_tokens, num_drafts, prefill=True, token_cost=token_cost) if num_tokens else None


def total_rows(shares: Sequence[Share]) -> int:
    return sum(share.rows for share in shares)
