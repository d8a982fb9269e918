"""Judging: which answers are right. Equal answers to one item are judged once."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.evaluation.items import Item
from benchmarks.evaluation.sandbox import Sandbox, Verdict


class Judge:
    """sandbox: None where no item needs one. A judge remembers, so that it can be asked again as answers come."""

    def __init__(self, sandbox: Sandbox | None) -> None:
        self._sandbox = sandbox
        self._known: dict[tuple[Item, str], Verdict] = {}

    @property
    def described(self) -> str | None:
        """How programs are run; None if none are."""
        return None if self._sandbox is None else self._sandbox.described

    def judge(self, answers: Sequence[tuple[Item, str]]) -> list[Verdict | None]:
        """Of each; None for an item without a score. Several programs run at a time."""
        new = [one for one in dict.fromkeys(answers) if one[0].scorer is not None and one not in self._known]
        with ThreadPoolExecutor(os.cpu_count() or 1, "judge") as pool:
            for one, verdict in zip(new, pool.map(self._verdict, new), strict=True):
                self._known[one] = verdict
        return [self._known.get(one) for one in answers]

    def _verdict(self, one: tuple[Item, str]) -> Verdict:
        item, answer = one
        assert item.scorer is not None
        # What a reasoning model thought aloud is not its answer.
        return item.scorer.judge(answer.rpartition("</think>")[2], self._sandbox)
