"""SuccessorTable: for each token of one text, what the target ranked highest behind it when it last looked.

Token Recycling (Luo et al. 2024) keeps such an adjacency table of the target's own candidates, those of rows behind a
rejected draft among them, and drafts by walking from the newest token along it. There the table is one for the
whole server and the walk a tree. Here a table belongs to one sequence, so that a draft tells nothing of other people's
texts and a loose answer depends on nothing but its own history; and the walk is a line, since our blocks are.

    prompt    5 6 7 5 8        behind 5 came 8, behind 6 came 7, behind 7 came 5
    learn     8: (6, 9)        the target's candidates behind 8, best first
    walk      from 8, 4 tokens: 6 7 5 8

On a line only one candidate of each token can be taken. At temperature 0 it is the best one. Above it the candidates
run the race of ALGORITHMS 1 with the target's own noise for the position, as a draft model does, so that the walk
takes what the target takes wherever the candidates are still about right. Until the target has said anything of a
token, what followed it in the prompt last stands in.
"""

import math
from itertools import pairwise
from typing import NamedTuple

from core.candidates import Candidates
from core.noise import exponential, race_key
from core.sampling_params import SamplingParams

MOST_TOKENS = 4096  # that candidates are kept of, some 400 bytes each; the one heard of longest ago leaves first

_SURE = (0.5, 0.9)  # shares of the candidates' probability


class _Successors(NamedTuple):
    """Of one token, best first. scores: log-probabilities less the best one, at the request's temperature. share: of
    the best one's probability in that of all."""

    ids: tuple[int, ...]
    scores: tuple[float, ...]
    share: float


class SuccessorTable:
    """Learning is O(candidates), walking too for each token."""

    def __init__(self, prompt: tuple[int, ...], sampling: SamplingParams) -> None:
        """sampling: the request's, whose filters and noise the walk goes by."""
        self._sampling = sampling
        self._in_prompt = dict(pairwise(prompt))
        self._known: dict[int, _Successors] = {}

    def __len__(self) -> int:
        """Tokens of which candidates are known."""
        return len(self._known)

    def learn(self, token: int, candidates: Candidates) -> None:
        """Take the candidates of the target's row behind this token, in place of what was known of it."""
        if not candidates.ids:
            return
        self._known.pop(token, None)  # the order of entry is that of leaving
        self._known[token] = _successors(candidates, self._sampling)
        if len(self._known) > MOST_TOKENS:
            del self._known[next(iter(self._known))]

    def walk(self, token: int, position: int, count: int) -> list[int]:
        """At most `count` tokens behind this one, the first of them at this absolute position; fewer where nothing is
        known of the last."""
        found: list[int] = []
        while len(found) < count and (follower := self._follower(token, position + len(found))) is not None:
            found.append(follower)
            token = follower
        return found

    def certainty(self, token: int) -> int:
        """How sure the first step behind this token is: 0 nothing is known, 1 it is in the prompt alone, 2 to 4 by how
        much of the candidates' probability the best one has."""
        known = self._known.get(token)
        if known is None:
            return int(token in self._in_prompt)
        return 2 + sum(known.share >= least for least in _SURE)

    def _follower(self, token: int, position: int) -> int | None:
        known = self._known.get(token)
        if known is None:
            return self._in_prompt.get(token)
        if self._sampling.greedy or len(known.ids) == 1:
            return known.ids[0]
        key = race_key(self._sampling, position)
        scores = [score - math.log(exponential(key, v)) for v, score in zip(known.ids, known.scores, strict=True)]
        return known.ids[scores.index(max(scores))]


def _successors(candidates: Candidates, sampling: SamplingParams) -> _Successors:
    """With what the request's filters leave of them; top-p, which asks for the mass of all tokens, goes by theirs."""
    temperature = sampling.temperature or 1.0
    scores = [logit / temperature for logit in candidates.logits]
    weights = [math.exp(score) for score in scores]
    left = len(scores)
    if not sampling.greedy:
        left = min(left, sampling.top_k or left)
        mass, least = 0.0, sampling.top_p * sum(weights[:left])
        for index in range(left):
            if index and ((sampling.top_p < 1.0 and mass >= least) or weights[index] < sampling.min_p):
                left = index
                break
            mass += weights[index]
    return _Successors(candidates.ids[:left], tuple(scores[:left]), weights[0] / sum(weights))
