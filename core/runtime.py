"""Runtime: everything a round computes with. One per process, handed down, never global."""

from dataclasses import dataclass, field

from core.correction_memory import CorrectionMemory
from core.cost_table import CostTable
from core.drafters.base import DRAFTERS
from core.drafters.model import DraftReach
from core.forward_costs import LiveCosts
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner

MAX_NGRAM = 4  # tokens of the longest suffix looked up


@dataclass(slots=True)
class Runtime:
    """Models, KV blocks, correction memory and measured costs.

    target and draft share one block pool: the same block ids index both sets of KV tensors.
    control_ids: tokens that structure text rather than being it (EOS, turn markers, tool markers);
    no position that involves one is ever loosened. guess_tokens: longest prompt-lookup guess that
    multilevel drafting gives the draft model in one turn. max_ngram: longest suffix looked up.
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

    def available_drafters(self) -> tuple[str, ...]:
        return DRAFTERS if self.draft is not None else ("prompt_lookup",)

    @property
    def records(self) -> int:
        """Forwards of either model so far that were recorded as they ran."""
        return self.target.records + (0 if self.draft is None else self.draft.records)

    @property
    def draft_reach(self) -> DraftReach:
        if self.draft is None:
            return DraftReach()
        return DraftReach(self.draft.vocab_size, self.draft.loaded.max_context)
