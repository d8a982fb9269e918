"""On a real CUDA device: forwards recorded in CUDA graphs compute, without waiting, what they compute unrecorded; what
cannot be recorded leaves the device as it was. And attention in shared calls is that of every segment alone."""

import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from core.layout import RaggedLayout, Segment
from core.models.attention_batched import BatchedSdpa, prepare_sdpa
from core.models.attention_sdpa import SdpaAttention
from core.models.graphs import MOST_GRAPHS
from core.models.graphs_cuda import CudaRecorder
from core.models.loader import load_model
from core.models.runner import ModelRunner
from core.models.scratch import measure_graphs
from tests.core.models import test_attention_batched, test_graphs
from tests.core.models.tiny import FAMILIES, save_model
from tests.core.test_cuda import CUDA, HALF, NAMES, need, no_waiting, runtime_on
from tests.core.test_exactness import request_for
from tests.excuses import excused
from tests.tiny import outputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = torch.device("cuda", 0)
BACKENDS = pytest.mark.parametrize("backend", ["sdpa", "flash_attn"])
BLOCKS = 40


def runners(folder: Path, backend: str, weights: str = "bfloat16") -> tuple[ModelRunner, ModelRunner]:
    """The same model plain and recorded, over caches of zeros: what nobody wrote must not be NaN by chance."""
    plain = ModelRunner(load_model(folder, weights, DEVICE), BLOCKS, 256, backend)  # type: ignore[arg-type]
    loaded = load_model(folder, weights, DEVICE)  # type: ignore[arg-type]
    recorded = ModelRunner(loaded, BLOCKS, 256, backend, CudaRecorder(DEVICE))
    for runner in (plain, recorded):
        for layer in range(loaded.config.num_hidden_layers):
            for tensor in runner.cache.layer(layer):
                tensor.zero_()
    return plain, recorded


def prompt(tokens: int, block: int) -> RaggedLayout:
    return RaggedLayout.build([Segment(tuple(i % 190 + 3 for i in range(tokens)), 0, (block,), 1)], 256)


@BACKENDS
@pytest.mark.parametrize("family", FAMILIES)
def test_a_recorded_family_computes_what_it_computes_unrecorded(family: str, backend: str, tmp_path: Path) -> None:
    """Or refuses to be recorded, and computes it all the same."""
    need(backend, torch.bfloat16)
    save_model(tmp_path, family)
    plain, recorded = runners(tmp_path, backend)
    for block in range(3):
        for runner in (plain, recorded):
            runner.forward(prompt(40 + block, block))
    for rows in ((1,), (1, 1), (5, 1, 2), (2, 7, 1), (1, 1, 1), (4, 4, 4)):
        segments = [Segment((7,) * n, 40 + i, (i,), n) for i, n in enumerate(rows)]
        layout = RaggedLayout.build(segments, 256)
        want, got = plain.forward(layout), recorded.forward(layout)
        # The median, for half precision may send a row to another expert.
        error = (got - want).norm(dim=1) / want.norm(dim=1)
        assert error.median() < 10 * torch.finfo(torch.bfloat16).eps


@BACKENDS
def test_any_batch_is_what_it_is_unrecorded_and_never_waits(backend: str, tmp_path: Path) -> None:
    need(backend, torch.float16)
    save_model(tmp_path, "llama")
    plain, recorded = runners(tmp_path, backend, "fp16")
    assert recorded.recorded is not None

    @settings(max_examples=60, deadline=None)
    @given(test_graphs.batches(size=256, blocks=BLOCKS))
    def test(layout: RaggedLayout) -> None:
        want, got = plain.forward(layout), recorded.forward(layout)
        assert (got - want).norm() < 0.02 * want.norm()
        with no_waiting():
            again = recorded.forward(layout)
        assert torch.equal(again, got)

    test()
    assert 4 < len(recorded.recorded.shapes) <= MOST_GRAPHS
    for layer in range(plain.loaded.config.num_hidden_layers):
        for one, other in zip(plain.cache.layer(layer), recorded.cache.layer(layer), strict=True):
            torch.testing.assert_close(other[:BLOCKS], one, atol=0.02, rtol=0.02)


@BACKENDS
def test_strict_equals_off_over_recorded_forwards(backend: str) -> None:
    need(backend, torch.bfloat16)
    runtime, excuses = runtime_on(CUDA, CUDA, torch.bfloat16, backend, CudaRecorder), 0
    plain = outputs(runtime_on(CUDA, None, torch.bfloat16, backend), [request_for(name) for name in NAMES])
    requests = [request_for(name, drafter="multilevel", num_draft_tokens=6) for name in NAMES]
    for request, got, want in zip(requests, outputs(runtime, requests), plain, strict=True):
        if got != want:
            assert excused(runtime.target, request, want, got, 7), (request, want, got)
            excuses += 1
    assert excuses <= len(NAMES)
    for runner in (runtime.target, runtime.draft):
        assert runner is not None
        assert runner.recorded is not None
        assert runner.recorded.shapes


def test_what_waits_is_found_before_it_is_captured_and_nothing_is_left_behind() -> None:
    recorder, total = CudaRecorder(DEVICE), torch.zeros(1, device=DEVICE)
    stream, calls = torch.cuda.current_stream(DEVICE), []

    def waits() -> None:
        calls.append(1)
        total.add_(1).item()

    with pytest.raises(RuntimeError):
        recorder.record(waits)
    assert len(calls) == 2
    assert torch.cuda.get_sync_debug_mode() == 0
    assert torch.cuda.current_stream(DEVICE) == stream
    recorder.record(lambda: total.add_(10))()  # warms up twice, replays once
    assert total.item() == 32


def test_a_failed_capture_leaves_the_device_usable() -> None:
    recorder, total = CudaRecorder(DEVICE), torch.zeros(1, device=DEVICE)
    stream, calls = torch.cuda.current_stream(DEVICE), []

    def fails_when_captured() -> None:
        calls.append(1)
        total.add_(1)
        if len(calls) == 3:
            torch.cuda.synchronize()

    with pytest.raises(RuntimeError):
        recorder.record(fails_when_captured)
    assert torch.cuda.current_stream(DEVICE) == stream
    assert total.add_(1).item() == 3
    recorder.record(lambda: total.add_(10))()
    assert total.item() == 33


def test_a_model_that_waits_runs_unrecorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_model(tmp_path, "llama")
    plain, recorded = runners(tmp_path, "sdpa")
    recorded.loaded.model.model.norm.register_forward_hook(lambda module, given, out: out * float(out.abs().sum() > 0))
    with caplog.at_level(logging.WARNING):
        got = recorded.forward(prompt(5, 0))
    assert "have not been recorded in CUDA graphs" in caplog.text
    torch.testing.assert_close(got, plain.forward(prompt(5, 0)))


def test_recordings_take_memory_that_is_known_beforehand(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "bfloat16", DEVICE)
    assert 0 < measure_graphs(loaded, "sdpa", 16) < 10**10


@pytest.mark.parametrize("window", [None, 9, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_shared_calls_compute_what_every_segment_alone_gives(
    dtype: torch.dtype, softcap: float | None, window: int | None
) -> None:
    torch.manual_seed(0)
    rows, contexts = (1, 5, 1, 32, 40, 2), (100, 0, 17, 60, 3, 139)
    segments, free = [], 0
    for count, context in zip(rows, contexts, strict=True):
        needed = -(-(context + count) // test_attention_batched.SIZE)
        segments.append(Segment((0,) * count, context, tuple(range(free, free + needed)), 1))
        free += needed
    layout = RaggedLayout.build(segments, test_attention_batched.SIZE)
    query = torch.randn(8, layout.num_rows, 64).to(DEVICE, dtype).transpose(0, 1)
    keys, values = (test_attention_batched.filled_cache(layout, (2, 64)).to(DEVICE, dtype) for _ in range(2))
    batched = prepare_sdpa(layout, dtype, DEVICE)
    assert isinstance(batched, BatchedSdpa)
    batched(query, keys, values, 0.125, window, softcap)  # loads kernels
    with no_waiting():
        got = prepare_sdpa(layout, dtype, DEVICE)(query, keys, values, 0.125, window, softcap)
    exact = SdpaAttention(layout, torch.float32, DEVICE)
    want = exact(query.float(), keys.float(), values.float(), 0.125, window, softcap)
    assert (got.float() - want).abs().max() < 8 * torch.finfo(dtype).eps
