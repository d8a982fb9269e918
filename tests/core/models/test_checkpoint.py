import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from core.models.checkpoint import Checkpoint


def mappings(file: Path) -> int:
    return sum(line.endswith(str(file)) for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_tensors_pages_leave_memory_with_its_last_view(tmp_path: Path) -> None:
    file = tmp_path.resolve() / "model.safetensors"
    save_file({"a": torch.arange(4096.0), "b": torch.ones(4096)}, file)
    checkpoint = Checkpoint(tmp_path)
    assert mappings(file) == 0
    a, b = checkpoint.take("a"), checkpoint.take("b")
    part = a[1024:1028].view(2, 2)
    assert mappings(file) == 2
    del a, b
    assert mappings(file) == 1
    assert part.tolist() == [[1024, 1025], [1026, 1027]]
    del part
    assert mappings(file) == 0
