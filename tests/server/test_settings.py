import os
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from core.drafters.base import DRAFTERS
from core.models.attention import BACKENDS
from core.models.packed_linear import WeightKind
from core.verifiers.registry import VERIFIERS
from server.model_settings import Attention, Weights
from server.settings import DrafterName, Settings, VerifierName, VerifierSettings
from server.settings_loading import ConfigError, load_settings
from server.weights import HuggingFaceSource, LocalSource, PypiSource

EXPECT: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MINIMAL: dict[str, Any] = {"models": {"target": {"source": "./model"}}}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLIPSTREAM_"):
            monkeypatch.delenv(name)


def load(tmp_path: Path, flags: dict[str, Any] | None = None, **sections: Any) -> Settings:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**MINIMAL, **sections}))
    return load_settings(file, flags)


def target(**keys: Any) -> dict[str, Any]:
    return {"models": {"target": {"source": "./model", **keys}}}


def refusal(tmp_path: Path, flags: dict[str, Any] | None = None, **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, flags, **sections)
    return str(caught.value).replace(str(tmp_path), "")


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"host": "file", "port": 1, "drain_seconds": 7}
    monkeypatch.setenv("SLIPSTREAM_SERVER__PORT", "2")
    monkeypatch.setenv("SLIPSTREAM_SERVER__HOST", "environment")
    settings = load(tmp_path, {"server": {"port": 3}}, server=server)
    assert (settings.server.port, settings.server.host, settings.server.drain_seconds) == (3, "environment", 7)


@pytest.mark.parametrize("name", ["SLIPSTREAM_API_KEYS", "SLIPSTREAM_SERVER__API_KEYS"])
def test_api_keys_have_a_short_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, '["sk-1", "sk-2"]')
    keys = load(tmp_path, server={"api_keys": ["sk-file"]}).server.api_keys
    assert [key.get_secret_value() for key in keys] == ["sk-1", "sk-2"]
    assert "sk-1" not in repr(keys)


def test_variables_reach_every_depth_and_an_empty_one_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_SPECULATION__VERIFIERS__FLY__WINDOW", "3")
    monkeypatch.setenv("SLIPSTREAM_MODELS__TARGET__SOURCE", "org/name")
    monkeypatch.setenv("SLIPSTREAM_MODELS__DRAFT", "null")
    monkeypatch.setenv("SLIPSTREAM_API_KEYS", "")
    settings = load(tmp_path, models={"target": {"source": "./model"}, "draft": {"source": "./draft"}})
    assert settings.speculation.verifiers.fly.window == 3
    assert settings.models.target.source == (HuggingFaceSource(huggingface="org/name", file=None, revision=None),)
    assert settings.models.draft is None
    assert settings.server.api_keys == ()


def test_the_audit_is_off_until_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(tmp_path).audit.sample_rate == 0
    monkeypatch.setenv("SLIPSTREAM_AUDIT__SAMPLE_RATE", "0.25")
    monkeypatch.setenv("SLIPSTREAM_AUDIT__FLOOR", "0.8")
    audit = load(tmp_path).audit
    assert (audit.sample_rate, audit.floor, audit.min_tokens) == (0.25, 0.8, 200)


def test_null_in_a_variable_is_null_at_every_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_MAX_CONTEXT", "null")
    monkeypatch.setenv("SLIPSTREAM_MODELS__TARGET__TP_PLAN", "null")
    settings = load(tmp_path, **target(tp_plan="auto"), max_context=500)
    assert settings.max_context is None
    assert settings.models.target.tp_plan is None


@pytest.mark.parametrize("section", ["models", "server"])
def test_null_for_a_section_that_must_be_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    monkeypatch.setenv(f"SLIPSTREAM_{section.upper()}", "null")
    assert refusal(tmp_path).startswith(f"SLIPSTREAM_{section.upper()}: {section} = null: should be a valid dictionary")


@pytest.mark.parametrize("name", ["slipstream_api_keys", "slipstream_server__port", "SLIPSTREAM_server__PORT"])
def test_a_variable_in_small_letters_is_refused_rather_than_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Keys of the API that nobody reads would leave the server open."""
    monkeypatch.setenv(name, "1234")
    assert refusal(tmp_path) == f"environment variable {name} should be written in capitals: {name.upper()}"


def test_off_is_a_verifiers_name(tmp_path: Path) -> None:
    """A bare `off` is false in YAML 1.1; here only where a boolean is wanted."""
    file = tmp_path / "config.yaml"
    least = "models: {target: {source: ./model, cuda_graphs: off}}\n"
    file.write_text(f"{least}speculation: {{verifier: off, allowed_verifiers: [off, fly], verifiers: {{off: {{}}}}}}\n")
    settings = load_settings(file)
    assert (settings.speculation.verifier, settings.speculation.allowed_verifiers) == ("off", ("off", "fly"))
    assert settings.models.target.cuda_graphs == "off"
    file.write_text(f"{least}speculation: {{correction_memory: {{source: 'sqlite:///m.db', dynamic: on}}}}\n")
    memory = load_settings(file).speculation.correction_memory
    assert memory is not None
    assert memory.dynamic is True


def test_a_draft_that_is_the_targets_file_has_no_checksum_of_its_own(tmp_path: Path) -> None:
    draft = {"source": "target", "weights": "int8", "sha256": "a" * 64}
    text = refusal(tmp_path, models={"target": {"source": "./model.gguf"}, "draft": draft})
    assert "draft.sha256 is that of the target where draft.source = target" in text


def test_the_cache_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert load(tmp_path).cache_dir == Path("/x/slipstream")
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", "~/y")
    assert load(tmp_path).cache_dir == Path.home() / "y"


def test_a_draft_may_be_the_target_with_other_weights(tmp_path: Path) -> None:
    source = {"pypi": "name==1.0"}
    target = {"name": "big", "source": source, "sha256": "a" * 64, "size": 5, "expect": EXPECT}
    models = load(tmp_path, models={"target": target, "draft": {"source": "target"}}).models
    assert models.draft is not None
    assert (models.draft.source, models.draft.sha256) == (models.target.source, models.target.sha256)
    assert (models.draft.expect, models.draft.label) == (models.target.expect, "big (draft)")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("./folder", LocalSource(path=Path("folder"))),
        ("weights.gguf", LocalSource(path=Path("weights.gguf"))),
        ("org/name", HuggingFaceSource(huggingface="org/name", file=None, revision=None)),
        ({"path": "~/m"}, LocalSource(path=Path.home() / "m")),
        ({"pypi": "p{9..11}==1"}, PypiSource(pypi=("p9==1", "p10==1", "p11==1"), member="*.gguf")),
        ({"pypi": ["a==1", "b==2"], "member": "*.bin"}, PypiSource(pypi=("a==1", "b==2"), member="*.bin")),
    ],
)
def test_sources_are_told_apart(tmp_path: Path, source: Any, expected: Any) -> None:
    assert load(tmp_path, models={"target": {"source": source}}).models.target.source == (expected,)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"sever": {}}, "unknown key sever; did you mean server? Allowed: aliases, "),
        (
            {"server": {"prot": 1}},
            "unknown key server.prot; did you mean port? Allowed: api_keys, body_timeout, cors_origins, drain_seconds, "
            "host, keep_alive_seconds, max_body_bytes, owned_by, port",
        ),
        ({"models": {}}, "missing key models.target"),
        ({"server": {"port": 70000}}, "server.port = 70000: should be less than or equal to 65535"),
        ({"kv_cache": {"tokens": 16.5}}, "kv_cache.tokens = 16.5: should be a whole number from 256 up, or auto"),
        ({"kv_cache": {"tokens": "all"}}, 'kv_cache.tokens = "all": should be a whole number from 256 up, or auto'),
        ({"kv_cache": {"tokens": 255}}, "kv_cache.tokens = 255: should be a whole number from 256 up, or auto"),
        (
            {"kv_cache": {"gpu_memory_utilization": 1.5}},
            "kv_cache.gpu_memory_utilization = 1.5: should be less than or equal to 1",
        ),
        (target(device="gpu"), 'models.target.device = "gpu": should be auto, cpu, cuda or cuda:N, such as cuda:1'),
        (target(device="cuda:x"), 'models.target.device = "cuda:x": should be auto, cpu, cuda or cuda:N'),
        (target(device="cuda:01"), 'models.target.device = "cuda:01": should be auto, cpu, cuda or cuda:N'),
        (target(device="cuda:300"), 'models.target.device = "cuda:300": should be auto, cpu, cuda or cuda:N'),
        (target(device=0), "models.target.device = 0: should be a valid string"),
        (
            target(device="cuda", weights="int8_split"),
            "models.target: weights = int8_split needs device = cpu, not cuda: use bfloat16, fp16 or float32 there",
        ),
        (
            target(device="cuda:1", weights="int8"),
            "models.target: weights = int8 needs device = cpu, not cuda:1: use bfloat16, fp16 or float32 there",
        ),
        (
            target(device="cpu", attention="flash_attn"),
            "models.target: attention = flash_attn needs a CUDA device, not device = cpu",
        ),
        (
            target(device="cuda:0", attention="paged_cpu"),
            "models.target: attention = paged_cpu needs a CPU and float32 activations, not device = cuda:0",
        ),
        (
            target(device="cpu", weights="bfloat16", attention="paged_cpu"),
            "models.target: attention = paged_cpu needs a CPU and float32 activations, not weights = bfloat16",
        ),
        (
            target(weights="float32", attention="flash_attn"),
            "models.target: attention = flash_attn needs weights = bfloat16 or fp16, not float32",
        ),
        (
            target(device="cpu", cuda_graphs="auto"),
            "models.target: cuda_graphs = auto needs a CUDA device, not device = cpu: leave it out there",
        ),
        (target(cuda_graphs=True), "models.target.cuda_graphs = true: should be 'auto' or 'off'"),
        (
            target(attention="flash"),
            "models.target.attention = \"flash\": should be 'auto', 'sdpa', 'flash_attn' or 'paged_cpu'",
        ),
        (target(tp_plan="manual"), "models.target.tp_plan = \"manual\": should be 'auto'"),
        (
            target(tp_plam="auto"),
            "unknown key models.target.tp_plam; did you mean tp_plan? Allowed: attention, cuda_graphs, device, ",
        ),
        (target(expect={**EXPECT, "hidden_size": 0}), "models.target.expect.hidden_size = 0: should be greater than"),
        (
            target(expect={k: v for k, v in EXPECT.items() if k != "hidden_size"}),
            "missing key models.target.expect.hidden_",
        ),
        (
            target(expect={**EXPECT, "architecture": "FooForCausalLM"}),
            'models.target.expect.architecture = "FooForCausalLM": should be an architecture that runs here',
        ),
        (
            target(expect={**EXPECT, "architecture": "MixtralForCausalLM"}),
            'models.target.expect.architecture = "MixtralForCausalLM": has experts, which these keys do not describe',
        ),
        (
            target(expect={**EXPECT, "layers": 3}),
            "unknown key models.target.expect.layers; Allowed: architecture, head_dim, ",
        ),
        (
            {"speculation": {"draft_length": "long"}},
            "speculation.draft_length = \"long\": should be 'fixed' or 'adaptive'",
        ),
        (
            {"speculation": {"verifier": "flyy"}},
            "speculation.verifier = \"flyy\": should be 'off', 'strict', 'fly', 'csd', 'hybrid', 'lossy' or 'typical'",
        ),
        (
            {"speculation": {"verifiers": {"fly": {"window": -1}}}},
            "speculation.verifiers.fly.window = -1: should be greater than or equal to 0",
        ),
        (
            {"speculation": {"verifiers": {"fly": {"windw": 1}}}},
            "key speculation.verifiers.fly.windw; did you mean window? Allowed: entropy, entropy_threshold, window",
        ),
        (
            {"models": {"target": {"source": "./m", "weights": "fp8"}}},
            "models.target.weights = \"fp8\": should be 'fp16', 'int8_split', 'int8_mixed', 'int8', 'float32' "
            "or 'bfloat16'",
        ),
        (
            {"models": {"target": {"source": "name"}}},
            'models.target.source = "name": should be a local folder, a .gguf file or a Hugging Face name',
        ),
        (
            {"models": {"target": {"source": ["org/name", "name"]}}},
            'models.target.source[1] = "name": should be a local folder, a .gguf file or a Hugging Face name',
        ),
        (
            {"models": {"target": {"source": "./m"}, "draft": {"source": "name"}}},
            "a Hugging Face name (organisation/model), or target for the target's own files",
        ),
        ({"models": {"target": {"name": "a"}, "draft": {"source": "target"}}}, "missing key models.target.source"),
        (
            {"models": {"target": {"source": {"pypi": "a==1"}, "sha256": "abc"}, "draft": {"source": "target"}}},
            'models.target.sha256 = "abc": should be 64 hex digits',
        ),
        ({"scheduler": {"max_running": True}}, "scheduler.max_running = true: should be a number"),
        ({"server": {"drain_seconds": False}}, "server.drain_seconds = false: should be a number"),
        ({"max_context": True}, "max_context = true: should be a number"),
        (target(size=True), "models.target.size = true: should be a number"),
        ({"models": {"target": {"source": {"url": "x"}}}}, "should have one of the keys path, huggingface or pypi"),
        (
            {"models": {"target": {"source": {"pypi": "name"}}}},
            "models.target.source.pypi = \"name\": 'name' should be pinned, as in name==1.0",
        ),
        (
            {"models": {"target": {"source": {"pypi": "p{3..1}==1"}}}},
            "{3..1} in 'p{3..1}==1' should count upwards",
        ),
        (
            {"models": {"target": {"source": "./folder", "sha256": "a" * 64}}},
            "models.target: sha256 is of a GGUF file, and no source gives one",
        ),
        (
            {"speculation": {"num_draft_tokens": 40}},
            "speculation: num_draft_tokens = 40 must not exceed max_num_draft_tokens = 32",
        ),
        (
            {"speculation": {"drafter": "model"}},
            "speculation.drafter = model needs a draft model: set models.draft, or use auto or prompt_lookup",
        ),
        (
            {"speculation": {"drafter": "datastore"}},
            "speculation: the drafter datastore needs files to draw on: set speculation.datastore",
        ),
        (
            {"speculation": {"allowed_drafters": ["datastore"]}},
            "speculation: the drafter datastore needs files to draw on: set speculation.datastore",
        ),
        (
            {"speculation": {"datastore": []}},
            "speculation.datastore.files = []: Tuple should have at least 1 item",
        ),
        (
            {"speculation": {"costs": {"target": {1: 1.0, 8: 1.5}, "draft": {1: 0.3}}}},
            "speculation.costs.draft must be given if, and only if, there is a models.draft",
        ),
        (
            {"speculation": {"costs": {"target": {0: 1.0, 8: 1.5}}}},
            "speculation.costs.target.[key] = 0: should be greater than or equal to 1",
        ),
        (
            {"speculation": {"costs": {"target": {2: 1.0, 8: 1.5}}}},
            "speculation.costs: target must say what 1 row costs: all else is compared with it",
        ),
        (
            {"speculation": {"costs": {"target": {1: 100, 8: 50}}}},
            "speculation.costs: target must not fall: more rows never cost less",
        ),
        (
            {"speculation": {"allowed_verifiers": ["off"]}},
            "speculation: verifier = strict must be one of allowed_verifiers (off)",
        ),
        (
            {"max_context": 99999, "kv_cache": {"tokens": 32768}},
            "max_context = 99999 must not exceed kv_cache.tokens = 32768",
        ),
        (
            {"audit": {"floor": 0.9}},
            "audit: floor = 0.9 needs a sample_rate above 0: without an audit nothing is judged",
        ),
        ({"audit": {"sample_rate": 1.5}}, "audit.sample_rate = 1.5: should be less than or equal to 1"),
        ({"scheduler": {"prefill_chunk": 900}}, "prefill_chunk = 900 must not exceed round_tokens = 512"),
        (
            {
                "scheduler": {"prefill_chunk": 8, "round_tokens": 32},
                "speculation": {"allowed_verifiers": ["strict", "csd"]},
            },
            "speculation.max_num_draft_tokens = 32 must be below scheduler.round_tokens = 32, as long as "
            "speculation.allowed_verifiers has csd",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    text = refusal(tmp_path, **sections)
    assert text.startswith("/config.yaml: ")
    assert message in text
    assert "\n" not in text


def test_the_line_says_where_the_value_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(tmp_path, {"server": {"port": -1}}).startswith("command line: server.port = -1: ")
    monkeypatch.setenv("SLIPSTREAM_SERVER__PORT", "http")
    assert refusal(tmp_path).startswith('SLIPSTREAM_SERVER__PORT: server.port = "http": should be a valid integer')


def test_keys_are_never_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_API_KEYS", "123456")
    assert refusal(tmp_path) == 'SLIPSTREAM_API_KEYS: server.api_keys: should be a list, such as ["sk-..."]'
    monkeypatch.setenv("SLIPSTREAM_API_KEYS", '["sk-secret", 7]')
    assert "secret" not in refusal(tmp_path)
    for blank in (" ", "sk-secret,"):
        monkeypatch.setenv("SLIPSTREAM_API_KEYS", blank)
        assert "empty key" in refusal(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_API_KEYS", '["sk-secret", ""]')
    assert "empty key" in refusal(tmp_path)
    assert "secret" not in refusal(tmp_path)


def test_an_unknown_variable_is_refused_but_not_a_platforms_service_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("SLIPSTREAM_PORT_8000_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("SLIPSTREAM_SERVICE_HOST", "10.0.0.1")
    load(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_API_KEY", "sk-secret")
    text = refusal(tmp_path)
    assert text.startswith("unknown environment variable SLIPSTREAM_API_KEY; did you mean SLIPSTREAM_API_KEYS? Allowed")
    assert "secret" not in text


def test_a_list_may_be_written_without_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_API_KEYS", "sk-1, sk-2")
    monkeypatch.setenv("SLIPSTREAM_SERVER__CORS_ORIGINS", "https://a.b")
    server = load(tmp_path).server
    assert [key.get_secret_value() for key in server.api_keys] == ["sk-1", "sk-2"]
    assert server.cors_origins == ("https://a.b",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("models: [", "not valid YAML in line 1, column 10"),
        ("- a", "should be a mapping of keys such as models"),
        ("1: 2", "should be a mapping of keys such as models"),
        ("", "should be a mapping of keys such as models"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_settings(file)
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="is a folder; name its files"):
        load_settings(tmp_path)


def test_what_is_allowed_but_odd_is_a_warning(tmp_path: Path) -> None:
    warnings = load(tmp_path, speculation={"num_draft_tokens": 6}, server={"host": "0.0.0.0"}).warnings()
    assert len(warnings) == 3
    assert "num_draft_tokens = 6 is not above speculation.verifiers.fly.window = 6" in warnings[0]
    assert "hybrid" in warnings[1]
    assert "without server.api_keys" in warnings[2]
    for verifier, does in (("csd", "loosens nothing"), ("hybrid", "is fly alone")):
        (warning,) = load(tmp_path, speculation={"verifier": verifier}).warnings()
        assert warning == f"speculation.verifier = {verifier} {does} without a speculation.correction_memory"
    only_strict = {"num_draft_tokens": 6, "allowed_verifiers": ["strict"]}
    assert not load(tmp_path, speculation=only_strict).warnings()


def test_blocks_that_may_be_cut_need_not_fit_into_a_round(tmp_path: Path) -> None:
    small = {"prefill_chunk": 8, "round_tokens": 8}
    load(tmp_path, scheduler=small, speculation={"allowed_verifiers": ["off", "strict"]})
    load(tmp_path, scheduler=small, speculation={"num_draft_tokens": 7, "max_num_draft_tokens": 7})


def test_a_correction_memory_is_a_source_or_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(value: Any) -> Any:
        return load(tmp_path, speculation={"correction_memory": value}).speculation.correction_memory

    assert memory(None) is None
    assert memory("m.npz") == memory({"source": "m.npz"})
    section = {"source": "sqlite:///m.db", "namespace": "code", "dynamic": True, "cap": 9, "sync_seconds": 2}
    assert memory(section).model_dump() == section
    for variable, value in (
        ("", "sqlite:///e.db"),
        ("", '{"source": "sqlite:///e.db"}'),
        ("__SOURCE", "sqlite:///e.db"),
    ):
        monkeypatch.setenv(f"SLIPSTREAM_SPECULATION__CORRECTION_MEMORY{variable}", value)
        assert memory({"source": "x.npz"} if variable else "x.npz").source == "sqlite:///e.db"
        monkeypatch.delenv(f"SLIPSTREAM_SPECULATION__CORRECTION_MEMORY{variable}")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"source": "m.npz", "dynamic": True}, "correction_memory.dynamic needs a database, such as"),
        ({"source": "m.npz", "namespace": "a"}, "correction_memory.namespace needs a database, such as"),
        (
            {"source": "postgresql://u:secret@h/d", "nmespace": "a"},
            "unknown key speculation.correction_memory.nmespace",
        ),
        ({"source": "sqlite://", "cap": 0}, "speculation.correction_memory.cap = 0: should be greater than or equal"),
        ({"namespace": "a"}, "missing key speculation.correction_memory.source"),
        (3, "speculation.correction_memory = 3: "),
    ],
)
def test_what_is_wrong_with_a_correction_memory_is_said_without_its_password(
    tmp_path: Path, value: Any, complaint: str
) -> None:
    said = refusal(tmp_path, speculation={"correction_memory": value})
    assert complaint in said
    assert "secret" not in said


def test_the_names_that_settings_spell_out_are_cores() -> None:
    assert get_args(VerifierName) == tuple(VerifierSettings.model_fields) == tuple(VERIFIERS)
    assert get_args(DrafterName) == DRAFTERS
    assert set(get_args(Weights)) == set(get_args(WeightKind))
    assert set(get_args(Attention)) == {"auto", *BACKENDS}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: &a [*a]\nmodels: *a\n", "contains itself"),
        ("models: " + "[" * 5000, "nested too deeply"),
        ("models: {target: {source: a/b}, target: {source: c/d}}", "key 'target' given twice"),
    ],
)
def test_yaml_that_is_no_configuration_is_one_clear_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_settings(file)
    assert len(str(caught.value).splitlines()) == 1


def test_a_mistake_that_file_and_environment_make_together_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_MAX_CONTEXT", "99999999")
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path))  # has nothing to do with it
    monkeypatch.setenv("SLIPSTREAM_API_KEYS", "sk-1")
    text = refusal(tmp_path, kv_cache={"tokens": 1000})
    assert text.startswith("/config.yaml with SLIPSTREAM_MAX_CONTEXT: max_context = 99999999")


def test_off_without_quotes_is_a_boolean_to_yaml_and_off_to_us(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("models: {target: {source: ./t, cuda_graphs: off}}")
    assert load_settings(file).models.target.cuda_graphs == "off"
