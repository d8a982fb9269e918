"""The tokenizer inside a GGUF file, rebuilt as tokenizer.json and tokenizer_config.json.

GGUF stores the vocabulary, the merges and the *name* of the pre-tokenizer, not the pre-tokenizer
itself; so every name needs its own recipe here, written after the tokenizer.json that the model's
authors published. An unknown name is refused: a wrong split gives plausible but wrong ids.
Control tokens become special (skip_special_tokens drops them), user-defined ones such as <tool_call>
are added but stay visible, as in the authors' files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from core.models.errors import InvalidModelFile, UnsupportedModel

# tokenizer.ggml.token_type
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _Recipe:
    """pattern: how text is split before merging, None for GPT-2's own pattern. digits: every digit
    alone, before that. nfc: Unicode composition first. ignore_merges: a piece that is a token as it
    stands is taken whole. adds_bos: whether it does so where the file does not say."""

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


_RECIPES = {
    "gpt-2": _Recipe(),
    "smollm": _Recipe(digits=True),
    "qwen2": _Recipe(pattern=_QWEN2, nfc=True),
    "llama-bpe": _Recipe(pattern=_LLAMA3, ignore_merges=True, adds_bos=True),
}


def write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    """Write the tokenizer files, with the chat template, into `folder`.

    fields: the GGUF's metadata, key -> plain value. UnsupportedModel for a tokenizer without a recipe.
    """
    tokenizer = build_tokenizer(fields)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": _context_length(fields),
    }
    tokens = fields["tokenizer.ggml.tokens"]
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = fields.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            config[f"{name}_token"] = tokens[token_id]
    template = fields.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2), "utf-8")


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """A byte-level BPE tokenizer equal to the one the model was trained with. UnsupportedModel for one
    without a recipe, InvalidModelFile if its tokens or merges are missing."""
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    recipe = _RECIPES.get(str(pre))
    if kind != "gpt2" or recipe is None:
        raise UnsupportedModel(
            f"the GGUF's tokenizer is {kind!r} with pre-tokenizer {pre!r}; supported are 'gpt2' with "
            f"{', '.join(map(repr, _RECIPES))}. Use the model's Hugging Face folder instead"
        )
    if not fields.get("tokenizer.ggml.tokens") or not fields.get("tokenizer.ggml.merges"):
        raise InvalidModelFile("the GGUF lacks the tokenizer's tokens or merges")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    # Rows that merely pad the embedding matrix ("[PAD151665]") are no tokens: nothing may decode to them.
    count = len(tokens)
    while count and types[count - 1] == _UNUSED:
        count -= 1
    added = [i for i in range(count) if types[i] in (_CONTROL, _USER_DEFINED)]
    merges = [_split_merge(merge) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens[:count])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=recipe.ignore_merges))
    if recipe.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(recipe)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(fields, recipe, tokens)
    # The ids are already in the vocabulary, so adding keeps them; normalized=False matches them verbatim.
    tokenizer.add_tokens(
        [AddedToken(tokens[i], special=types[i] == _CONTROL, normalized=False) for i in added],
    )
    return tokenizer


def _split_merge(merge: str) -> tuple[str, str]:
    # Neither half holds a space: byte-level BPE spells it as a letter.
    left, right = merge.split(" ")
    return left, right


def _pre_tokenizer(recipe: _Recipe) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if recipe.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if recipe.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(recipe.pattern), behavior="isolated", invert=False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=recipe.pattern is None))
    return pre_tokenizers.Sequence(steps)


def _post_processor(fields: Mapping[str, Any], recipe: _Recipe, tokens: list[str]) -> processors.PostProcessor:
    byte_level = processors.ByteLevel(trim_offsets=False)
    bos_id = fields.get("tokenizer.ggml.bos_token_id")
    if not fields.get("tokenizer.ggml.add_bos_token", recipe.adds_bos) or bos_id is None:
        return byte_level
    bos = tokens[bos_id]
    template = processors.TemplateProcessing(
        single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )
    return processors.Sequence([byte_level, template])


def _context_length(fields: Mapping[str, Any]) -> int:
    return int(fields[f"{fields['general.architecture']}.context_length"])
