"""Loosely speculative decoding the slow obvious way: greedy, whole forwards, no cache, no batch.

Written from ALGORITHMS 1 and 2 alone, on transformers' own forward, to be compared with the engine.
"""

import copy
import math
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    StrictParams,
    TypicalParams,
    VerifierParams,
)

Pairs = Mapping[tuple[int, int], int]
_TWINS: "WeakKeyDictionary[PreTrainedModel, PreTrainedModel]" = WeakKeyDictionary()


def plain_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """float64 [len(tokens), vocab] by transformers' own attention, whatever the runner made of the model, which an
    engine may be using in another thread at this moment."""
    with torch.no_grad():
        return _plain(model)(torch.tensor([tokens]), use_cache=False).logits[0].double()


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The model's twin: its very tensors, with a configuration and attention of its own."""
    if (twin := _TWINS.get(model)) is None:
        tensors = [*model.parameters(), *model.buffers()]
        twin = _TWINS[model] = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
        twin.set_attn_implementation("eager")
    return twin


def decode(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    verifier: VerifierParams,
    k: int,
    max_tokens: int,
    pairs: Pairs,
    protected: Callable[[int, int], bool],
) -> tuple[list[int], list[str]]:
    """Output tokens and the provenance of each. protected: of (draft, choice). Nothing ends the answer early."""
    tokens = [*prompt, int(plain_logits(target, prompt)[-1].argmax())]
    origin = ["target"]
    while len(origin) < max_tokens:
        drafts: list[int] = []
        for _ in range(k):
            drafts.append(int(plain_logits(draft, tokens + drafts)[-1].argmax()))
        rows = plain_logits(target, tokens + drafts)[-k - 1 :]
        choices = [int(row.argmax()) for row in rows]
        taken = 0
        while taken < k:
            how = accept(taken, drafts, choices, rows, verifier, pairs, protected)
            if how is None:
                break
            tokens.append(drafts[taken])
            origin.append(how)
            taken += 1
        tokens.append(choices[taken])
        origin.append("bonus" if taken == k else "correction")
    return tokens[len(prompt) :][:max_tokens], origin[:max_tokens]


def accept(
    j: int,
    drafts: list[int],
    choices: list[int],
    rows: torch.Tensor,
    verifier: VerifierParams,
    pairs: Pairs,
    protected: Callable[[int, int], bool],
) -> str | None:
    """How draft j is accepted, or None."""
    if drafts[j] == choices[j]:
        return "native"
    if isinstance(verifier, StrictParams) or protected(drafts[j], choices[j]):
        return None
    row, k = rows[j], len(drafts)
    gap = float(row[drafts[j]] - row.max())

    def undecided(i: int) -> float:
        return -sum(p * math.log(p) for p in torch.softmax(rows[i], 0).topk(3).values.tolist())

    def rescued(i: int) -> bool:
        if drafts[i] == choices[i] or protected(drafts[i], choices[i]):
            return False
        assert isinstance(verifier, CsdParams | HybridParams)
        close = float(rows[i][drafts[i]] - rows[i].max()) >= math.log(verifier.ratio)
        floor = verifier.rescue_entropy if isinstance(verifier, HybridParams) else 0.0
        known = pairs.get((drafts[i], choices[i]), 0) >= verifier.frequency_threshold
        return known and close and (floor == 0.0 or undecided(i) >= floor)

    if isinstance(verifier, FlyParams | HybridParams):
        behind = range(j + 1, j + verifier.window + 1)
        counts_rescued = isinstance(verifier, HybridParams) and verifier.agreement == "rescued"
        agrees = j + verifier.window <= k - 1 and all(
            drafts[i] == choices[i] or (counts_rescued and rescued(i)) for i in behind
        )
        if undecided(j) >= verifier.entropy_threshold and agrees:
            return "deferred"
    if isinstance(verifier, CsdParams | HybridParams) and rescued(j):
        return "calibrated"
    if isinstance(verifier, LossyParams) and gap >= math.log(verifier.threshold):
        return "lenient"
    if isinstance(verifier, TypicalParams):
        shares = torch.softmax(row, 0).tolist()
        surprise = -sum(p * math.log(p) for p in shares if p > 0)
        if shares[drafts[j]] > min(verifier.epsilon, verifier.delta * math.exp(-surprise)):
            return "typical"
    return None
