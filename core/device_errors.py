"""What an exception says of the device: out of memory, which passes, or lost, which does not.

After an illegal access, a failed assertion in a kernel or a fallen link every later call of the process fails too:
CUDA's context cannot be had back but by a new process.
"""

from collections.abc import Iterator

import torch

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    return any(
        isinstance(one, torch.OutOfMemoryError)
        or (_is_devices(one) and any(said in str(one) for said in _OUT_OF_MEMORY))
        for one in _causes(error)
    )


def is_device_lost(error: BaseException) -> bool:
    return not is_out_of_memory(error) and any(_is_devices(one) for one in _causes(error))


def free_device_memory() -> None:
    """Give back what the allocator keeps for later, in pieces that may not fit what is asked for."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _is_devices(error: BaseException) -> bool:
    """Libraries on the device (cuBLAS, cuDNN) report as plain RuntimeErrors."""
    return isinstance(error, torch.AcceleratorError) or (isinstance(error, RuntimeError) and "CUDA error" in str(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
