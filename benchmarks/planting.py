"""A wrong token planted in front of the target's own words: the worst block of drafts for a rule that looks behind it.

    context   ... The capital of France is
    right     Paris            the target's choice; else there is nothing to plant
    drafts    Lyon , and it is known for ...      what the target itself, greedily, goes on with after Lyon

A model that goes on fluently from what it would not have said agrees with every draft behind the wrong one, so FLy's
window sees nothing amiss: only the entropy gate is left. Rows, evidence and verdicts are those of the serving code.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from torch import Tensor

from benchmarks.planted_items import Fork
from core.correction_table import MemorySnapshot
from core.evidence import Evidence, VerifyBlock, gather_evidence
from core.layout import RaggedLayout, Segment
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.provenance import Provenance
from core.sequence import GenerationRequest, Sequence
from core.verifiers.registry import loosen, resolve_block


class Reader:
    """A target that reads one text at a time, in the first blocks of its cache: nobody else may be using it."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def rows(self, tokens: Tokens[int], known: int, count: int) -> Tensor:
        """Logits of the text's last rows, float32 [count, V]; known: how many tokens have been read before."""
        size = self._runner.block_size
        blocks = tuple(range(-(-len(tokens) // size)))
        return self._runner.forward(RaggedLayout.build([Segment(tuple(tokens[known:]), known, blocks, count)], size))

    def choice(self, tokens: Tokens[int], known: int = 0) -> int:
        """The greedy next token."""
        return int(self.rows(tokens, known, 1).argmax(-1))

    def goes_on(self, tokens: list[int], most: int, ends: frozenset[int], known: int) -> list[int]:
        """So many greedy tokens, or up to an end token, which is the last one."""
        said: list[int] = []
        while len(said) < most and not (said and said[-1] in ends):
            text = tokens + said
            said.append(self.choice(text, known))
            known = len(text)
        return said


@dataclass(frozen=True, slots=True)
class Planted:
    """drafts: the wrong token and what the target goes on with. logits: of the block's K + 1 rows, float32 [K + 1, V],
    not to be edited; the first one's choice is the right token."""

    context: list[int]
    drafts: list[int]
    logits: Tensor

    def evidence(
        self, request: GenerationRequest, control_ids: frozenset[int], memory: MemorySnapshot | None = None
    ) -> Evidence:
        """What the request's verifier would be told of the block. request: its prompt is the context."""
        block = VerifyBlock(Sequence(request), 0, self.drafts, memory or MemorySnapshot())
        [found] = gather_evidence(self.logits.clone(), [block], control_ids, NoiseCache())
        return found


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was planted. choice: the target's own, where it had one to make."""

    reason: str
    choice: int | None = None


def plant(reader: Reader, at: Fork, num_drafts: int, ends: frozenset[int]) -> Planted | Refusal:
    """The block, or why there is none. num_drafts: most of them; a block ends with an end token, as drafting does."""
    known = len(at.context)
    choice = reader.choice(at.context)
    if choice != at.right:
        return Refusal("the target's own choice is another one", choice)
    wrong = at.wrong[0]
    drafts = [wrong, *reader.goes_on([*at.context, wrong], num_drafts - 1, ends, known)]
    if drafts[: len(at.wrong)] != at.wrong[:num_drafts]:
        return Refusal("the target does not complete the wrong answer", choice)
    logits = reader.rows(at.context + drafts, known - 1, len(drafts) + 1)
    again = int(logits[0].argmax())
    if again != at.right:  # near ties: a forward of many rows may round otherwise than one of a single row
        return Refusal("the target's own choice is another one as soon as a block is read with it", again)
    return Planted(at.context, drafts, logits)


def verdict(evidence: Evidence, request: GenerationRequest, memory: MemorySnapshot) -> tuple[Provenance, int]:
    """How the block's first token came to be, and how many tokens the block delivers."""
    tokens = resolve_block(evidence, loosen(evidence, request.verifier, memory))
    return tokens[0][1], len(tokens)
