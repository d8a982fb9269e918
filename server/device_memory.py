"""What a device has of memory and what of it is free: the one place where that is read."""

import os
from dataclasses import dataclass
from pathlib import Path

# Control groups, version 2 and 1: the limit, what is used, and the names in `stat` of file pages that can be given up.
_CGROUPS = (
    ("memory.max", "memory.current", "memory.stat", ("active_file", "inactive_file")),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        ("total_active_file", "total_inactive_file"),
    ),
)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes."""

    free: int
    total: int

    @property
    def used(self) -> int:
        return self.total - self.free


def device_memory(device: str) -> DeviceMemory:
    """Of "cpu" or of a CUDA device that is here ("cuda:0"); asking starts CUDA on it."""
    if device == "cpu":
        return cpu_memory()
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(free, total)


def cpu_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> DeviceMemory:
    """The machine's, or the container's where that is less. What files only cache counts as free."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _numbers(proc / "meminfo").get("MemAvailable:", total // 1024) * 1024
    for limit, current, stat, cached in _CGROUPS:
        most = _text(cgroup / limit)
        if not most.isdecimal() or int(most) >= total:  # "max", or a number beyond any machine
            continue
        total = int(most)
        pages = _numbers(cgroup / stat)
        used = int(_text(cgroup / current) or 0) - sum(pages.get(name, 0) for name in cached)
        free = min(free, total - max(0, used))
    return DeviceMemory(max(0, min(free, total)), total)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""


def _numbers(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    fields = [line.split() for line in _text(file).splitlines()]
    return {parts[0]: int(parts[1]) for parts in fields if len(parts) > 1 and parts[1].isdecimal()}
