"""Small tokenizers that cut the same text differently, for pairs of models with different vocabularies."""

import copy
import functools
import random
from collections.abc import Iterable
from dataclasses import replace

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from core.drafters.cross_vocabulary import CrossDrafter
from core.models.runner import ModelRunner
from core.models.split_pool import SplitPool
from core.runtime import Runtime
from server.text.bridge import TextBridge
from server.text.spelling import DraftSpelling
from server.text.token_bytes import TokenBytes
from tests.tiny import VOCAB, loaded

TEXTS = [
    "the quick brown fox jumps over the lazy dog and the sea is wide and blue",
    "def add(first, second):\n    return first + second  # naïve café, 你好世界, 🎉",
    "once upon a time there was a king who counted 1 2 3 400 5000",
]
TARGET_CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
DRAFT_CONTROLS = ("<pad>", "<|im_end|>", "<s>")  # one name in common, at another id


@functools.cache
def bpe(size: int, controls: tuple[str, ...], end: str, corpus: int = 3, padding: int = 20) -> DraftSpelling:
    """Byte-level; trained on the first so many texts. padding: ids of the logits that stand for nothing."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(controls),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS[:corpus] * 4, trainer)
    return spelling(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end), controls, padding)


def spelling(tokenizer: PreTrainedTokenizerFast, controls: Iterable[str], padding: int = 0) -> DraftSpelling:
    special = frozenset(tokenizer.convert_tokens_to_ids(list(controls)))
    size, ends = len(tokenizer) + padding, frozenset({tokenizer.eos_token_id})
    return DraftSpelling(tokenizer, size, ends, special, TokenBytes.from_tokenizer(tokenizer, size, special))


@functools.cache
def words(seed: int = 0, size: int = VOCAB, padding: int = 0) -> tuple[DraftSpelling, list[int]]:
    """A vocabulary of words that each begin with a space, which cuts any text of theirs in but one way, with the
    control tokens 0, 1 and EOS; and the id that each token of seed 0's has in this one. Other seeds call them by other
    ids."""
    names = ["<a>", "<b>", "<end>", *(f"Ġ{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(size - 3))]
    order = random.Random(seed).sample(range(size), size) if seed else list(range(size))
    vocab = {name: order[index] for index, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(names[:3])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    return spelling(tokenizer, names[:3], padding), order


def target_tongue() -> DraftSpelling:
    return bpe(420, TARGET_CONTROLS, "<|im_end|>")


def draft_tongue() -> DraftSpelling:
    return bpe(330, DRAFT_CONTROLS, "<|im_end|>", corpus=2)


def text_of(tongue: DraftSpelling, tokens: Iterable[int]) -> bytes:
    return b"".join(tongue.token_bytes[token] for token in tokens)


def cross_runtime(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    bridge: TextBridge,
    num_blocks: int = 200,
    draft_blocks: int | None = None,
    control_ids: frozenset[int] = frozenset({0, 1, 2}),
) -> Runtime:
    """draft_blocks: of the draft model's KV, as many as the target's by default."""
    pool = SplitPool(num_blocks, 16)
    if draft_blocks is not None:
        pool.tables.__init__(draft_blocks, 16)  # type: ignore[misc]
    runners = [
        ModelRunner(replace(loaded(model, name), vocab_size=model.config.vocab_size), blocks, 16)
        for model, name, blocks in ((target, "target", num_blocks), (draft, "draft", draft_blocks or num_blocks))
    ]
    return Runtime(
        target=runners[0],
        draft=runners[1],
        pool=pool,
        control_ids=control_ids,
        across=CrossDrafter(runners[1], pool.tables, bridge, target.config.vocab_size),
    )


def relabelled(model: PreTrainedModel, new_ids: list[int], vocab: int) -> PreTrainedModel:
    """The same model with token i called new_ids[i], of `vocab` ids; those without a meaning it never likes."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for old, new in (
            (model.get_input_embeddings().weight, twin.resize_token_embeddings(vocab, mean_resizing=False).weight),
            (model.get_output_embeddings().weight, twin.get_output_embeddings().weight),
        ):
            new.zero_()
            new[new_ids] = old[: len(new_ids)]
    return twin.eval().requires_grad_(False)
