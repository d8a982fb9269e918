"""A draft model with another vocabulary, from the round to the engine: right, and never more than proposals."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from core.drafters.base import DraftJob
from core.drafters.cross_vocabulary import CrossDrafter
from core.forward_costs import ForwardCosts, RowCurve
from core.layout import RaggedLayout
from core.models.block_pool import BlockPool
from core.models.draft_tables import DraftTables
from core.provenance import FinishReason, Provenance
from core.runtime import Runtime
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import FlyParams, HybridParams, LossyParams, OffParams, VerifierParams
from server.text.bridge import TextBridge
from tests.excuses import excused
from tests.grammars import grammar, json_lark
from tests.scheduler.floor import limits
from tests.scheduler.serving import answers, assert_clean, collect, gated, serving, settled
from tests.tiny import VOCAB, Driver, make_request, make_runtime, noisy_copy, outputs, random_model, random_prompt
from tests.tongues import bpe, cross_runtime, draft_tongue, relabelled, target_tongue, words

K = 6
TARGET_CONTROLS = frozenset({0, 1, 2})
SAMPLING: list[dict[str, object]] = [
    {},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    {"temperature": 0.7, "top_p": 0.9, "seed": 11},
    {"temperature": 1.3, "seed": 12, "logit_bias": {7: -100.0, 9: 3.0}},
]


@functools.cache
def target_model(vocab: int = VOCAB) -> PreTrainedModel:
    return random_model(1, vocab=vocab)


@functools.cache
def word_pair(noise: float = 0.0) -> tuple[PreTrainedModel, PreTrainedModel, TextBridge]:
    """The target, and the same model, or nearly so, under other ids and padded to another width."""
    there, order = words(seed=5, padding=30)
    model = noisy_copy(target_model(), noise) if noise else target_model()
    return target_model(), relabelled(model, order, there.vocab_size), TextBridge(words()[0], there)


def word_runtime(noise: float = 0.0, **blocks: int) -> Runtime:
    return cross_runtime(*word_pair(noise), **blocks)


@functools.cache
def bpe_pair() -> tuple[PreTrainedModel, PreTrainedModel, TextBridge]:
    """Two models of nothing in common, whose tokenizers cut text differently."""
    here, there = target_tongue(), draft_tongue()
    draft = random_model(2, vocab=there.vocab_size)
    return target_model(here.vocab_size), draft, TextBridge(here, there)


def ask(index: int, drafter: str = "model", **options: Any) -> GenerationRequest:
    options = {"max_tokens": 40, "num_draft_tokens": 0 if drafter == "none" else K, **options}
    prompt = random_prompt(options.pop("prompt", 5 + 13 * index), seed=index)
    return make_request(prompt, drafter=drafter, request_id=f"r{index}", **options)


def off(request: GenerationRequest) -> GenerationRequest:
    return replace(request, drafter="none", num_draft_tokens=0, verifier=OffParams())


def watched(on: Runtime, note: Callable[[RaggedLayout], None]) -> Runtime:
    """note: called with each of the draft model's forwards."""
    assert on.draft is not None
    forward = on.draft.forward

    def watch(layout: RaggedLayout) -> torch.Tensor:
        note(layout)
        return forward(layout)

    on.draft.forward = watch  # type: ignore[method-assign]
    return on


def tables_are_free(on: Runtime) -> bool:
    on.pool.check_integrity(())
    pool = on.pool.tables.pool  # type: ignore[attr-defined]
    return bool(pool.num_free == pool.num_blocks)


def test_the_target_itself_under_other_ids_drafts_all_but_flawlessly() -> None:
    """Nothing that is lost on the way, off by one, or fed to the wrong place would get through this."""
    on = word_runtime()
    sequences = Driver(on).run([ask(n, max_tokens=60) for n in range(6)])
    ended = [sequence for sequence in sequences if sequence.finish_reason is FinishReason.STOP]
    for sequence in sequences:
        counters = sequence.counters
        cut = K if sequence.finished else 0  # what lies behind an answer's end is never delivered
        assert counters.accepted_tokens >= counters.draft_tokens - cut
        assert counters.round_tokens >= (K + 1) * (counters.rounds - 1)
    assert len(ended) < len(sequences)
    assert tables_are_free(on)


def test_an_answers_end_is_drafted_too() -> None:
    driver = Driver(word_runtime())
    sequences = driver.run([ask(n, max_tokens=200) for n in range(12)])
    ends = [
        driver.delivered[id(sequence)][-1].provenance
        for sequence in sequences
        if sequence.finish_reason is FinishReason.STOP
    ]
    assert Provenance.NATIVE in ends


@pytest.mark.parametrize("pair", ["words", "bpe"])
def test_strict_equals_off_in_company(pair: str) -> None:
    parts = word_pair(0.03) if pair == "words" else bpe_pair()
    requests = [ask(n, **SAMPLING[n % len(SAMPLING)]) for n in range(6)]
    company = [ask(9, "prompt_lookup"), ask(8, "none"), ask(7, verifier=FlyParams(entropy_threshold=0.0, window=1))]
    on = cross_runtime(*parts)
    sequences = Driver(on).run([*requests, *company])[: len(requests)]
    without = make_runtime(parts[0])
    excuses = 0
    for request, sequence in zip(requests, sequences, strict=True):
        (expected,) = outputs(without, [off(request)])
        if sequence.output != expected:
            assert excused(on.target, request, expected, sequence.output, K + 1)
            excuses += 1
    assert excuses <= 1
    assert sum(sequence.counters.draft_tokens for sequence in sequences) > 50
    if pair == "words":
        assert sum(sequence.counters.accepted_tokens for sequence in sequences) > 40


@pytest.mark.parametrize("blocks", [8, 200])
@pytest.mark.parametrize(
    "verifier",
    [FlyParams(entropy_threshold=0.0, window=1), HybridParams(entropy_threshold=0.0, window=2), LossyParams()],
    ids=lambda verifier: verifier.type,
)
def test_a_loose_answer_is_the_same_alone_and_in_company(verifier: VerifierParams, blocks: int) -> None:
    """Also where the KV of all texts finds no room together, so that they take turns and read again."""
    requests = [ask(n, verifier=verifier, ignore_eos=True, prompt=8 + 9 * n) for n in range(6)]
    on = word_runtime(0.03, draft_blocks=blocks)
    together = Driver(on, prefill_chunk=16).run(requests)
    for request, sequence in zip(requests, together, strict=True):
        (alone,) = Driver(word_runtime(0.03)).run([request])
        assert alone.output == sequence.output
    assert sum(sequence.counters.loosened.total() for sequence in together) > 0
    assert tables_are_free(on)


def test_those_whose_texts_find_no_room_together_keep_what_they_read_last() -> None:
    on = word_runtime(draft_blocks=4)
    sequences = [Sequence(ask(n, ignore_eos=True, prompt=40)) for n in range(2)]
    for _ in range(3):
        assert on.across is not None
        on.across.draft([DraftJob(sequence, K) for sequence in sequences])
        on.pool.tables.check_integrity()  # type: ignore[attr-defined]
        assert [sequence.draft_tokens for sequence in sequences] == [0, 40]


def test_who_lost_its_room_reads_again_piece_by_piece() -> None:
    rows: list[int] = []
    on = watched(word_runtime(draft_blocks=20), lambda layout: rows.append(layout.num_rows))
    assert on.draft is not None
    tables: DraftTables = on.pool.tables  # type: ignore[attr-defined]
    across = CrossDrafter(on.draft, tables, word_pair()[2], VOCAB, piece=32)
    sequence, other = (Sequence(ask(n, prompt=250)) for n in range(2))
    sequence.target_tokens = 249
    across.read([(sequence, 249)], [])
    assert sequence.draft_tokens == 249
    tables.open(other, word_pair()[2].read())
    assert tables.make_room(other, tables.capacity, ())
    assert sequence.draft_tokens == 0
    tables.release(other)
    tables.pool = BlockPool(20, 16)  # nothing of it is found again
    while sequence.draft_tokens < 249:
        assert sequence.draft_tokens == 0
        rows.clear()
        across.read([(sequence, 10)], [])
        assert 0 < sum(rows) <= 32
    tables.check_integrity()


def test_a_text_is_read_once() -> None:
    rows: list[int] = []
    on = watched(word_runtime(), lambda layout: rows.append(layout.num_rows))
    (sequence,) = Driver(on).run([ask(6, ignore_eos=True)])
    assert sum(rows) <= len(sequence.tokens) + len(rows)


def test_texts_that_begin_alike_are_read_once() -> None:
    read: list[int] = []
    on = watched(word_runtime(), lambda layout: read.append(layout.num_rows))
    prompt = random_prompt(160, seed=3)
    for expected in (range(160, 400), range(0, 100)):
        read.clear()
        Driver(on).run([make_request(prompt, drafter="model", num_draft_tokens=2, max_tokens=4, ignore_eos=True)])
        assert sum(read) in expected


@pytest.mark.parametrize("verifier", [None, FlyParams(entropy_threshold=0.0, window=1)])
async def test_drafts_end_with_the_drafts_context_and_answers_go_on(verifier: VerifierParams | None) -> None:
    on, fed = word_runtime(), [0]
    assert on.draft is not None
    on.draft.loaded = replace(on.draft.loaded, max_context=50)
    target, _, bridge = word_pair()
    on.across = type(on.across)(on.draft, on.pool.tables, bridge, target.config.vocab_size)  # type: ignore[union-attr,attr-defined,misc,arg-type]
    watched(on, lambda layout: fed.extend(layout.positions()))
    requests = [ask(n, ignore_eos=True, prompt=length, verifier=verifier) for n, length in enumerate((20, 49, 50, 70))]
    async with serving(on) as engine:
        found = await answers(engine, requests)
    assert max(fed) == 49
    assert [event.counters.accepted_tokens > 0 for _, event in found] == [True, True, False, False]
    if verifier is None:
        assert [tokens for tokens, _ in found] == outputs(
            make_runtime(target_model()), [off(request) for request in requests]
        )


def adaptive(request: GenerationRequest) -> GenerationRequest:
    return replace(request, adaptive=True, other_drafters=("prompt_lookup",), num_draft_tokens=12)


async def test_adaptive_lengths_under_preemption_change_nothing_and_leave_nothing_behind() -> None:
    on = word_runtime(0.03, num_blocks=20, draft_blocks=12)
    on.forward_costs.begin(ForwardCosts(RowCurve({1: 1.0, 8: 1.2, 32: 2.0}), RowCurve({1: 0.02, 8: 0.03})))
    plain = [ask(n, ignore_eos=True, max_tokens=60) for n in range(6)]
    loose = [ask(n, ignore_eos=True, max_tokens=60, verifier=LossyParams(threshold=0.5)) for n in range(6, 8)]
    async with serving(on, limits(max_context=200)) as engine:
        found = await answers(engine, [adaptive(request) for request in (*plain, *loose)])
        assert_clean(on, await settled(engine))
    assert sum(event.counters.preemptions for _, event in found) > 0
    assert sum(event.counters.accepted_tokens for _, event in found[:6]) > 50
    expected = outputs(make_runtime(target_model()), [off(request) for request in plain])
    assert [tokens for tokens, _ in found[:6]] == expected
    assert tables_are_free(on)
    for request, (tokens, _) in zip(loose, found[6:], strict=True):
        alone = word_runtime(0.03)
        alone.forward_costs.begin(on.forward_costs.start)  # type: ignore[arg-type]
        async with serving(alone, limits(max_context=200)) as engine:
            assert (await answers(engine, [adaptive(request)]))[0][0] == tokens


async def test_an_aborted_answer_gives_its_draft_blocks_back() -> None:
    on = word_runtime()
    async with serving(on) as engine:
        with gated(on) as gate:
            stream = engine.submit(ask(1, ignore_eos=True, max_tokens=100))
            await gate.reached()
            gate.open()
            await anext(stream)
            await anext(stream)
            tables = on.pool.tables.pool  # type: ignore[attr-defined]
            engine.abort("r1")
            _, event = await collect(stream)
        await settled(engine)
        assert event.reason is FinishReason.ABORT
        assert tables.num_free == tables.num_blocks
    assert tables_are_free(on)


def test_a_grammar_binds_drafts_of_another_vocabulary_too() -> None:
    """What the draft model says, which knows no grammar, is legal or is not proposed."""
    lark = json_lark({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    request = ask(2, max_tokens=30)

    def run(on: Runtime, asked: GenerationRequest) -> Sequence:
        (sequence,) = Driver(on).finish([Sequence(asked, grammar=grammar(lark))])
        return sequence

    expected = run(make_runtime(target_model()), off(request))
    strict = run(word_runtime(), request)
    assert strict.output == expected.output
    assert strict.finish_reason is expected.finish_reason
    assert strict.counters.draft_tokens > 0


async def test_only_the_drafters_that_can_are_offered() -> None:
    assert word_runtime().available_drafters()[:2] == ("model", "prompt_lookup")
    assert "multilevel" not in word_runtime().available_drafters()
    async with serving(word_runtime()) as engine:
        with pytest.raises(ValueError, match="drafter 'multilevel' is not available here"):
            engine.submit(ask(1, "multilevel"))


def test_a_pair_that_shares_no_token_still_answers() -> None:
    """Nothing of its texts means anything to a draft of control tokens alone."""
    here = bpe(420, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|im_end|>")
    bridge = TextBridge(here, words()[0])
    on = cross_runtime(target_model(here.vocab_size), random_model(3), bridge)
    (sequence,) = Driver(on).run([ask(3, ignore_eos=True)])
    assert sequence.output_len == 40
