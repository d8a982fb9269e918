"""Runtime: everything a round computes with. One per process, handed down, never global."""

import sys
from dataclasses import dataclass, field

from core.correction_memory import CorrectionMemory
from core.cost_table import CostTable
from core.drafters.base import DRAFTERS, MODEL_DRAFTERS
from core.drafters.cross_vocabulary import CrossDrafter
from core.drafters.model import DraftReach
from core.forward_costs import LiveCosts
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.token_store import TokenStore

MAX_NGRAM = 4  # tokens of the longest suffix looked up


@dataclass(slots=True)
class Runtime:
    """Models, KV blocks, correction memory and measured costs.

    target and draft share one block pool: the same block ids index both sets of KV tensors. Not so where the draft
    model has another vocabulary: across then drafts with it, in blocks of its own.
    control_ids: tokens that structure text rather than being it (EOS, turn markers, tool markers);
    no position that involves one is ever loosened. guess_tokens: longest prompt-lookup guess that
    multilevel drafting gives the draft model in one turn. max_ngram: longest suffix looked up. store: the texts that
    the datastore drafter draws on, if any.
    """

    target: ModelRunner
    pool: BlockPool
    draft: ModelRunner | None = None
    control_ids: frozenset[int] = frozenset()
    memory: CorrectionMemory = field(default_factory=CorrectionMemory)
    cost: CostTable = field(default_factory=CostTable)
    forward_costs: LiveCosts = field(default_factory=LiveCosts)
    guess_tokens: int = 6
    max_ngram: int = MAX_NGRAM
    store: TokenStore | None = None
    across: CrossDrafter | None = None

    def available_drafters(self) -> tuple[str, ...]:
        missing: tuple[str, ...] = () if self.draft is not None else MODEL_DRAFTERS
        if self.store is None:
            missing += ("datastore",)
        if self.across is not None:
            missing += ("multilevel",)  # lookup guesses in the target's tokens
        return tuple(name for name in DRAFTERS if name not in missing)

    @property
    def records(self) -> int:
        """Forwards of either model so far that were recorded as they ran."""
        return self.target.records + (0 if self.draft is None else self.draft.records)

    @property
    def draft_reach(self) -> DraftReach:
        if self.draft is None:
            return DraftReach()
        if self.across is not None:  # which tells by its own reading of a text
            return DraftReach(sys.maxsize)
        return DraftReach(self.draft.vocab_size, self.draft.loaded.max_context)
