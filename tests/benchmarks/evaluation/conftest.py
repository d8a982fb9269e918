"""Parts that several tests of the evaluation share."""

from pathlib import Path

import pytest
import yaml

from benchmarks.evaluation.sandbox import Limits, Sandbox, SandboxError
from tests.server.test_assembly import save_pair


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    try:
        return Sandbox.open(Limits(seconds=20.0, cpu_seconds=1))
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two random models that hardly ever agree, so that loosening shows."""
    sources = {"target": save_pair(tmp_path / "target"), "draft": save_pair(tmp_path / "draft", seed=1)}
    models = {name: {"source": str(folder), "device": "cpu"} for name, folder in sources.items()}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"models": models, "kv_cache": {"tokens": 4096}, "max_context": 256}))
    return file
