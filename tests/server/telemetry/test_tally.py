"""The tally against a slow count of the same rounds, and read by another thread while it grows."""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.provenance import Provenance
from core.round_plan import ItemResult
from core.sequence import CommittedToken, Sequence
from core.verifiers.params import CsdParams, FlyParams, LossyParams, StrictParams, TypicalParams
from server.telemetry.catalogue import Metric
from server.telemetry.instruments import Values
from server.telemetry.tally import Tally
from tests.tiny import make_request

RULES = {
    "fly": Provenance.DEFERRED,
    "csd": Provenance.CALIBRATED,
    "lossy": Provenance.LENIENT,
    "typical": Provenance.TYPICAL,
}
VERIFIERS = {
    "strict": StrictParams(),
    "fly": FlyParams(),
    "csd": CsdParams(),
    "lossy": LossyParams(),
    "typical": TypicalParams(),
}


class Read:
    """Stands in for Instruments, to read values as a collector would."""

    def __init__(self, tally: Tally) -> None:
        self.values: dict[str, Values] = {}
        tally.declare(self)  # type: ignore[arg-type]

    def observed_counter(self, metric: Metric, values: Values) -> None:
        self.values[metric.name] = values

    def now(self) -> dict[str, Counter[frozenset[tuple[str, str]]]]:
        """All values in the order of their declaration."""
        return {name: _counted(values()) for name, values in self.values.items()}


def _counted(values: Any) -> Counter[frozenset[tuple[str, str]]]:
    counted: Counter[frozenset[tuple[str, str]]] = Counter()
    for value, labels in values:
        counted[_key(labels)] += value
    return counted


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


@st.composite
def items(draw: st.DrawFn) -> ItemResult:
    """What a round may give a sequence: accepted drafts, some loosened, then a correction or a bonus."""
    verifier = draw(st.sampled_from(sorted(VERIFIERS)))
    drafted = draw(st.integers(0, 12))
    accepted = draw(st.integers(0, drafted))
    allowed = [Provenance.NATIVE, RULES.get(verifier, Provenance.NATIVE)]
    kinds = [draw(st.sampled_from(allowed)) for _ in range(accepted)]
    if draw(st.booleans()):  # unless the answer ended within its drafts
        kinds.append(Provenance.BONUS if 0 < accepted == drafted else Provenance.CORRECTION)
    request = make_request([1], verifier=VERIFIERS[verifier], drafter=draw(st.sampled_from(["model", "multilevel"])))
    lookups = draw(st.integers(0, 3))
    return ItemResult(
        Sequence(request),
        tuple(CommittedToken(7, kind) for kind in kinds),
        drafted,
        accepted,
        verified=draw(st.booleans()),
        memory_lookups=lookups,
        memory_hits=draw(st.integers(0, lookups)),
    )


@given(st.lists(st.lists(items(), max_size=4), max_size=6))
def test_totals_are_those_of_counting_token_by_token(rounds: list[list[ItemResult]]) -> None:
    tally = Tally()
    for one in rounds:
        tally.add(one)
    every = [item for one in rounds for item in one]
    expected: dict[str, Counter[frozenset[tuple[str, str]]]] = {name: Counter() for name in Read(tally).values}

    def count(name: str, by: int = 1, **labels: str) -> None:
        expected[f"slipstream.{name}"][_key(labels)] += by

    for item in every:
        verifier = item.sequence.request.verifier.type
        pair = {"verifier": verifier, "drafter": item.sequence.request.drafter}
        count("speculation.rounds", item.verified, **pair)
        count("correction_memory.lookups", item.memory_lookups)
        count("correction_memory.hits", item.memory_hits)
        for position in range(1, item.drafted + 1):
            count("speculation.draft.tokens", **pair)
            count("speculation.position.drafted", position=str(position))
            if position <= item.accepted:
                count("speculation.position.delivered", position=str(position))
        for token in item.tokens:
            count("generated.tokens", verifier=verifier)
            if token.provenance is Provenance.BONUS:
                count("speculation.bonus.tokens", **pair)
            if token.provenance is Provenance.NATIVE or token.provenance.loosened:
                count("speculation.accepted.tokens", **pair)
            if token.provenance.loosened:
                count("speculation.loosened.tokens", verifier=verifier, rule=token.provenance.value)
    found = Read(tally).now()
    assert found.keys() == expected.keys()
    for name, counted in expected.items():
        assert +found[name] == +counted, name


def test_another_thread_never_reads_a_part_that_exceeds_its_whole() -> None:
    tally, done = Tally(), threading.Event()
    tokens = (*(CommittedToken(7, Provenance.LENIENT) for _ in range(8)), CommittedToken(7, Provenance.BONUS))
    sequence = Sequence(make_request([1], verifier=LossyParams(), drafter="model"))
    item = ItemResult(sequence, tokens, 8, 8, verified=True, memory_lookups=2, memory_hits=2)

    def grow() -> None:
        while not done.is_set():
            tally.add([item])

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        read = Read(tally)
        for _ in range(300):
            now = {name: sum(counted.values()) for name, counted in read.now().items()}
            accepted = now["slipstream.speculation.accepted.tokens"]
            assert now["slipstream.speculation.loosened.tokens"] <= accepted
            assert now["slipstream.speculation.position.delivered"] <= accepted <= now["slipstream.generated.tokens"]
            assert now["slipstream.speculation.position.drafted"] <= now["slipstream.speculation.draft.tokens"]
            assert now["slipstream.correction_memory.hits"] <= now["slipstream.correction_memory.lookups"]
    finally:
        done.set()
        thread.join()
