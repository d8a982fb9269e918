"""/tokenize, /detokenize, /tokenizer_info and /version, as vLLM's clients use them."""

import httpx
import pytest

from server.openai_api import tokenization
from tests.server.serving import CONTEXT, MODEL, PADDED_VOCAB, chat_body, error_of, ok, tokenizer


async def test_a_prompt_and_back(client: httpx.AsyncClient) -> None:
    text = "naïve café 🎉 <|im_end|>\n the quick brown fox"
    answer = ok(await client.post("/tokenize", json={"model": MODEL, "prompt": text, "return_token_strs": True}))
    ids = tokenizer().encode(text)
    assert answer == {
        "count": len(ids),
        "max_model_len": CONTEXT,
        "tokens": ids,
        "token_strs": tokenizer().convert_ids_to_tokens(ids),
    }
    assert ok(await client.post("/detokenize", json={"tokens": ids})) == {"prompt": text}


async def test_messages_are_rendered_as_for_a_chat(client: httpx.AsyncClient) -> None:
    body = chat_body("hello <|im_end|>", max_tokens=1)
    answer = ok(await client.post("/tokenize", json={"messages": body["messages"]}))
    used = ok(await client.post("/v1/chat/completions", json=body))["usage"]["prompt_tokens"]
    assert answer["count"] == used == len(answer["tokens"])
    assert answer["token_strs"] is None
    shorter = ok(await client.post("/tokenize", json={"messages": body["messages"], "add_generation_prompt": False}))
    assert shorter["tokens"] == answer["tokens"][: shorter["count"]]
    assert shorter["count"] < answer["count"]


async def test_texts_beyond_the_context_and_empty_ones_are_counted(client: httpx.AsyncClient) -> None:
    assert ok(await client.post("/tokenize", json={"prompt": "word " * 2000}))["count"] > CONTEXT
    assert ok(await client.post("/tokenize", json={"prompt": ""}))["tokens"] == []
    assert ok(await client.post("/detokenize", json={"tokens": []})) == {"prompt": ""}
    assert ok(await client.post("/detokenize", json={"tokens": [PADDED_VOCAB - 1]})) == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "word " * 900}]}, "messages"),
        ("/tokenize", {"messages": [{"role": "system", "content": "a"}] * 2}, "messages"),
        ("/tokenize", {"prompt": "a" * (1 << 17)}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [PADDED_VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [10**40]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": [1.5]}, "tokens.0"),
    ],
)
async def test_mistakes_are_named(client: httpx.AsyncClient, path: str, body: dict, param: str) -> None:
    error_of(await client.post(path, json=body), 400, param=param)
    error_of(await client.post(path, json={"model": "nobody", "prompt": "a", "tokens": [1]}), 404, param="model")


async def test_the_tokenizers_facts(client: httpx.AsyncClient) -> None:
    info = ok(await client.get("/tokenizer_info"))
    assert (info["eos_token"], info["bos_token"]) == ("<|im_end|>", None)
    assert info["chat_template"] == tokenizer().chat_template


async def test_the_version(client: httpx.AsyncClient) -> None:
    assert ok(await client.get("/version")) == {"version": tokenization.VERSION}
    assert tokenization.VERSION[0].isdigit()
