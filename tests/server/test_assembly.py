import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from core.correction_memory import CorrectionMemory
from core.models.errors import UnsupportedModel
from scheduler.events import FinishedEvent, TokensEvent
from server.assembly import AssemblyError, assemble, serving_config
from server.model_folders import Folders
from server.serving_config import Served
from server.settings import Settings
from server.settings_loading import load_settings
from tests.server import serving
from tests.server.test_settings import EXPECT
from tests.tiny import make_request

CONTEXT = 256


def save_pair(
    folder: Path, seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None, context: int = CONTEXT
) -> Path:
    """A tiny random model with a tokenizer, as a folder that can be served."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=serving.PADDED_VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=serving.tokenizer().eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (tokenizer or serving.tokenizer()).save_pretrained(folder)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_pair(tmp_path / "target")


def settings_for(
    target: Path,
    draft: Path | str | None = None,
    device: str = "cpu",
    keys: Mapping[str, Any] = MappingProxyType({}),
    across: bool = False,
    **flags: Any,
) -> Settings:
    """keys: more of models.target. across: whether the draft model may have another vocabulary."""
    file = target.parent / "config.yaml"
    file.write_text("{}")
    models = {
        "target": {"source": str(target), "device": device, **keys},
        "draft": draft and {"source": str(draft), "device": device, "across_vocabularies": across},
    }
    return load_settings(file, {"models": models, "kv_cache": {"tokens": 1024}, **flags})


def assembled(target: Path, draft: Path | None = None, **flags: Any) -> Served:
    return assemble(settings_for(target, draft, **flags), Folders(target, draft))


async def generate(served: Served, **request: Any) -> tuple[list[int], FinishedEvent]:
    await served.engine.start()
    tokens: list[int] = []
    async with served.engine.submit(make_request((5, 6, 7), ignore_eos=True, max_tokens=12, **request)) as stream:
        async for event in stream:
            if isinstance(event, TokensEvent):
                tokens += [token.token_id for token in event.tokens]
            else:
                finished = event
    await served.engine.stop()
    return tokens, finished


async def test_a_pair_is_assembled_and_generates(target: Path) -> None:
    served = assembled(target, target)
    assert served.has_draft
    assert served.language.vocab_size == serving.PADDED_VOCAB
    assert served.engine.max_context == CONTEXT
    assert serving.tokenizer().eos_token_id in served.language.eos_token_ids
    drafted, finished = await generate(served, drafter="model", num_draft_tokens=4)
    assert finished.counters.accepted_tokens > 0
    plain, finished = await generate(assembled(target))
    assert finished.counters.draft_tokens == 0
    assert plain == drafted


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
async def test_a_pair_is_assembled_on_a_gpu_with_as_much_kv_as_fits(target: Path) -> None:
    served = assembled(target, target, device="cuda", kv_cache={"tokens": "auto", "gpu_memory_utilization": 0.1})
    runtime = served.engine._runtime
    assert runtime.target.device == torch.device("cuda:0")
    held = 512 * runtime.pool.num_blocks * runtime.pool.block_size  # bytes a token of both models in bfloat16
    assert held <= 0.1 * torch.cuda.mem_get_info()[1]
    _, finished = await generate(served, drafter="model", num_draft_tokens=4)
    assert finished.counters.accepted_tokens > 0


def test_a_config_that_is_not_as_expected_is_refused(target: Path) -> None:
    with pytest.raises(
        AssemblyError, match=r"^models\.target\.expect\.vocab_size = 100, but target's own config says "
    ):
        assembled(target, keys={"expect": EXPECT})


def test_a_device_that_is_not_here_is_refused(target: Path) -> None:
    with pytest.raises(AssemblyError, match=r"^models\.target\.device = cuda:99: torch sees "):
        assembled(target, device="cuda:99")


def test_running_out_of_gpu_memory_says_what_was_asked_for_and_what_to_do(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1 GiB "
            "is free. Process 1 has 22 GiB memory in use."
        )

    monkeypatch.setattr("server.assembly._placements", full)
    with pytest.raises(AssemblyError) as caught:
        assembled(target)
    assert str(caught.value).startswith(
        "out of GPU memory: CUDA out of memory. Tried to allocate 20.00 GiB. Lower scheduler.round_tokens or "
    )


def test_one_process_loads_a_model_with_a_plan_as_any_other_but_one_that_has_none_is_refused(target: Path) -> None:
    assert assembled(target, keys={"tp_plan": "auto"}).engine.max_context == CONTEXT
    file = target / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel has no tensor parallel plan"):
        assembled(target, keys={"tp_plan": "auto"})


def test_the_smallest_pool_still_starts(target: Path) -> None:
    assert assembled(target, kv_cache={"tokens": 256}).engine.max_context == 256


def save_other(folder: Path, target: Path) -> Path:
    """A draft model with one token more than the target has."""
    other = serving.tokenizer().__class__.from_pretrained(target)
    other.add_tokens(["<other>"])
    return save_pair(folder, tokenizer=other)


def apart() -> str:
    new_id = len(serving.tokenizer())
    return (
        f"the draft model draft has another vocabulary than the target target: 1 ids differ (id {new_id} is no "
        "token in target and '<other>' in draft). "
    )


def test_a_draft_of_another_vocabulary_is_refused_before_weights_are_read_unless_it_is_chosen(
    target: Path, tmp_path: Path
) -> None:
    draft = save_other(tmp_path / "draft", target)
    (target / "model.safetensors").write_bytes(b"unread")
    with pytest.raises(AssemblyError) as caught:
        assembled(target, draft)
    assert str(caught.value) == apart() + (
        "Choose a draft model of the target's family, or set models.draft.across_vocabularies = true: its drafts then "
        "cross over through text"
    )


async def test_a_draft_of_another_vocabulary_drafts_across_where_that_is_chosen(
    target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        served = assembled(target, save_other(tmp_path / "draft", target), across=True)
    assert any(one.getMessage().startswith(apart() + "Its drafts cross over") for one in caplog.records)
    assert served.engine.drafters[:2] == ("model", "prompt_lookup")
    assert "multilevel" not in served.engine.drafters
    drafted, finished = await generate(served, drafter="model", num_draft_tokens=4)
    assert finished.counters.draft_tokens > 0
    plain, _ = await generate(assembled(target))
    assert plain == drafted


@pytest.mark.parametrize("same_files", [True, False])
def test_a_draft_of_the_same_vocabulary_crosses_nothing_though_it_may(
    target: Path, tmp_path: Path, same_files: bool, caplog: pytest.LogCaptureFixture
) -> None:
    draft = save_pair(tmp_path / "draft")
    if not same_files:
        (draft / "added_tokens.json").write_text("{}")
    with caplog.at_level(logging.INFO):
        served = assembled(target, draft, across=True)
    assert "models.draft.across_vocabularies is not needed" in caplog.text
    assert "multilevel" in served.engine.drafters
    caplog.clear()
    assembled(target, draft)
    assert "across_vocabularies" not in caplog.text


@pytest.mark.parametrize(("key", "said"), [("drafter", "multilevel"), ("allowed_drafters", ["multilevel"])])
def test_multilevel_is_refused_where_lookup_and_the_draft_model_speak_differently(
    target: Path, tmp_path: Path, key: str, said: object
) -> None:
    draft = save_other(tmp_path / "draft", target)
    with pytest.raises(
        AssemblyError, match=rf"^speculation\.{key} = multilevel needs a draft model with the target's "
    ):
        assembled(target, draft, across=True, speculation={key: said})


def test_a_draft_whose_tokens_have_no_bytes_of_their_own_is_refused(target: Path, tmp_path: Path) -> None:
    pieces = {"<end>": 0, "the": 1, "##n": 2}
    wordpiece = Tokenizer(models.WordPiece(pieces, unk_token="<end>"))
    wordpiece.decoder = decoders.WordPiece()
    draft = save_pair(tmp_path / "draft", tokenizer=PreTrainedTokenizerFast(tokenizer_object=wordpiece))
    with pytest.raises(AssemblyError, match="draft has another vocabulary than target, and cannot tell the bytes of"):
        assembled(target, draft, across=True)


def test_a_context_beyond_the_models_own_is_refused(target: Path) -> None:
    with pytest.raises(AssemblyError, match="max_context = 257 is beyond target's own 256 tokens"):
        assembled(target, max_context=257)
    assert assembled(target, max_context=100).engine.max_context == 100


def test_a_draft_with_a_shorter_context_than_is_served_is_warned_of(
    target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draft = save_pair(tmp_path / "draft", context=100)
    assembled(target, draft, max_context=100)
    assert not caplog.records
    served = assembled(target, draft)
    assert served.engine.max_context == CONTEXT
    (record,) = caplog.records
    assert "the draft model draft was made for 100 tokens and 256 are served" in record.getMessage()


@pytest.mark.parametrize("write", [lambda file: file.write_bytes(b"x"), CorrectionMemory("other").save])
def test_a_correction_memory_that_does_not_fit_is_refused(target: Path, write: Callable[[Path], Any]) -> None:
    file = target.parent / "memory.bin"
    with pytest.raises(AssemblyError, match=r"^speculation\.correction_memory: "):
        assembled(target, speculation={"correction_memory": file})
    write(file)
    with pytest.raises(AssemblyError, match=r"^speculation\.correction_memory: "):
        assembled(target, speculation={"correction_memory": file})


def test_a_correction_memory_of_these_models_is_loaded(target: Path) -> None:
    memory = assembled(target).engine._runtime.memory
    memory.record("prompt_lookup", 5, 6)
    memory.save(target.parent / "memory.bin")
    served = assembled(target, target, speculation={"correction_memory": target.parent / "memory.bin"})
    assert served.engine._runtime.memory.snapshot("prompt_lookup").count(5, 6) == 1
    assert served.calibrated_drafters == {"prompt_lookup"}
    assert assembled(target, target).calibrated_drafters == frozenset()


def test_settings_become_the_servers_configuration(target: Path) -> None:
    settings = settings_for(
        target,
        target,
        served_model_name="org/served",
        aliases=["other"],
        speculation={
            "verifier": "fly",
            "verifiers": {"fly": {"window": 2}},
            "allowed_verifiers": ["off", "fly"],
            "drafter": "model",
            "allowed_drafters": ["model"],
            "num_draft_tokens": 5,
            "max_num_draft_tokens": 9,
            "draft_length": "fixed",
            "strict_prefix": 3,
        },
        server={"api_keys": ["sk-1"], "cors_origins": "*", "max_body_bytes": 4096, "drain_seconds": 2},
    )
    config = serving_config(settings)
    assert (config.model, config.aliases) == ("org/served", ("other",))
    assert config.verifier_defaults["fly"] == settings.speculation.verifiers.fly
    assert set(config.verifier_defaults) == {"off", "strict", "fly", "csd", "hybrid", "lossy", "typical"}
    assert (config.default_verifier, config.allowed_verifiers) == ("fly", ("off", "fly"))
    assert (config.default_drafter, config.allowed_drafters) == ("model", ("model",))
    assert (config.default_num_draft_tokens, config.max_num_draft_tokens, config.strict_prefix) == (5, 9, 3)
    assert config.default_draft_length == "fixed"
    assert (config.api_keys, config.cors_origins, config.drain_seconds) == (("sk-1",), ("*",), 2)
    assert config.limits.max_body_bytes == 4096
