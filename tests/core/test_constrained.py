"""Answers under a grammar: legal at every token, the same under every drafter as under `off`, never loosened."""

import functools
import itertools
from collections.abc import Sequence as Items

import pytest
import torch
from transformers import PreTrainedModel

from core.layout import RaggedLayout
from core.masking import mask_logits
from core.penalties import RowGroup
from core.provenance import FinishReason, Provenance
from core.round import RoundItem, RoundPlan, run_round
from core.runtime import Runtime
from core.sequence import GenerationRequest, Sequence
from core.token_store import TokenStore
from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    StrictParams,
    TypicalParams,
    VerifierParams,
)
from tests.core.test_grammar import LARKS, PERSON
from tests.grammars import complete, grammar, ids_of, json_lark, legal_after, regex_lark, text_of
from tests.naive import plain_logits
from tests.tiny import (
    EOS,
    VOCAB,
    Driver,
    make_request,
    make_runtime,
    noisy_copy,
    random_model,
    random_prompt,
    resized,
)

SAMPLING: dict[str, dict[str, object]] = {
    "greedy": {},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "sampled": {"temperature": 1.3, "seed": 3},
    "filtered": {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 4},
    "biased": {"temperature": 1.0, "seed": 5, "logit_bias": dict.fromkeys(ids_of('"{ab:}'), -100.0)},
    "wild": {"temperature": 2.0, "seed": 6},
}
LOOSE: list[VerifierParams] = [
    LossyParams(threshold=1e-30),
    TypicalParams(epsilon=1e-30),
    FlyParams(entropy_threshold=0.0, window=0),
    FlyParams(entropy_threshold=0.0, window=1),
    CsdParams(),
    HybridParams(entropy_threshold=0.0, window=0),
]


@functools.cache
def target_model() -> PreTrainedModel:
    return random_model(21)


@functools.cache
def draft_model(kind: str) -> PreTrainedModel:
    match kind:
        case "equal":
            return target_model()
        case "random":
            return random_model(22)
        case "narrow":
            return resized(noisy_copy(target_model()), VOCAB - 60)
        case "wide":
            return resized(noisy_copy(target_model()), VOCAB + 45)
        case _:
            return noisy_copy(target_model())


def ask(name: str, sampling: str = "greedy", **options: object) -> GenerationRequest:
    prompt = random_prompt(12 + len(name), seed=len(name)) + ids_of('{"name": "ab", "age": 42} {"name":')
    return make_request(prompt, request_id=name, **{"max_tokens": 40, **SAMPLING[sampling], **options})  # type: ignore[arg-type]


def answer(runtime: Runtime, lark: str, request: GenerationRequest) -> Sequence:
    closing = request.end_token_ids & {0, 1, EOS}
    [sequence] = Driver(runtime).finish([Sequence(request, grammar=grammar(lark, closing))])
    return sequence


@functools.cache
def plain(name: str, sampling: str) -> tuple[int, ...]:
    return tuple(answer(make_runtime(target_model()), LARKS[name], ask(name, sampling)).output)


def check_legal(lark: str, sequence: Sequence) -> None:
    output = sequence.output
    text = output[:-1] if output[-1] in sequence.request.end_token_ids else output
    for index, token in enumerate(text):
        assert token in (legal_after(lark, output[:index]) or ()), text_of(output[: index + 1])
    if sequence.finish_reason is FinishReason.STOP:
        assert complete(lark, text)
    else:
        assert sequence.finish_reason is FinishReason.LENGTH
        assert len(output) == sequence.request.max_tokens


@pytest.mark.parametrize("drafter", ["token_recycling", "datastore"])
def test_strict_equals_off_with_drafters_that_cost_no_forward(drafter: str) -> None:
    runtime = make_runtime(target_model())
    cases = list(zip(LARKS, [*SAMPLING, "greedy", "sampled"], strict=True))
    texts = [[7 if n % 9 == 8 else token for n, token in enumerate(plain(*case))] for case in cases]
    runtime.store = TokenStore(texts)
    sequences = [
        Sequence(ask(name, sampling, drafter=drafter, num_draft_tokens=6), grammar=grammar(LARKS[name]))
        for name, sampling in cases
    ]
    for case, sequence in zip(cases, Driver(runtime).finish(sequences), strict=True):
        assert sequence.output == list(plain(*case)), case
    assert sum(sequence.counters.accepted_tokens for sequence in sequences) > 0


@pytest.mark.parametrize("sampling", list(SAMPLING))
@pytest.mark.parametrize("name", [name for name in LARKS if name != "lazy"])
def test_every_token_is_legal_and_stop_means_complete(name: str, sampling: str) -> None:
    check_legal(LARKS[name], answer(make_runtime(target_model()), LARKS[name], ask(name, sampling)))


@pytest.mark.parametrize("num_draft_tokens", [1, 5, 12])
@pytest.mark.parametrize("drafter", ["model", "prompt_lookup", "multilevel"])
@pytest.mark.parametrize("draft", ["equal", "random", "noisy", "narrow", "wide"])
def test_strict_equals_off_together(draft: str, drafter: str, num_draft_tokens: int) -> None:
    runtime = make_runtime(target_model(), draft_model(draft))
    cases = list(zip(LARKS, [*SAMPLING, "greedy", "sampled"], strict=True))
    sequences = [
        Sequence(ask(name, sampling, drafter=drafter, num_draft_tokens=num_draft_tokens), grammar=grammar(LARKS[name]))
        for name, sampling in cases
    ]
    for (name, sampling), sequence in zip(cases, Driver(runtime).finish(sequences), strict=True):
        assert sequence.output == list(plain(name, sampling)), name


@pytest.mark.parametrize("sampling", list(SAMPLING))
def test_strict_equals_off_alone(sampling: str) -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    for name in ("json", "regex"):
        request = ask(name, sampling, drafter="multilevel", num_draft_tokens=6)
        assert answer(runtime, LARKS[name], request).output == list(plain(name, sampling))


def test_strict_equals_off_beside_free_and_loose_sequences() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    verifiers: list[VerifierParams] = [StrictParams(), *LOOSE]
    names = list(itertools.islice(itertools.cycle(["json", "regex", "recursive"]), len(verifiers)))
    samplings = list(itertools.islice(itertools.cycle(SAMPLING), len(verifiers)))
    sequences = [
        Sequence(
            ask(name, sampling, drafter="model", num_draft_tokens=7, verifier=verifier),
            grammar=grammar(LARKS[name]) if index % 3 else None,
        )
        for index, (name, sampling, verifier) in enumerate(zip(names, samplings, verifiers, strict=True))
    ]
    for sequence, name, sampling in zip(Driver(runtime).finish(sequences), names, samplings, strict=True):
        assert sequence.grammar is None or sequence.output == list(plain(name, sampling))


@pytest.mark.parametrize("verifier", LOOSE, ids=lambda verifier: f"{verifier.type}")
def test_nothing_that_a_grammar_rules_is_loosened(verifier: VerifierParams) -> None:
    runtime = make_runtime(target_model(), draft_model("random"))
    for sampling in ("greedy", "wild"):
        for name in ("json", "regex", "recursive"):
            request = ask(name, sampling, drafter="model", num_draft_tokens=6, verifier=verifier)
            sequence = answer(runtime, LARKS[name], request)
            assert sequence.output == list(plain(name, sampling))
            assert not sequence.counters.loosened
            assert sequence.counters.draft_tokens > sequence.counters.accepted_tokens  # there was what to loosen
    free = Sequence(ask("json", "wild", drafter="model", num_draft_tokens=6, verifier=LOOSE[0]))
    assert sum(Driver(runtime).finish([free])[0].counters.loosened.values()) > 0


def draft_blocks(runtime: Runtime, sequence: Sequence) -> list[tuple[list[int], list[int]]]:
    """Run the sequence to its end: for each verified block the output before it and its drafts."""
    forward, blocks = runtime.target.forward, []

    def watch(layout: RaggedLayout) -> torch.Tensor:
        fed = layout.segments[0]
        drafts = list(fed.tokens[len(sequence.tokens) - fed.context :])
        if drafts:
            blocks.append((sequence.output, drafts))
        return forward(layout)

    runtime.target.forward = watch  # type: ignore[method-assign]
    Driver(runtime).finish([sequence])
    return blocks


@pytest.mark.parametrize("drafter", ["model", "multilevel", "prompt_lookup"])
def test_drafts_are_legal_and_end_with_the_answer(drafter: str) -> None:
    runtime = make_runtime(target_model(), draft_model("random"))
    # Lookup finds what followed before: here also what the grammar does not allow.
    prompt = ids_of('{"name": "ab", "age": 42}!{"name": "abc!", "age": ') + ids_of('{"na')
    request = make_request(prompt, drafter=drafter, num_draft_tokens=30, max_tokens=60, temperature=1.5, seed=8)
    blocks = draft_blocks(runtime, Sequence(request, grammar=grammar(PERSON)))
    assert blocks
    for before, drafts in blocks:
        for index, token in enumerate(drafts):
            assert token in (legal_after(PERSON, before + drafts[:index]) or ())
        assert legal_after(PERSON, before + drafts[:-1]) != {EOS}  # nothing is drafted behind a complete answer


def test_max_tokens_cuts_and_completing_in_the_last_token_is_a_stop() -> None:
    runtime = make_runtime(target_model())
    whole = answer(runtime, PERSON, ask("json"))
    assert whole.finish_reason is FinishReason.STOP
    tokens = len(whole.output)
    assert answer(runtime, PERSON, ask("json", max_tokens=tokens)).finish_reason is FinishReason.STOP
    cut = answer(runtime, PERSON, ask("json", max_tokens=tokens - 1))
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.output == whole.output[:-1]


def test_a_bias_cannot_ban_the_only_legal_token() -> None:
    only = ids_of("abc")
    request = ask("one-way", logit_bias=dict.fromkeys(only, -100.0))
    assert text_of(answer(make_runtime(target_model()), LARKS["one-way"], request).output) == "abc10"


def test_a_bias_cannot_bring_in_what_is_forbidden() -> None:
    request = ask("regex", logit_bias=dict.fromkeys(ids_of("{}z"), 100.0), max_tokens=20)
    check_legal(LARKS["regex"], answer(make_runtime(target_model()), LARKS["regex"], request))


def test_min_tokens_lengthens_what_may_go_on_and_yields_where_nothing_can() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    for options in ({}, {"drafter": "model", "num_draft_tokens": 4}):
        long = answer(runtime, LARKS["regex"], ask("regex", min_tokens=25, max_tokens=40, **options))
        assert len(long.output) >= 25
        check_legal(LARKS["regex"], long)
        short = answer(runtime, LARKS["optional-end"], ask("optional-end", min_tokens=30, **options))
        assert short.finish_reason is FinishReason.STOP
        assert len(text_of(short.output)) == 5


def test_ignoring_eos_still_ends_a_complete_answer() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    for options in ({}, {"drafter": "multilevel", "num_draft_tokens": 4}):
        sequence = answer(runtime, LARKS["optional-end"], ask("optional-end", ignore_eos=True, **options))
        assert sequence.finish_reason is FinishReason.STOP
        assert len(text_of(sequence.output)) == 5  # EOS being ignored, it goes on as long as it can


def test_a_stop_token_that_is_text_stops_where_the_grammar_writes_it() -> None:
    stop = ids_of(",")[0]
    request = ask("json")
    request = make_request(request.prompt, max_tokens=60)
    request = GenerationRequest(**{**_fields(request), "end_token_ids": frozenset({EOS, stop})})
    sequence = answer(make_runtime(target_model()), PERSON, request)
    assert sequence.output.count(stop) <= 1
    for index, token in enumerate(sequence.output):
        assert token in (legal_after(PERSON, sequence.output[:index]) or ())


def _fields(request: GenerationRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in GenerationRequest.__dataclass_fields__}


def test_an_answer_that_cannot_go_on_ends_without_an_illegal_token() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    for options in ({}, {"drafter": "model", "num_draft_tokens": 4}):
        sequence = answer(runtime, 'start: "ab" /[0-9]é/', ask("regex", **options))
        assert sequence.finish_reason is FinishReason.CONSTRAINT
        assert sequence.failure
        assert text_of(sequence.output)[:2] == "ab"
        assert len(text_of(sequence.output)) == 3


def test_preemption_changes_nothing() -> None:
    """The place in the grammar lives with the sequence: recomputing its KV does not touch it."""
    runtime = make_runtime(target_model(), draft_model("noisy"))
    request = ask("json", "sampled", drafter="multilevel", num_draft_tokens=5)
    sequence, driver = Sequence(request, grammar=grammar(PERSON)), Driver(runtime)
    runtime.pool.match_prefix(sequence)
    for turn in range(200):
        if sequence.finished:
            break
        if turn % 3 == 2:
            runtime.pool.release(sequence)
            runtime.pool.match_prefix(sequence)
        driver.step([sequence])
    assert sequence.output == list(plain("json", "sampled"))


def test_logprobs_are_those_of_the_unmasked_rows() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    request = ask("json", drafter="model", num_draft_tokens=5, logprobs=2)
    sequence, driver = Sequence(request, grammar=grammar(PERSON)), Driver(runtime)
    driver.finish([sequence])
    raw = plain_logits(target_model(), sequence.tokens[:-1])[sequence.prompt_len - 1 :].log_softmax(-1)
    for row, token in zip(raw, driver.delivered[id(sequence)], strict=True):
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(float(row[token.token_id]), abs=1e-3)
        assert token.logprobs.top[0][0] == int(row.argmax())


@pytest.mark.parametrize("width", [5, 100, VOCAB, VOCAB + 1, VOCAB + 80])
def test_masks_fall_on_their_own_rows_whatever_the_logits_width(width: int) -> None:
    sequences = [Sequence(ask(name), grammar=grammar(LARKS[name])) for name in ("json", "regex")]
    free = Sequence(ask("json"))
    drafts: Items[list[int]] = (ids_of('{"name'), [], ids_of("ab"))
    owners, groups, start = [sequences[0], free, sequences[1]], [], 1
    for owner, mine in zip(owners, drafts, strict=True):
        groups.append(RowGroup(owner, start, mine, len(mine) + 1))
        start += len(mine) + 1
    logits = torch.randn(start + 1, width)
    before = logits.clone()
    mask_logits(logits, groups)
    assert torch.equal(logits[0], before[0])
    assert torch.equal(logits[groups[1].rows], before[groups[1].rows])
    assert torch.equal(logits[-1], before[-1])
    for group, name in ((groups[0], "json"), (groups[2], "regex")):
        for index in range(group.count):
            legal = legal_after(LARKS[name], group.drafts[:index])
            assert legal is not None
            row = logits[group.start + index]
            kept = {token for token in range(width) if row[token] != -torch.inf}
            assert kept == {token for token in legal if token < width}
            assert all(row[token] == before[group.start + index, token] for token in kept)


KEYS: dict[str, object] = {
    "type": "object",
    "properties": {"customer": {"type": "integer"}, "address": {"type": "integer"}},
    "required": ["customer", "address"],
    "additionalProperties": False,
}
FORCED = {"keys": json_lark(KEYS), "literal": regex_lark("the answer is [0-9]{2}, as everybody knows")}


@pytest.mark.parametrize("sampling", ["greedy", "wild"])
@pytest.mark.parametrize("name", list(FORCED))
@pytest.mark.parametrize("drafter", ["model", "prompt_lookup", "multilevel", "token_recycling"])
def test_what_a_grammar_forces_is_drafted_and_never_fails(drafter: str, name: str, sampling: str) -> None:
    """The draft is random, so nothing else that it proposes is right but by chance."""
    plain = answer(make_runtime(target_model()), FORCED[name], ask("one-way", sampling))
    runtime = make_runtime(target_model(), draft_model("random"))
    driver = Driver(runtime)
    request = ask("one-way", sampling, drafter=drafter, num_draft_tokens=30)
    [sequence] = driver.finish([Sequence(request, grammar=grammar(FORCED[name]))])
    assert sequence.output == plain.output
    told = driver.delivered[id(sequence)]
    legal = [legal_after(FORCED[name], sequence.output[:at]) or set() for at in range(len(told))]
    forced = [token.provenance for token, choice in zip(told, legal, strict=True) if len(choice - {EOS}) == 1]
    assert len(forced) > 10
    assert set(forced) <= {Provenance.NATIVE, Provenance.TARGET}  # the first token, too, may be forced
    assert forced.count(Provenance.TARGET) <= 1
    assert sequence.counters.rounds <= len(told) - forced.count(Provenance.NATIVE)


def test_where_nothing_else_drafts_a_grammars_tokens_cost_no_draft_forward() -> None:
    plain = answer(make_runtime(target_model()), FORCED["literal"], ask("one-way"))
    runtime = make_runtime(target_model(), draft_model("random"))
    sequence = Sequence(
        ask("one-way", drafter="multilevel", num_draft_tokens=8), grammar=grammar(FORCED["literal"], {EOS})
    )
    Driver(runtime, prefill_chunk=64).step([sequence])
    results = []
    while not sequence.finished:
        assert runtime.pool.grow(sequence, len(sequence.tokens) + 8)
        results += run_round(RoundPlan((RoundItem(sequence, 1, 8, "none"),)), runtime).items
        runtime.pool.check_integrity([sequence])
    assert sequence.output == plain.output
    assert runtime.draft is not None
    assert runtime.draft.forwards == 0
    assert sum(result.drafted for result in results) == sum(result.accepted for result in results) > 10


@pytest.mark.parametrize("min_reach", [0.2, 1.0])
def test_forced_tokens_do_not_count_against_the_reach(min_reach: float) -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    sequence = Sequence(ask("one-way", drafter="model", num_draft_tokens=30), grammar=grammar(FORCED["literal"]))
    Driver(runtime, prefill_chunk=64).step([sequence])
    assert runtime.pool.grow(sequence, len(sequence.tokens) + 30)
    known = len(sequence.output)
    [result] = run_round(RoundPlan((RoundItem(sequence, 1, 30, min_reach=min_reach),)), runtime).items
    legal = [legal_after(FORCED["literal"], sequence.output[:at]) or set() for at in range(len(sequence.output))]
    forced = next(at for at in range(known, len(legal)) if len(legal[at]) > 1) - known
    assert forced > 5
    assert result.reaches[:forced] == (1.0,) * forced
    assert len(result.reaches) == result.drafted > forced
    assert result.reaches[forced] < 1.0


def test_a_draft_model_is_not_fed_forced_tokens_that_it_has_no_row_for() -> None:
    literal = regex_lark("abc[0-9]{3}ij9hi8")  # ids beyond the narrow draft's vocabulary
    narrow = draft_model("narrow").config.vocab_size
    plain = answer(make_runtime(target_model()), literal, ask("one-way"))
    assert max(plain.output) >= narrow
    for drafter in ("model", "multilevel"):
        runtime = make_runtime(target_model(), draft_model("narrow"))
        request = ask("one-way", drafter=drafter, num_draft_tokens=9)
        assert answer(runtime, literal, request).output == plain.output
