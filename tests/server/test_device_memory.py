import os
from pathlib import Path

from server.device_memory import cpu_memory, device_memory

GB = 10**9
HERE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def test_without_a_container_it_is_the_machines(tmp_path: Path) -> None:
    write(tmp_path, meminfo=f"MemTotal: {HERE // 1024} kB\nMemAvailable: 1000 kB")
    memory = cpu_memory(proc=tmp_path, cgroup=tmp_path)
    assert (memory.total, memory.free, memory.used) == (HERE, 1_024_000, HERE - 1_024_000)
    write(tmp_path, memory_dot_max="max")
    assert cpu_memory(proc=tmp_path, cgroup=tmp_path) == memory


def test_a_container_has_its_limit_of_which_cached_files_are_free(tmp_path: Path) -> None:
    write(tmp_path, meminfo=f"MemAvailable: {HERE // 1024} kB", memory_dot_max=str(GB // 2))
    write(tmp_path, memory_dot_current=str(GB // 4), memory_dot_stat="anon 5\nactive_file 1000\ninactive_file 200")
    memory = cpu_memory(proc=tmp_path, cgroup=tmp_path)
    assert (memory.total, memory.free) == (GB // 2, GB // 4 + 1200)


def test_the_older_kind_of_container_too(tmp_path: Path) -> None:
    write(tmp_path, meminfo="MemAvailable: 1000 kB", memory__memory_dot_limit_in_bytes=str(GB // 2))
    write(tmp_path, memory__memory_dot_usage_in_bytes=str(GB // 2), memory__memory_dot_stat="total_inactive_file 300")
    memory = cpu_memory(proc=tmp_path, cgroup=tmp_path)
    assert (memory.total, memory.free) == (GB // 2, 300)
    write(tmp_path, memory__memory_dot_limit_in_bytes=str(2**63 - 4096))  # no limit, in that version's words
    assert cpu_memory(proc=tmp_path, cgroup=tmp_path).total == HERE


def test_a_system_that_tells_nothing_counts_as_free(tmp_path: Path) -> None:
    assert cpu_memory(proc=tmp_path, cgroup=tmp_path).free >= HERE - 1024


def test_this_machine_has_some_of_both() -> None:
    memory = device_memory("cpu")
    assert 10**8 < memory.free < memory.total <= HERE
