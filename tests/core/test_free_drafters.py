"""Token recycling and the datastore drafter in rounds: strict is off, a loose answer is its own affair."""

import pytest

from core.candidates import Candidates
from core.drafters.token_recycling import peek_recycled, recycle, successors
from core.runtime import Runtime
from core.sequence import Sequence
from core.token_store import TokenStore
from core.verifiers.params import CsdParams, FlyParams, LossyParams, VerifierParams
from tests.core.test_exactness import SAMPLING, Comparison, draft_model, expected, request_for, target_model
from tests.tiny import Driver, make_request, make_runtime, outputs, random_prompt

FREE = ["token_recycling", "datastore"]
LOOSE: dict[str, VerifierParams] = {
    "greedy": FlyParams(entropy_threshold=0.05, window=0),
    "t1.3-free": LossyParams(threshold=1e-4),
}


def runtime(**options: int) -> Runtime:
    """With a store of what `off` answers, a token of it wrong here and there."""
    made = make_runtime(target_model(), draft_model("noisy"), **options)
    texts = [[token if n % 7 else 5 for n, token in enumerate(expected(name), 1)] for name in SAMPLING]
    made.store = TokenStore(texts)
    return made


def test_they_are_offered_where_they_can_work() -> None:
    made = make_runtime(target_model())
    assert made.available_drafters() == ("prompt_lookup", "token_recycling")
    made.store = TokenStore([])
    assert made.available_drafters() == ("prompt_lookup", "token_recycling", "datastore")


@pytest.mark.parametrize("num_draft_tokens", [3, 15])
@pytest.mark.parametrize("drafter", FREE)
def test_strict_equals_off_eight_at_a_time(drafter: str, num_draft_tokens: int) -> None:
    made = runtime()
    comparison = Comparison(made)
    requests = [request_for(name, drafter=drafter, num_draft_tokens=num_draft_tokens) for name in SAMPLING]
    accepted = 0
    for request, sequence in zip(requests, Driver(made).run(requests), strict=True):
        comparison.check(request, sequence.output)
        accepted += sequence.counters.accepted_tokens
    assert comparison.excuses <= 1
    assert accepted > 0


def test_strict_equals_off_in_mixed_company() -> None:
    made = runtime()
    drafters = ["none", "token_recycling", "datastore", "multilevel", "prompt_lookup", "token_recycling", "datastore"]
    comparison = Comparison(made)
    requests = [
        request_for(name, drafter=drafter, num_draft_tokens=6 if drafter != "none" else 0)
        for name, drafter in zip(SAMPLING, drafters, strict=False)
    ]
    for request, got in zip(requests, outputs(made, requests), strict=True):
        comparison.check(request, got)
    assert comparison.excuses <= 1


@pytest.mark.parametrize("name", list(LOOSE))
@pytest.mark.parametrize("drafter", FREE)
def test_a_loose_answer_is_the_same_alone_and_in_company(drafter: str, name: str) -> None:
    options = {"drafter": drafter, "num_draft_tokens": 8, "max_tokens": 80, "ignore_eos": True}
    request = request_for(name, verifier=LOOSE[name], **options)
    (alone,) = Driver(runtime()).run([request])
    others = [request_for(n, **{**options, "drafter": FREE[i % 2]}) for i, n in enumerate(SAMPLING) if n != name]
    together = Driver(runtime(), prefill_chunk=16).run([*others[:3], request, *others[3:]])[3]
    assert together.output == alone.output
    assert together.counters.loosened == alone.counters.loosened
    assert together.counters.draft_tokens == alone.counters.draft_tokens > 0
    assert alone.counters.loosened.total() > 0


@pytest.mark.parametrize("drafter", FREE)
def test_csd_asks_the_memory_of_their_own(drafter: str) -> None:
    options = {"drafter": drafter, "num_draft_tokens": 6, "max_tokens": 60, "ignore_eos": True}

    def loosened(taught: str) -> int:
        made = runtime()
        driver = Driver(made)
        driver.run([request_for("greedy", **options)])
        for result in driver.rounds:
            for item in result.items:
                if item.corrected is not None:
                    made.memory.record(taught, *item.corrected)
        made.memory.merge_round()
        csd = CsdParams(frequency_threshold=1, ratio=1e-9)
        (sequence,) = Driver(made).run([request_for("greedy", verifier=csd, **options)])
        return sequence.counters.loosened.total()

    assert loosened(drafter) > 0
    assert loosened("prompt_lookup") == 0


def test_a_text_that_is_in_the_store_is_drafted_whole() -> None:
    made = runtime()
    made.store = TokenStore([list(expected("greedy"))])
    (sequence,) = Driver(made).run([request_for("greedy", drafter="datastore", num_draft_tokens=10)])
    counters = sequence.counters
    assert counters.accepted_tokens == counters.draft_tokens >= len(sequence.output) - 5


def test_what_the_target_says_behind_right_drafts_counts_more_than_behind_wrong_ones() -> None:
    sequence = Sequence(make_request([5, 6], drafter="token_recycling", num_draft_tokens=4))

    def row(token: int) -> Candidates:
        return Candidates((token,), (0.0,))

    # 6 | 7 8 7 9: 7 and 8 are right, the second 7 is not, so the row behind it is of no text of this sequence.
    recycle(sequence, [7, 8, 7, 9], [row(7), row(8), row(20), row(30), row(40)], accepted=2)
    table = successors(sequence)
    assert [table.walk(token, 2, 1) for token in (6, 7, 8, 9)] == [[7], [8], [20], [40]]
    assert peek_recycled(sequence, 3) == ([7, 8, 20], 4)


def test_rows_behind_a_rejected_draft_are_learned_from() -> None:
    made = runtime()
    sequence = Sequence(request_for("greedy", drafter="token_recycling", num_draft_tokens=4, ignore_eos=True))
    wrong = random_prompt(50, seed=8)
    driver = Driver(made)
    while sequence.output_len == 0:
        driver.step([sequence])
    table = successors(sequence)
    assert len(table) == 1, "of the row that gave the first token"
    for token, follower in zip([sequence.tokens[-1], *wrong], wrong, strict=False):
        table.learn(token, Candidates((follower,), (0.0,)))
    before = table.walk(wrong[0], 9, 1)
    driver.step([sequence])
    assert wrong[:1] != sequence.output[1:2]
    assert table.walk(wrong[0], 9, 1) != before


def test_sequences_that_do_not_recycle_keep_no_table() -> None:
    (sequence,) = Driver(runtime()).run([request_for("greedy", drafter="prompt_lookup", num_draft_tokens=4)])
    assert sequence.successors is None
