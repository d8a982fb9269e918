"""How long a device takes for what it is given, where it runs behind the host: CUDA forwards return at once."""

from time import perf_counter

import torch


class DeviceInterval:
    """From its making to `end`, in the device's own time, which on CUDA costs two events and no waiting."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._marks = [self._now()]

    def end(self) -> None:
        self._marks.append(self._now())

    def seconds(self) -> float:
        """After `end`. Waits until the device has got there, unless somebody has waited for later work already."""
        began, ended = self._marks
        if isinstance(began, float) or isinstance(ended, float):
            return float(ended) - float(began)
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1000

    def _now(self) -> "float | torch.cuda.Event":
        if self._stream is None:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event
