"""Tally: what rounds have delivered so far, kept as plain numbers and read when somebody collects.

A round touches dozens of series; adding to as many instruments each round would cost more than the rest of telemetry,
so their totals are kept here and observed. The event loop adds, any thread may read. No counter ever shows more than
one that it is a part of (accepted drafts and generated tokens, say): wholes are added to before their parts, and parts
are declared, hence read, before their wholes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.provenance import Provenance
from core.round_plan import ItemResult
from server.telemetry import catalogue
from server.telemetry.instruments import Instruments

MAX_POSITIONS = 64  # num_draft_tokens is at most so many


@dataclass(slots=True)
class Drafted:
    """Totals of one verifier and drafter, as in core.sequence.Counters."""

    generated: int = 0
    rounds: int = 0
    drafts: int = 0
    accepted: int = 0
    bonus: int = 0
    loosened: Counter[Provenance] = field(default_factory=Counter)


class Tally:
    """Totals since the start. drafted_at[p], accepted_at[p]: drafts checked at, delivered from position p + 1."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], Drafted] = {}
        self._drafted_at = [0] * MAX_POSITIONS
        self._accepted_at = [0] * MAX_POSITIONS
        self._lookups = 0
        self._hits = 0

    def add(self, items: Iterable[ItemResult]) -> None:
        """What a round gave its sequences, all of it published."""
        for item in items:
            request = item.sequence.request
            pair = (request.verifier.type, request.drafter)
            total = self._pairs.get(pair)
            if total is None:
                total = self._pairs[pair] = Drafted()
            total.generated += len(item.tokens)
            total.rounds += item.verified
            if item.drafted:
                self._add_drafts(total, item)
            self._lookups += item.memory_lookups
            self._hits += item.memory_hits

    def _add_drafts(self, total: Drafted, item: ItemResult) -> None:
        total.drafts += item.drafted
        total.accepted += item.accepted
        for position in range(item.drafted):
            self._drafted_at[position] += 1
        for position in range(item.accepted):
            self._accepted_at[position] += 1
        for token in item.tokens:
            if token.provenance is Provenance.BONUS:
                total.bonus += 1
            elif token.provenance.loosened:
                total.loosened[token.provenance] += 1

    def declare(self, instruments: Instruments) -> None:
        """The order is the one in which they are read."""
        observe = instruments.observed_counter
        observe(catalogue.LOOSENED_TOKENS, self._loosened)
        observe(catalogue.POSITION_DELIVERED, lambda: _by_position(self._accepted_at))
        observe(catalogue.POSITION_DRAFTED, lambda: _by_position(self._drafted_at))
        observe(catalogue.ACCEPTED_TOKENS, lambda: self._by_pair("accepted"))
        observe(catalogue.DRAFT_TOKENS, lambda: self._by_pair("drafts"))
        observe(catalogue.BONUS_TOKENS, lambda: self._by_pair("bonus"))
        observe(catalogue.ROUNDS, lambda: self._by_pair("rounds"))
        observe(catalogue.GENERATED_TOKENS, self._generated)
        observe(catalogue.MEMORY_HITS, lambda: [(self._hits, {})])
        observe(catalogue.MEMORY_LOOKUPS, lambda: [(self._lookups, {})])

    def _by_pair(self, name: str) -> Iterator[tuple[float, Mapping[str, str]]]:
        for (verifier, drafter), total in list(self._pairs.items()):
            yield getattr(total, name), {"verifier": verifier, "drafter": drafter}

    def _generated(self) -> list[tuple[float, Mapping[str, str]]]:
        return [(count, {"verifier": name}) for name, count in self._sums(lambda total: total.generated).items()]

    def _loosened(self) -> Iterator[tuple[float, Mapping[str, str]]]:
        for rule in (rule for rule in Provenance if rule.loosened):
            for verifier, count in self._sums(lambda total, rule=rule: total.loosened[rule]).items():
                if count:
                    yield count, {"verifier": verifier, "rule": rule.value}

    def _sums(self, figure: Any) -> Counter[str]:
        """A figure by verifier, over all drafters."""
        sums: Counter[str] = Counter()
        for (verifier, _), total in list(self._pairs.items()):
            sums[verifier] += figure(total)
        return sums


def _by_position(totals: list[int]) -> Iterator[tuple[float, Mapping[str, str]]]:
    for index, count in enumerate(totals):
        if count:
            yield count, {"position": str(index + 1)}
