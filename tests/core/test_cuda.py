"""On a real CUDA device: `off`'s tokens in every dtype, backend and placement, the CPU's evidence, no waiting.

flash-attn's own kernel is held against SDPA where the package is installed.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from transformers import PreTrainedModel

from core.device_clock import DeviceInterval
from core.evidence import gather_evidence
from core.layout import RaggedLayout, Segment
from core.models.attention import BACKENDS, choose_backend, common_block_size
from core.models.attention_sdpa import SdpaAttention
from core.models.graphs_cuda import CudaRecorder
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.penalties import RowGroup, edit_logits
from core.provenance import Provenance
from core.runtime import Runtime
from core.sampling import choose
from core.sequence import CommittedToken, Sequence
from tests.core.models.test_attention import filled_cache
from tests.core.test_devices import filtered_groups
from tests.core.test_evidence import batches, check_block, told, verdict
from tests.core.test_exactness import SAMPLING, draft_model, request_for, target_model
from tests.excuses import excused
from tests.tiny import EOS, loaded, make_request, outputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HALF = (torch.bfloat16, torch.float16)
NAMES = ("greedy", "greedy-penalties", "t1.3-free", "t1.3-top_k", "t0.7-everything")


def runner_on(
    device: torch.device,
    dtype: torch.dtype,
    model: PreTrainedModel,
    size: int,
    backend: str,
    recorder: type[CudaRecorder] | None = None,
) -> ModelRunner:
    placed = loaded(copy.deepcopy(model).to(device, dtype), "tiny", dtype, device)
    return ModelRunner(placed, 6400 // size, size, backend, recorder(device) if recorder is not None else None)


def runtime_on(
    target: torch.device,
    draft: torch.device | None,
    dtype: torch.dtype,
    wanted: str,
    recorder: type[CudaRecorder] | None = None,
) -> Runtime:
    devices = [device for device in (target, draft) if device is not None]
    backends = {device: choose_backend(device, dtype, "sdpa" if device == CPU else wanted) for device in devices}
    size = common_block_size(backends.values())
    return Runtime(
        target=runner_on(target, dtype, target_model(), size, backends[target], recorder),
        draft=None if draft is None else runner_on(draft, dtype, draft_model("noisy"), size, backends[draft], recorder),
        pool=BlockPool(6400 // size, size),
        control_ids=frozenset({0, 1, EOS}),
    )


def need(backend: str, dtype: torch.dtype) -> None:
    obstacle = BACKENDS[backend].obstacle(CUDA, dtype, 16)
    if obstacle is not None:
        pytest.skip(f"{backend} {obstacle}")


@contextmanager
def no_waiting() -> Iterator[None]:
    """RuntimeError for anything that makes the host wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("backend", ["sdpa", "flash_attn"])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize(("target", "draft"), [(CUDA, CUDA), (CUDA, CPU), (CPU, CUDA)], ids=str)
def test_strict_equals_off(target: torch.device, draft: torch.device, dtype: torch.dtype, backend: str) -> None:
    need(backend, dtype)
    plain = outputs(runtime_on(target, None, dtype, backend), [request_for(name) for name in NAMES])
    runtime, excuses = runtime_on(target, draft, dtype, backend), 0
    for drafter, num_draft_tokens in (("model", 4), ("multilevel", 15)):
        requests = [request_for(name, drafter=drafter, num_draft_tokens=num_draft_tokens) for name in NAMES]
        for request, got, want in zip(requests, outputs(runtime, requests), plain, strict=True):
            if got != want:
                rows = num_draft_tokens + 1
                assert excused(runtime.target, request, want, got, rows), (request, want, got)
                excuses += 1
    # Logits of half precision have many near ties, which a product of another shape may turn.
    assert excuses <= (1 if dtype == torch.float32 else len(NAMES))


@settings(deadline=None, max_examples=100)
@given(batches())
def test_evidence_is_the_cpus(batch) -> None:
    blocks, logits, control_ids = batch
    got = gather_evidence(logits.to(CUDA), blocks, control_ids, NoiseCache())
    for evidence, block in zip(got, blocks, strict=True):
        check_block(evidence, block, logits, control_ids)
    plain = gather_evidence(logits.clone(), blocks, control_ids, NoiseCache())
    for evidence, other, block in zip(got, plain, blocks, strict=True):
        assert verdict(evidence, block) == verdict(other, block)
        assert told(evidence) == told(other)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("backend", ["sdpa", "flash_attn"])
def test_strict_equals_off_on_two_devices(backend: str) -> None:
    test_strict_equals_off(torch.device("cuda", 0), torch.device("cuda", 1), torch.bfloat16, backend)


def test_penalties_of_a_long_text_are_the_cpus_and_never_wait() -> None:
    vocab = 30_000
    request = make_request(range(9, 20_000), repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1)
    sequence = Sequence(request)
    sequence.commit([CommittedToken(token, Provenance.TARGET) for token in (5, 7, 5)])
    groups = [RowGroup(sequence, 0, [25_000, 5][:step], 1) for step in range(3)]
    groups.append(RowGroup(sequence, 0, [25_000, 5], 3))
    plain = [torch.randn(group.count, vocab) * 3 for group in groups]
    placed = [logits.to(CUDA) for logits in plain]
    edit_logits(placed[0].clone(), groups[0])  # loads kernels
    with no_waiting():
        for logits, group in zip(placed, groups, strict=True):
            edit_logits(logits, group)
    for logits, there, group in zip(plain, placed, groups, strict=True):
        edit_logits(logits, group)
        assert torch.equal(there.cpu(), logits)


@pytest.mark.parametrize("count", [6, 60])
@pytest.mark.parametrize("vocab", [300, 152_064])
def test_sampling_is_the_cpus_and_never_waits(vocab: int, count: int) -> None:
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(count)) * 3
    logits[::2] = logits[::2].round()  # many equal ones
    groups = filtered_groups(count)
    want = choose(logits.clone(), groups, NoiseCache()).tokens
    choose(logits.to(CUDA), groups, NoiseCache())  # loads kernels
    placed = logits.to(CUDA)
    with no_waiting():
        got = choose(placed, groups, NoiseCache()).tokens
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("backend", ["sdpa", "flash_attn"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_forward_never_waits(dtype: torch.dtype, backend: str) -> None:
    need(backend, dtype)
    runner = runner_on(CUDA, dtype, target_model(), 256, backend)
    segments = [Segment((5, 6, 7), 300, (9, 3), 3), Segment((8,), 40, (5,), 1), Segment((4,) * 40, 500, (7, 6, 8), 0)]
    layout = RaggedLayout.build(segments, 256)
    runner.forward(layout)  # loads kernels, allocates
    with no_waiting():
        runner.forward(layout)


@pytest.mark.parametrize("window", [None, 1, 100, 300])
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("rows", [(1, 1, 1), (5, 1, 60)], ids=["decode", "mixed"])
def test_flash_attns_kernel_agrees_with_sdpa(
    rows: tuple[int, ...], dtype: torch.dtype, softcap: float | None, window: int | None
) -> None:
    need("flash_attn", dtype)
    torch.manual_seed(0)
    contexts, tables = (300, 0, 511), ((7, 2), (5, 0), (9, 1, 4))
    segments = [Segment((0,) * n, context, table, n) for n, context, table in zip(rows, contexts, tables, strict=True)]
    layout = RaggedLayout.build(segments, 256)
    query = torch.randn(4, layout.num_rows, 64).to(CUDA, dtype).transpose(0, 1)
    keys, values = (filled_cache(layout, (2, 64), dtype).to(CUDA) for _ in range(2))
    flash = BACKENDS["flash_attn"].prepare(layout, dtype, CUDA)
    got = flash(query, keys, values, 0.125, window, softcap)
    sdpa = SdpaAttention(layout, torch.float32, CUDA)
    exact = sdpa(query.float(), keys.float(), values.float(), 0.125, window, softcap)
    assert (got.float() - exact).abs().max() < 4 * torch.finfo(dtype).eps


def test_an_interval_is_the_devices_own_time() -> None:
    big = torch.randn(4096, 4096, device=CUDA)
    big @ big
    torch.cuda.synchronize()
    interval = DeviceInterval(CUDA)
    for _ in range(50):
        big = big @ big * 0.01
    interval.end()
    waited = interval.seconds()
    assert torch.cuda.current_stream(CUDA).query()  # nothing is left to do
    assert waited > 50 * 2 * 4096**3 / 5e15  # no device is that fast


def test_every_sampling_of_the_cpu_tests_exists() -> None:
    assert set(NAMES) <= set(SAMPLING)
