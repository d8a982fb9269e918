"""Huge pages: a CPU reads weights faster where its page tables name 2 MB at a time rather than 4 kB.

Most systems give huge pages to memory that a program asks them for, and weights are packed into memory of the C
library's. glibc asks if a tunable says so; it reads them when a program begins, so this one begins once more.
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_VARIABLE = "GLIBC_TUNABLES"
_ASKED = "HUGE_PAGES_ASKED"
"""Set at the second start: glibc takes its tunables out of the environment of a program with capabilities."""
# Beside the huge pages: what loading and forwards free and want again soon is kept, as each new piece of it would be
# cleared by whole pages. Loading ends with core.heap.trim_heap.
_TUNABLES = {
    "glibc.malloc.hugetlb": 1,
    "glibc.malloc.mmap_threshold": 32 << 20,
    "glibc.malloc.trim_threshold": 128 << 20,
}
_SINCE = (2, 35)
_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def ask_for_huge_pages() -> None:
    """Start this program again, with the same arguments and as the same process, where that gives it huge pages.
    Otherwise, and the second time, nothing happens; nor if the user's own tunables decide about them."""
    if sys.platform != "linux" or not sys.executable:
        return
    tunables = needed_tunables(os.environ, _mode(), _libc())
    if tunables is not None:
        with suppress(OSError):
            command = [sys.executable, *sys.orig_argv[1:]]
            os.execve(sys.executable, command, {**os.environ, _VARIABLE: tunables, _ASKED: "1"})


def needed_tunables(environment: Mapping[str, str], mode: str, libc: str) -> str | None:
    """What GLIBC_TUNABLES must be; None if it would not help, or says already what is to be done.

    mode: the system's, with the chosen one in brackets, `always [madvise] never`. libc: as in `glibc 2.36`.
    """
    version = re.fullmatch(r"glibc (\d+)\.(\d+).*", libc)
    if version is None or tuple(map(int, version.groups())) < _SINCE or "[madvise]" not in mode:
        return None
    own = environment.get(_VARIABLE, "")
    if _ASKED in environment or "glibc.malloc.hugetlb" in own:
        return None
    return ":".join([*filter(None, [own]), *(f"{k}={v}" for k, v in _TUNABLES.items() if k not in own)])


def _mode() -> str:
    try:
        return _MODE.read_text()
    except OSError:  # a kernel without them
        return ""


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:  # another C library
        return ""
