"""On what, with what and when something was measured: figures mean nothing without it."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("slipstream", "torch", "transformers", "xllamacpp")
# The instruction sets that decide how fast matrices multiply on a CPU.
_FLAGS = re.compile(r"avx2|avx512\w*|avx_vnni|amx_\w+|fma|f16c|asimd\w*|sve\w*|i8mm|bf16")


def circumstances() -> dict[str, Any]:
    """Date, machine, versions and commit, ready for JSON."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))}
        | {"python": platform.python_version()},
        "commit": commit(),
    }


def machine() -> dict[str, Any]:
    described = _cpuinfo()
    return {
        "cpu": described.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "flags": sorted(flag for flag in described.get("flags", "").split() if _FLAGS.fullmatch(flag)),
        "memory_gib": _memory_gib(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def one_line(facts: dict[str, Any]) -> str:
    """The machine in words: "Some CPU @ 2 GHz, 2 cores (avx2, avx512f), 23 GiB"."""
    wide = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "amx_int8", "asimd", "sve") if flag in facts["flags"]]
    sets = f" ({', '.join(wide)})" if wide else ""
    memory = f", {facts['memory_gib']} GiB" if facts["memory_gib"] else ""
    return f"{facts['cpu']}, {facts['cores']} cores{sets}{memory}" + "".join(f", {gpu}" for gpu in facts["gpus"])


def commit() -> str | None:
    """The checkout's commit, "-dirty" behind it if files differ from it; None outside a git checkout."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None if described.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is none."""
    file = Path("/proc/cpuinfo")
    if not file.exists():
        return {}
    first = file.read_text("utf-8").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    found = {key.strip(): value.strip() for key, _, value in pairs}
    return {"flags": found.get("Features", ""), **found}


def _memory_gib() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None
