"""How long a device takes for what it is given, where it runs behind the host: CUDA forwards return at once."""

from time import perf_counter

import torch


class DeviceInterval:
    """From its making to `end`, in the device's own time, which on CUDA costs two events and no waiting."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self._mark()

    def end(self) -> None:
        self._mark()

    def seconds(self) -> float:
        """After `end`. Waits until the device has got there, unless somebody has waited for later work already."""
        if self._stream is None:
            began, ended = self._times
            return ended - began
        first, last = self._events
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000

    def _mark(self) -> None:
        if self._stream is None:
            self._times.append(perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        self._events.append(event)
