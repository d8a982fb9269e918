"""A whole server in the test's own process: real engine, tiny random models, a real byte-level BPE tokenizer."""

import functools
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import torch
from fastapi import FastAPI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.runtime import Runtime
from scheduler.engine import AsyncEngine
from scheduler.limits import SchedulerLimits
from server.app import create_app
from server.language import Language
from server.serving_config import Served, ServingConfig
from server.telemetry.telemetry import Telemetry
from tests.tiny import loaded, noisy_copy

MODEL = "org/tiny"
KEY = "sk-secret"
CONTEXT = 256
PADDED_VOCAB = 420  # wider than the tokenizer, as real models are
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "<|im_start|>system\n{{ messages[0]['content'] }}<|im_end|>\n{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m['role'] == 'system' %}{{ raise_exception('system must come first') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m.get('tool_calls') or [] %}<tool_call>{{ call.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog and the sea is wide and blue",
    "once upon a time there was a story about a king who counted one two three four five",
    "def add(first, second): return first + second  # naïve café, 你好世界, 🎉",
] * 4


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    return fast


def control_ids() -> frozenset[int]:
    return frozenset(tokenizer().convert_tokens_to_ids(CONTROL))


def eos_ids() -> frozenset[int]:
    return frozenset(tokenizer().convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"]))


@functools.cache
def _models() -> tuple[PreTrainedModel, PreTrainedModel]:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=PADDED_VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.15,
        tie_word_embeddings=False,
    )
    target = LlamaForCausalLM(config).eval().requires_grad_(False)
    with torch.no_grad():
        target.get_output_embeddings().weight.mul_(6.0)
    return target, noisy_copy(target)


def target_model() -> PreTrainedModel:
    return _models()[0]


@functools.cache
def only_ascii() -> Mapping[str, int]:
    """A logit_bias that keeps the random model to tokens of plain ASCII, and from ending by itself."""
    fast = tokenizer()
    banned = [token for token in range(PADDED_VOCAB) if not _is_ascii(fast, token)]
    return {str(token): -100 for token in banned}


def _is_ascii(fast: PreTrainedTokenizerFast, token: int) -> bool:
    text = fast.decode([token]) if token < len(fast) else ""
    return bool(text) and text.isascii() and text.isprintable() and token not in control_ids()


def make_engine(telemetry: Telemetry | None = None, draft: bool = True, **limits: int) -> AsyncEngine:
    target, twin = (replace(loaded(model), vocab_size=PADDED_VOCAB) for model in _models())
    runtime = Runtime(
        target=ModelRunner(target, 200, 16),
        draft=ModelRunner(twin, 200, 16) if draft else None,
        pool=BlockPool(200, 16),
        control_ids=control_ids(),
    )
    bounds = {"max_running": 8, "max_waiting": 16, "prefill_chunk": 64, "round_tokens": 256, "max_context": CONTEXT}
    return AsyncEngine(runtime, SchedulerLimits(**{**bounds, **limits}), telemetry)


def serve_config(**changes: Any) -> ServingConfig:
    return replace(ServingConfig(model=MODEL, api_keys=(KEY,), cors_origins=("*",), drain_seconds=2.0), **changes)


async def served(
    telemetry: Telemetry | None = None, draft: bool = True, calibrated: Collection[str] = (), **limits: int
) -> Served:
    return Served(
        engine=make_engine(telemetry, draft, **limits),
        language=Language.of(tokenizer(), PADDED_VOCAB, eos_ids(), control_ids()),
        has_draft=draft,
        calibrated_drafters=frozenset(calibrated),
    )


@asynccontextmanager
async def running(
    config: ServingConfig | None = None, *, draft: bool = True, calibrated: Collection[str] = (), **limits: int
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """The application, ready, and a client that carries the key."""
    telemetry = Telemetry()
    app = create_app(config or serve_config(), lambda: served(telemetry, draft, calibrated, **limits), telemetry)
    async with app.router.lifespan_context(app), client_of(app) as client:
        await app.state.readiness._task
        assert app.state.readiness.status == "ready", app.state.readiness.error
        yield app, client


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers, timeout=60)


def chat_body(content: Any = "once upon a time", **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0}
    return {**body, **more}


def completion_body(prompt: Any = "once upon a time", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, **more}


async def chat(client: httpx.AsyncClient, content: Any = "once upon a time", **more: Any) -> dict[str, Any]:
    return ok(await client.post("/v1/chat/completions", json=chat_body(content, **more)))


async def complete(client: httpx.AsyncClient, prompt: Any = "once upon a time", **more: Any) -> dict[str, Any]:
    return ok(await client.post("/v1/completions", json=completion_body(prompt, **more)))


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream that must end with [DONE]."""
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    events = [block[len("data: ") :] for block in response.text.split("\n\n") if block.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def ok(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


def error_of(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """Check the error object's shape and return its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) <= 600
    if param is not None:
        assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    return str(error["message"])


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)
