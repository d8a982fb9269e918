"""How much of the machine's CPUs this process may use: a container's limit, which torch does not ask for.

With more threads than the limit allows, all of them are stopped again and again in the middle of a matrix product, and
the others spin meanwhile.
"""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def compute_threads(chosen: int | None, available: int) -> int:
    """Threads for the forward: what the configuration chose, or what torch would take (`available`), no more than the
    quotas leave of it."""
    return chosen or min(available, allowed_cpus() or available)


def allowed_cpus(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int | None:
    """Whole CPUs that the control groups' quotas (versions 1 and 2) leave this process; None without a quota."""
    quotas = [quota for folder in _folders(cgroups, membership) if (quota := _quota(folder)) is not None]
    return max(1, int(min(quotas))) if quotas else None


def _folders(cgroups: Path, membership: Path) -> list[Path]:
    """Of this process's group and those around it, each of which may have a limit. In a container the group it is in
    is often mounted as the root, under a path that exists only outside."""
    found = []
    for line in _read(membership).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / "cpu" if controllers else cgroups
        inside = root / path.strip("/")
        found += [folder for folder in (inside, *inside.parents) if folder == root or root in folder.parents]
    return list(dict.fromkeys([*found, cgroups, cgroups / "cpu"]))


def _quota(folder: Path) -> float | None:
    """CPUs, maybe a fraction; None if there is no limit here."""
    limit, _, period = _read(folder / "cpu.max").partition(" ")  # "max 100000", "150000 100000"
    if not limit:
        limit, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")  # "-1": none
    try:
        quota = int(limit) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return quota if quota > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""
