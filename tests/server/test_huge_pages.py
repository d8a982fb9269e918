import os
import subprocess
import sys

import pytest

from server import huge_pages
from server.huge_pages import needed_tunables
from tests.conftest import ROOT

MODE, LIBC = "always [madvise] never\n", "glibc 2.36"
OURS = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=134217728"


@pytest.mark.parametrize(
    ("own", "mode", "libc", "expected"),
    [
        ({}, MODE, LIBC, OURS),
        ({}, MODE, "glibc 3.0", OURS),
        ({}, "[always] madvise never", LIBC, None),  # all memory has them
        ({}, "always madvise [never]", LIBC, None),
        ({}, "", LIBC, None),
        ({}, MODE, "glibc 2.34", None),
        ({}, MODE, "", None),
        ({"GLIBC_TUNABLES": OURS}, MODE, LIBC, None),
        ({"HUGE_PAGES_ASKED": "1"}, MODE, LIBC, None),  # the tunables were taken away: once is enough
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, MODE, LIBC, None),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=3"}, MODE, LIBC, f"glibc.malloc.check=3:{OURS}"),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=9"},
            MODE,
            LIBC,
            "glibc.malloc.trim_threshold=9:glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432",
        ),
    ],
)
def test_huge_pages_are_asked_for_where_the_system_waits_to_be_asked(
    own: dict[str, str], mode: str, libc: str, expected: str | None
) -> None:
    assert needed_tunables(own, mode, libc) == expected


def test_the_program_begins_once_more_as_the_same_process_with_the_same_arguments() -> None:
    code = (
        "import os, sys; print(os.getpid(), sys.argv[1:], os.environ.get('GLIBC_TUNABLES'), flush=True)\n"
        "from server.huge_pages import ask_for_huge_pages; ask_for_huge_pages()"
    )
    ours = ("GLIBC_TUNABLES", "HUGE_PAGES_ASKED")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    child = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "a b"], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    said = child.communicate(timeout=60)[0].splitlines()
    assert child.returncode == 0
    first = f"{child.pid} ['serve', 'a b']"
    needed = needed_tunables({}, huge_pages._mode(), huge_pages._libc()) if sys.platform == "linux" else None
    assert said == ([f"{first} None"] if needed is None else [f"{first} None", f"{first} {needed}"])


def test_it_begins_no_third_time_where_the_tunables_are_taken_away() -> None:
    code = (
        "import os; print(os.environ.pop('GLIBC_TUNABLES', None), flush=True)\n"
        "from server.huge_pages import ask_for_huge_pages; ask_for_huge_pages()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HUGE_PAGES_ASKED"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert 1 <= len(said.stdout.splitlines()) <= 2
