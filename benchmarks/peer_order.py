"""What other engines are told: the weights, the threads and the prompts' sizes that ours has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.errors import BenchError
from benchmarks.interleave import Unit
from benchmarks.peer_names import TRANSFORMERS_MODES, Peer
from server.cpu_quota import compute_threads
from server.device_memory import cpu_memory
from server.model_folders import Folders, fetch
from server.settings import Settings
from server.weights import WeightStore

_DRAFT_ROOM = 64  # positions of a slot behind the longest answer, for blocks that are cut
_SLOT_STEP = 256  # llama.cpp rounds contexts to it
_SPARE_BYTES = 2 << 30  # with less, the next engine would drive the others into swap

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What all engines share. encode: the target's chat template around one user message, as token ids. decode: token
    ids as text, without control tokens. eos: the target's end tokens. threads: as many as our server takes."""

    folders: Folders
    encode: Encode
    decode: Callable[[Sequence[int]], str]
    eos: list[int]
    threads: int

    def check_memory(self, name: str) -> None:
        """BenchError before an engine is loaded into too little memory."""
        if (free := cpu_memory().free) < _SPARE_BYTES:
            raise BenchError(f"{free / 2**30:.1f} GiB are free, too few to load {name}: name fewer peers, or --at-once")


def prepare(settings: Settings) -> Prepared:
    """Fetches the models where need be."""
    from transformers import AutoTokenizer, GenerationConfig

    folders = fetch(settings)
    tokenizer = AutoTokenizer.from_pretrained(folders.target)

    def encode(message: str) -> list[int]:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
        return list(tokenizer.encode(text, add_special_tokens=False))

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    try:
        eos = GenerationConfig.from_pretrained(folders.target).eos_token_id
    except OSError:
        eos = tokenizer.eos_token_id
    ends = [eos] if isinstance(eos, int) else list(eos or [tokenizer.eos_token_id])
    return Prepared(folders, encode, decode, ends, compute_threads(settings.threads, torch.get_num_threads()))


def trials(peers: Sequence[Peer], work: Sequence[Unit], encode: Encode) -> list[dict[str, Any]]:
    """What transformers chooses dtypes by: each mode on the first prompts of each number of clients. Its speculative
    modes take one prompt at a time, whatever the number."""
    first = {unit.concurrency: unit for unit in reversed(work)}
    found = []
    for peer in peers:
        mode = TRANSFORMERS_MODES[peer.mode]
        sizes = sorted(first) if mode == "plain" else [min(first)]
        for size in sizes:
            prompts = [encode(prompt.text) for prompt in first[size].prompts]
            found.append({"mode": mode, "prompts": prompts if mode == "plain" else prompts[:1]})
    return found


def llama_order(
    settings: Settings, prepared: Prepared, peer: Peer, work: Sequence[Unit], max_tokens: int
) -> dict[str, Any]:
    """For llama_worker. Each slot holds the longest prompt and its answer."""
    store, models = WeightStore(settings.cache_dir), settings.models
    longest = max(len(prepared.encode(prompt.text)) for unit in work for prompt in unit.prompts)
    slots = max(unit.concurrency for unit in work)
    slot = -(-(longest + max_tokens + _DRAFT_ROOM) // _SLOT_STEP) * _SLOT_STEP
    draft = models.draft if peer.needs_draft else None
    return {
        "model": str(store.original(models.target)),
        "draft": str(store.original(draft)) if draft is not None else None,
        "mode": peer.mode,
        "options": dict(peer.options),
        "slots": slots,
        "context": slots * slot,
        "threads": prepared.threads,
    }
