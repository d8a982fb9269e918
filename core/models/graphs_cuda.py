"""CudaRecorder: recordings as CUDA graphs, all in one memory pool, since a model's forwards run one after another."""

from collections.abc import Callable
from typing import Any

import torch

from core.models.graphs import Replay


class CudaRecorder:
    """For forwards of one device, by one thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def record(self, run: Callable[[], None]) -> Replay:
        """RuntimeError if the function waits for the device, allocates what a graph may not, or memory is short."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                run()  # loads kernels and makes workspaces, neither of which a recording may
                _run_without_waiting(run)
            current.wait_stream(self._stream)
            try:
                return self._capture(run)
            finally:
                torch.cuda.set_stream(current)  # a failed capture leaves its own behind

    def _capture(self, run: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        self._pool = graph.pool()
        return graph.replay


def _run_without_waiting(run: Callable[[], None]) -> None:
    """What waits for the device could not be recorded, and a failed recording is harder on CUDA than this."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode(before)
