"""Host numbers onto a device, without waiting for what the device is still doing."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: Sequence[Any] | NDArray[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers, or lists of them of one length, as a tensor on the device.

    `torch.tensor(values, device="cuda")` would stop the host until the device's queue is empty; a copy from
    pinned memory just joins the queue. torch keeps the pinned memory until the copy has run.
    """
    host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)
