"""Attention backends against each other and against the obvious; which one is chosen where; what is refused."""

import ast
import inspect
import os
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.layout import RaggedLayout, Segment
from core.models.attention import (
    BackendSpec,
    RaggedContext,
    _attend,
    backend_named,
    choose_backend,
    common_block_size,
)
from core.models.attention_flash import flash_obstacle, prepare_flash
from core.models.attention_sdpa import SdpaAttention
from core.models.kv_cache import KVCache
from core.models.loader import load_model
from core.models.runner import ModelRunner
from tests.core.models.flash_stand_in import flash_attn_varlen_func
from tests.core.models.tiny import save_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
POOL = 10  # blocks


@st.composite
def layouts(draw: st.DrawFn) -> RaggedLayout:
    """Prefill chunks, verify blocks and decode rows over blocks in any order."""
    size = draw(st.sampled_from([256, 512]))
    free = draw(st.permutations(range(POOL)))
    segments = []
    for _ in range(draw(st.integers(1, 3))):
        context = draw(st.sampled_from([0, 1, 200, size - 3, size, size + 7]) | st.integers(0, 2 * size))
        rows = draw(st.sampled_from([1, 1, 4, 16, 33, 60]))
        needed = -(-(context + rows) // size)
        if needed > len(free):
            break
        spare = draw(st.integers(0, 1)) if needed < len(free) else 0  # a table may be longer than what is read
        segments.append(Segment((0,) * rows, context, tuple(free[: needed + spare]), rows))
        free = free[needed + spare :]
    return RaggedLayout.build(segments, size)


def filled_cache(layout: RaggedLayout, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Normal numbers where a segment has keys, huge ones everywhere else: who lets them count is found out."""
    cache = torch.full((POOL, layout.block_size, *shape), 1e4, dtype=dtype)
    for segment in layout.segments:
        for position in range(segment.context + len(segment.tokens)):
            block, offset = divmod(position, layout.block_size)
            cache[segment.blocks[block], offset] = torch.randn(shape).to(dtype)
    return cache


@given(
    layout=layouts(),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    window=st.sampled_from([None, 1, 5, 100, 300, 5000]),
    softcap=st.sampled_from([None, 0.5, 20.0]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_flash_and_sdpa_agree_on_any_layout(
    layout: RaggedLayout,
    heads: tuple[int, int],
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    # As transformers hands them over: a transposed view.
    query = torch.randn(heads[0], layout.num_rows, 16).to(dtype).transpose(0, 1)
    keys, values = (filled_cache(layout, (heads[1], 16), dtype) for _ in range(2))
    flash = prepare_flash(layout, dtype, CPU, flash_attn_varlen_func)
    got = flash(query, keys, values, 0.3, window, softcap)
    sdpa = SdpaAttention(layout, torch.float32, CPU)
    exact = sdpa(query.float(), keys.float(), values.float(), 0.3, window, softcap)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(got.float(), exact, atol=2 * rounding, rtol=rounding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_sdpa_in_half_precision_is_near_its_float32(dtype: torch.dtype, softcap: float | None) -> None:
    torch.manual_seed(1)
    layout = RaggedLayout.build([Segment((0,) * 5, 20, (3, 1), 5), Segment((0,) * 40, 2, (7, 4, 5), 40)], 16)
    query, shape = torch.randn(45, 4, 16).to(dtype), (2, 16)
    keys, values = (filled_cache(layout, shape, dtype) for _ in range(2))
    half = SdpaAttention(layout, dtype, CPU)(query, keys, values, 0.25, 9, softcap)
    exact = SdpaAttention(layout, torch.float32, CPU)(query.float(), keys.float(), values.float(), 0.25, 9, softcap)
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), exact, atol=4 * torch.finfo(dtype).eps, rtol=0.0)


def flash_signature_in(source: str) -> list[tuple[str, Any]]:
    """Parameters of flash_attn_varlen_func as its source has them: names and defaults, in order."""
    tree = ast.parse(source)
    [function] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "flash_attn_varlen_func"]
    assert not function.args.kwonlyargs
    assert not function.args.posonlyargs
    names = [argument.arg for argument in function.args.args]
    defaults = [ast.literal_eval(default) for default in function.args.defaults]
    return list(zip(names, [inspect.Parameter.empty] * (len(names) - len(defaults)) + defaults, strict=True))


def flash_source() -> Path | None:
    """flash_attn_interface.py of the installed package, or of an unpacked source distribution."""
    folder = os.environ.get("FLASH_ATTN_SOURCE")
    if folder is not None:
        return Path(folder) / "flash_attn" / "flash_attn_interface.py"
    package = find_spec("flash_attn")
    return (
        None if package is None or package.origin is None else Path(package.origin).parent / "flash_attn_interface.py"
    )


def test_the_stand_in_has_flash_attns_own_signature() -> None:
    """Seen equal to that of flash-attn 2.8.3.post2's source distribution; FLASH_ATTN_SOURCE names one unpacked."""
    path = flash_source()
    if path is None:
        pytest.skip("flash-attn is not installed, and FLASH_ATTN_SOURCE names no unpacked source distribution")
    parameters = inspect.signature(flash_attn_varlen_func).parameters.values()
    assert [(p.name, p.default) for p in parameters] == flash_signature_in(path.read_text())


def test_flash_tables_are_padded_and_cut_to_what_is_read() -> None:
    layout = RaggedLayout.build([Segment((0,), 300, (7, 2, 9), 1), Segment((0, 0, 0), 6, (5,), 3)], 256)
    flash = prepare_flash(layout, torch.bfloat16, CPU, flash_attn_varlen_func)
    assert flash.row_starts.tolist() == [0, 1, 4]
    assert flash.key_starts.tolist() == [0, 301, 310]
    assert flash.table.tolist() == [[7, 2], [5, 0]]
    assert (flash.most_rows, flash.most_keys) == (3, 301)


@pytest.mark.parametrize("family", ["qwen2", "mistral-window"])
def test_a_model_through_flash_computes_what_it_computes_through_sdpa(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    spec = BackendSpec("stand-in", partial(prepare_flash, varlen=flash_attn_varlen_func), block_size=256)
    flash = ModelRunner(load_model(tmp_path, "bfloat16"), 4, 256, spec)
    sdpa = ModelRunner(load_model(tmp_path, "bfloat16"), 4, 256)
    for tokens, context, blocks in [((5, 6, 7, 8, 9), 0, (2,)), ((3,), 5, (2,)), (tuple(range(3, 180)) * 2, 6, (2, 0))]:
        layout = RaggedLayout.build([Segment(tokens, context, blocks, 1)], 256)
        got, expected = flash.forward(layout), sdpa.forward(layout)
        assert (got - expected).norm() < 0.03 * expected.norm()


def test_the_backend_is_chosen_by_what_can_work() -> None:
    assert choose_backend(CPU, torch.bfloat16) == "sdpa"
    assert choose_backend(CPU, torch.float32) == "paged_cpu"
    assert choose_backend(CPU, torch.float32, head_dim=12) == "sdpa"
    assert choose_backend(CPU, torch.float32, "sdpa") == "sdpa"
    for device, dtype, dim, why in [
        (CPU, torch.bfloat16, 64, "needs float32 activations, not bfloat16"),
        (CUDA, torch.float32, 64, "needs a CPU"),
        (CPU, torch.float32, 12, "needs a head dimension that is a multiple of 8, not 12"),
    ]:
        with pytest.raises(ValueError, match=f"attention backend paged_cpu {why}"):
            choose_backend(device, dtype, "paged_cpu", dim)
    with pytest.raises(ValueError, match="attention backend flash_attn needs a CUDA device, not cpu"):
        choose_backend(CPU, torch.bfloat16, "flash_attn")
    with pytest.raises(ValueError, match="known are sdpa, flash_attn, paged_cpu"):
        choose_backend(CPU, torch.bfloat16, "telepathy")


def test_flash_says_what_it_lacks() -> None:
    assert flash_obstacle(CUDA, torch.float32, None) == "needs bfloat16 or fp16 weights, not float32"
    wide = flash_obstacle(CUDA, torch.float16, 512)
    assert wide == "needs head dimensions that are multiples of 8 up to 256, not 512"


@pytest.mark.parametrize(("installed", "fits"), [(None, False), ("2.4.2", False), ("4.0.0", False), ("2.8.3", True)])
def test_flash_needs_a_release_whose_calls_are_known(
    installed: str | None, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name != "flash-attn" or installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("core.models.flash_version.version", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("core.models.attention_flash._installed", lambda: flash_attn_varlen_func)
    obstacle = flash_obstacle(CUDA, torch.float16, 64)
    assert obstacle == (None if fits else "needs the flash-attn package, >=2.8,<3")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_without_a_cuda_device_auto_does_without_flash() -> None:
    assert choose_backend(CUDA, torch.bfloat16) == "sdpa"
    with pytest.raises(ValueError, match="flash_attn needs a CUDA device, and torch sees none"):
        choose_backend(CUDA, torch.bfloat16, "flash_attn")


@pytest.mark.parametrize(
    ("backends", "size"),
    [
        (["sdpa"], 16),
        (["sdpa", "sdpa"], 16),
        (["flash_attn"], 256),
        (["flash_attn", "sdpa"], 256),
        (["sdpa", "flash_attn"], 256),
        ([], 16),
    ],
)
def test_one_block_size_suits_all_backends(backends: list[str], size: int) -> None:
    assert common_block_size(backends) == size


def test_a_runner_refuses_what_its_backend_cannot_do(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "float32")
    with pytest.raises(ValueError, match="needs a CUDA device"):
        ModelRunner(loaded, 4, 256, "flash_attn")
    with pytest.raises(ValueError, match="multiple of 256"):
        ModelRunner(loaded, 4, 384, BackendSpec("paged", prepare_flash, block_size=256))
    assert backend_named("flash_attn").block_size == 256


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s_aux", torch.zeros(4)),
        ("position_bias", torch.zeros(1)),
        ("attention_mask", torch.zeros(1)),
        ("is_causal", False),
        ("dropout", 0.1),
        ("indices", torch.zeros(1)),
        ("something_new", 3),
    ],
)
def test_attention_that_it_cannot_honour_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        attend(**{name: value})


def test_arguments_without_effect_are_let_through() -> None:
    harmless = {"dropout": 0.0, "is_causal": True, "position_ids": torch.zeros(1, 1), "use_cache": False, "s_aux": None}
    torch.testing.assert_close(attend(**harmless), attend())


def attend(**arguments: Any) -> Tensor:
    """One row through one layer of a cache of its own."""
    torch.manual_seed(0)
    config = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=2, head_dim=8)
    layout = RaggedLayout.build([Segment((0,), 0, (0,), 1)], 4)
    cache = KVCache(config, 1, 4, torch.float32, CPU)
    ragged = RaggedContext(SdpaAttention(layout, torch.float32, CPU), cache, torch.tensor([0]))
    module: Any = SimpleNamespace(layer_idx=0)
    query, key, value = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8)
    mask = arguments.pop("attention_mask", None)
    return _attend(module, query, key, value, mask, 0.3, ragged, **arguments)[0]
