"""Tally: judged tokens of some answers, their re-converged share, and an interval for it.

Tokens of one answer are not independent: where a text went elsewhere, its later tokens do too. The interval is Wilson's
(1927), of as many trials as the tokens are worth: their number over the design effect, which is how much further the
answers' own counts scatter about the share than independent tokens would (Kish 1965).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964  # two-sided 95 %


def wilson(share: float, trials: float) -> tuple[float, float]:
    """The 95 % interval of a share; trials may be no whole number. ValueError without trials."""
    if trials <= 0:
        raise ValueError("an interval needs at least one trial")
    square = _Z * _Z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    reach = _Z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    return max(0.0, middle - reach), min(1.0, middle + reach)


@dataclass(slots=True)
class Tally:
    """judged, reconverged: tokens, those of them after which the target came back. _both, _backs, _sizes: sums over the
    answers of judged x reconverged, reconverged squared, judged squared."""

    answers: int = 0
    judged: int = 0
    reconverged: int = 0
    _both: int = 0
    _backs: int = 0
    _sizes: int = 0

    def add(self, verdicts: Sequence[bool]) -> None:
        """One answer's judged tokens: whether the target came back."""
        judged, back = len(verdicts), sum(verdicts)
        self.answers += 1
        self.judged += judged
        self.reconverged += back
        self._both += judged * back
        self._backs += back * back
        self._sizes += judged * judged

    @property
    def share(self) -> float:
        """ZeroDivisionError before the first judged token."""
        return self.reconverged / self.judged

    def interval(self) -> tuple[float, float]:
        """95 %, of the share."""
        return wilson(self.share, self._trials())

    def _trials(self) -> float:
        """Independent tokens that these are worth. Where the scatter tells nothing, of one answer or of verdicts that
        are all alike, an answer counts as one."""
        share, answers = self.share, self.answers
        if answers < 2 or share in (0, 1):
            return float(answers)
        scatter = self._backs - 2 * share * self._both + share * share * self._sizes  # sum of (back - share x judged)^2
        expected = share * (1 - share) * self.judged
        return self.judged / max(1.0, answers / (answers - 1) * scatter / expected)
