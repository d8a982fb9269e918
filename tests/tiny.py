"""Tiny random models and the slow obvious driver that the engine is compared with.

The models' logits are spread widely (large head weights), so their greedy text varies instead of
falling into a loop at once, and near ties are rare.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from core.drafters.model import drafts_with_model
from core.models.kv_cache import BlockPool
from core.models.loader import LoadedModel
from core.models.runner import ModelRunner
from core.round import CatchUp, RoundItem, RoundPlan, RoundResult, run_round
from core.runtime import Runtime
from core.sampling_params import SamplingParams
from core.sequence import CommittedToken, GenerationRequest, Sequence, SequenceState
from core.verifiers.params import OffParams, StrictParams, VerifierParams

VOCAB = 199
EOS = 2


def random_model(
    seed: int, family: str = "llama", sharpness: float = 6.0, layers: int = 2, vocab: int = VOCAB
) -> PreTrainedModel:
    """A random decoder; sharpness scales the head, hence how far apart its logits lie."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": vocab,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
    }
    model: PreTrainedModel
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        raise ValueError(family)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(sharpness)
    return model.eval().requires_grad_(False)


def noisy_copy(model: PreTrainedModel, scale: float = 0.03, seed: int = 5) -> PreTrainedModel:
    """The same model with noise in every weight: agrees with it often, not always."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * scale)
    return twin


def resized(model: PreTrainedModel, vocab: int) -> PreTrainedModel:
    """The same model with its vocabulary cut to `vocab` ids, or padded with ids it likes better than any other."""
    twin = copy.deepcopy(model)
    old = model.config.vocab_size
    twin.resize_token_embeddings(vocab, mean_resizing=False)
    with torch.no_grad():
        if vocab > old:
            twin.get_output_embeddings().weight[old:] = 3 * model.get_output_embeddings().weight[3 : 3 + vocab - old]
    return twin.eval().requires_grad_(False)


def loaded(
    model: PreTrainedModel,
    name: str = "tiny",
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> LoadedModel:
    return LoadedModel(
        model=model,
        config=model.config,
        name=name,
        fingerprint=name,
        max_context=512,
        eos_token_ids=frozenset({EOS}),
        control_token_ids=frozenset({0, 1, EOS}),
        vocab_size=model.config.vocab_size,
        weights="float32",
        folder=None,
        dtype=dtype,
        device=torch.device(device),
    )


def make_runtime(
    target: PreTrainedModel,
    draft: PreTrainedModel | None = None,
    num_blocks: int = 400,
    block_size: int = 16,
    **runner: Any,
) -> Runtime:
    """runner: backend, as ModelRunner takes it; dtype and device, which the models must have already."""
    backend = runner.pop("backend", None)

    def run(model: PreTrainedModel, name: str) -> ModelRunner:
        return ModelRunner(loaded(model, name, **runner), num_blocks, block_size, backend)

    return Runtime(
        target=run(target, "target"),
        draft=None if draft is None else run(draft, "draft"),
        pool=BlockPool(num_blocks, block_size),
        control_ids=frozenset({0, 1, EOS}),
    )


def make_request(
    prompt: Iterable[int],
    *,
    verifier: VerifierParams | None = None,
    drafter: str = "none",
    num_draft_tokens: int = 0,
    max_tokens: int = 40,
    request_id: str = "r",
    ignore_eos: bool = False,
    strict_prefix: int = 0,
    **sampling: object,
) -> GenerationRequest:
    if verifier is None:
        verifier = OffParams() if drafter == "none" else StrictParams()
    return GenerationRequest(
        request_id=request_id,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(**{"temperature": 0.0, **sampling}),  # type: ignore[arg-type]
        verifier=verifier,
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        strict_prefix=strict_prefix,
        end_token_ids=frozenset() if ignore_eos else frozenset({EOS}),
    )


@dataclass
class Driver:
    """Runs sequences to their end, all of them in every round: the scheduler's slow obvious stand-in."""

    runtime: Runtime
    prefill_chunk: int = 32
    rounds: list[RoundResult] = field(default_factory=list)
    delivered: dict[int, list[CommittedToken]] = field(default_factory=dict)
    on_round: Callable[[], None] | None = None

    def run(self, requests: list[GenerationRequest]) -> list[Sequence]:
        return self.finish([Sequence(request) for request in requests])

    def finish(self, sequences: list[Sequence]) -> list[Sequence]:
        for sequence in sequences:
            sequence.state = SequenceState.RUNNING
            self.runtime.pool.match_prefix(sequence)
        while any(not s.finished for s in sequences):
            self.step([s for s in sequences if not s.finished])
        for sequence in sequences:
            self.runtime.pool.release(sequence)
        return sequences

    def step(self, sequences: list[Sequence]) -> RoundResult:
        items, catch_up = [], []
        for s in sequences:
            num_tokens = min(s.pending, self.prefill_chunk)
            drafting = num_tokens == s.pending and s.output_len > 0 and s.request.drafter != "none"
            item = RoundItem(s, num_tokens, s.request.num_draft_tokens if drafting else 0)
            assert self.runtime.pool.grow(s, s.target_tokens + num_tokens + item.num_drafts)
            items.append(item)
            if num_tokens < s.pending and drafts_with_model(s, self.runtime.draft_reach):
                catch_up.append(CatchUp(s, s.target_tokens + num_tokens))
        result = run_round(RoundPlan(tuple(items), tuple(catch_up)), self.runtime)
        for item in result.items:
            self.delivered.setdefault(id(item.sequence), []).extend(item.tokens)
        self.rounds.append(result)
        if self.on_round is not None:
            self.on_round()
        return result


def outputs(runtime: Runtime, requests: list[GenerationRequest], **driver: int) -> list[list[int]]:
    return [s.output for s in Driver(runtime, **driver).run(requests)]


def random_prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()
