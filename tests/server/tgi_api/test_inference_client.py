"""huggingface_hub's own client, unchanged, over a real socket."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from huggingface_hub import InferenceClient
from huggingface_hub.errors import OverloadedError, ValidationError

from tests.server.listening import listening
from tests.server.serving import KEY, tokenizer

PROMPT = "once upon a time there was a story"
Ask = Callable[..., Any]


@pytest_asyncio.fixture
async def ask() -> AsyncIterator[Ask]:
    """`ask(prompt, **parameters)` is text_generation, awaited; a stream comes as a list."""
    async with listening() as (_, url):
        client = InferenceClient(url.removesuffix("/v1"), token=KEY)

        async def text_generation(prompt: str = PROMPT, **parameters: Any) -> Any:
            def call() -> Any:
                answer = client.text_generation(prompt, **parameters)
                return list(answer) if parameters.get("stream") else answer

            return await asyncio.to_thread(call)

        yield text_generation


async def test_text_alone_streamed_and_whole(ask: Ask) -> None:
    text = await ask(max_new_tokens=20)
    assert isinstance(text, str)
    assert text
    pieces = await ask(max_new_tokens=20, stream=True)
    special = set(tokenizer().all_special_tokens) | {"<|endoftext|>", "<|im_start|>"}
    assert "".join(piece for piece in pieces if piece not in special) == text
    assert await ask(max_new_tokens=20, return_full_text=True) == PROMPT + text


async def test_details_name_every_token(ask: Ask) -> None:
    answer = await ask(max_new_tokens=25, details=True, top_n_tokens=3, decoder_input_details=True, seed=5)
    details = answer.details
    assert details.finish_reason in ("length", "eos_token")
    assert details.generated_tokens == len(details.tokens) == len(details.top_tokens)
    assert "".join(token.text for token in details.tokens if not token.special) == answer.generated_text
    assert [token.id for token in details.prefill] == tokenizer().encode(PROMPT)
    assert details.prefill[0].logprob is None
    assert all(token.logprob < 0 for token in details.prefill[1:])
    for token, top in zip(details.tokens, details.top_tokens, strict=True):
        assert len(top) == 3
        assert token.id == top[0]["id"]  # greedy: do_sample was not given
        assert token.logprob == top[0]["logprob"]
    assert details.seed is None


async def test_a_streams_last_token_carries_the_whole(ask: Ask) -> None:
    options = {"max_new_tokens": 25, "details": True, "top_n_tokens": 2, "do_sample": True, "seed": 2**64 - 1}
    whole = await ask(**options)
    *tokens, last = await ask(stream=True, **options)
    assert last.generated_text == whole.generated_text
    assert last.details.finish_reason == whole.details.finish_reason
    assert last.details.generated_tokens == whole.details.generated_tokens == len(tokens) + 1
    assert last.details.input_length == len(tokenizer().encode(PROMPT))
    assert last.details.seed == whole.details.seed == 2**64 - 1
    assert [event.index for event in (*tokens, last)] == list(range(1, len(tokens) + 2))
    for event, token in zip((*tokens, last), whole.details.tokens, strict=True):
        assert (event.token.id, event.token.text, event.token.special) == (token.id, token.text, token.special)
        assert event.token.logprob == pytest.approx(token.logprob, abs=1e-3)
        assert len(event.top_tokens) == 2
    assert all(event.generated_text is None and event.details is None for event in tokens)


async def test_a_seed_repeats_an_answer_and_the_reported_one_does_too(ask: Ask) -> None:
    first = await ask(do_sample=True, details=True, max_new_tokens=15)
    again = await ask(do_sample=True, details=True, max_new_tokens=15, seed=first.details.seed)
    assert again.generated_text == first.generated_text
    assert len({await ask(do_sample=True, seed=seed, max_new_tokens=15) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("sampled", "parameters"),
    [
        (False, {}),
        (False, {"do_sample": False}),
        (False, {"temperature": 1.0}),
        (False, {"temperature": 0.0, "do_sample": True}),
        (True, {"do_sample": True}),
        (True, {"temperature": 1.5}),
        (True, {"top_k": 50}),
        (True, {"top_p": 0.9}),
    ],
)
async def test_sampling_is_switched_on_as_tgi_does(ask: Ask, sampled: bool, parameters: dict[str, Any]) -> None:
    answers = {await ask(max_new_tokens=15, seed=seed, **parameters) for seed in range(3)}
    assert (len(answers) > 1) == sampled


async def test_a_stop_string_is_part_of_the_text_and_nothing_behind_it(ask: Ask) -> None:
    free = await ask(max_new_tokens=30)
    stop = free[5:7]
    end = free.index(stop) + len(stop)
    answer = await ask(max_new_tokens=30, stop=[stop], details=True)
    assert answer.generated_text == free[:end]
    assert answer.details.finish_reason == "stop_sequence"
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text
    events = await ask(max_new_tokens=30, stop=[stop], details=True, stream=True)
    assert "".join(event.token.text for event in events) == events[-1].generated_text == free[:end]
    assert events[-1].details.finish_reason == "stop_sequence"


async def test_the_best_of_several_and_the_others(ask: Ask) -> None:
    answer = await ask(best_of=4, do_sample=True, seed=3, max_new_tokens=10, details=True)
    others = answer.details.best_of_sequences
    assert len(others) == 3

    def mean(sequence: Any) -> float:
        tokens = sequence["tokens"] if isinstance(sequence, dict) else sequence.tokens
        values = [token["logprob"] if isinstance(token, dict) else token.logprob for token in tokens]
        return float(sum(values) / len(values))

    assert all(mean(answer.details) >= mean(other) for other in others)


async def test_truncate_keeps_the_prompts_end(ask: Ask) -> None:
    ids = tokenizer().encode(PROMPT)
    answer = await ask(truncate=3, details=True, decoder_input_details=True, max_new_tokens=5)
    assert [token.id for token in answer.details.prefill] == ids[-3:]
    assert answer.generated_text == await ask(tokenizer().decode(ids[-3:]), max_new_tokens=5)
    long = "word " * 900
    with pytest.raises(ValidationError, match="maximum context length is 256"):
        await ask(long)
    assert await ask(long, truncate=100, max_new_tokens=5)


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}},
        {"type": "json", "value": '{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}'},
        {"type": "json_schema", "value": {"name": "x", "schema": {"type": "object", "required": ["n"]}}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_is_obeyed(ask: Ask, grammar: dict[str, Any], stream: bool) -> None:
    if grammar["type"] == "json_schema":
        grammar["value"]["schema"]["properties"] = {"n": {"enum": [1, 2]}}
        grammar["value"]["schema"]["additionalProperties"] = False
    answer = await ask(grammar=grammar, max_new_tokens=60, temperature=1.2, seed=2, details=True, stream=stream)
    last = answer[-1] if stream else answer
    assert json.loads(last.generated_text)["n"] in (1, 2)
    assert last.details.finish_reason == "eos_token"


async def test_a_regular_expression_is_obeyed(ask: Ask) -> None:
    text = await ask(grammar={"type": "regex", "value": "(yes|no)[0-9]{3}"}, max_new_tokens=20)
    assert re.fullmatch("(yes|no)[0-9]{3}", text)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"temperature": 9.0}, "parameters.temperature"),
        ({"typical_p": 0.5}, "'typical_p' is not supported"),
        ({"watermark": True}, "'watermark' is not supported"),
        ({"adapter_id": "x"}, "'adapter_id' is not supported"),
        ({"stop": ["a"] * 17}, "at most 16"),
        ({"best_of": 17}, "'best_of' must be at most 16"),
        ({"best_of": 2, "stream": True}, "'best_of' must be 1"),
        ({"details": True, "decoder_input_details": True, "stream": True}, "decoder_input_details"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"grammar": {"type": "regex", "value": "(("}}, "grammar"),
        ({"grammar": {"type": "regex", "value": {}}}, "grammar"),
        ({"grammar": {"type": "json", "value": {"type": "nonsense"}}}, "grammar"),
        ({"grammar": {"type": "json_schema", "value": {}}}, "grammar"),
        ({"top_n_tokens": 21}, "top_n_tokens"),
    ],
)
async def test_mistakes_are_explained(ask: Ask, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        await ask(**parameters)


async def test_an_empty_prompt_is_refused(ask: Ask) -> None:
    with pytest.raises(ValidationError, match="inputs"):
        await ask("")


async def test_a_full_house_is_told_as_such(ask: Ask) -> None:
    results = await asyncio.gather(
        *(ask(best_of=16, do_sample=True, max_new_tokens=60) for _ in range(4)), return_exceptions=True
    )
    assert any(isinstance(result, OverloadedError) for result in results)
    assert any(isinstance(result, str) for result in results)
