"""A tiny random pair as a configuration file, and prompts for it."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.datasets import Prompt, load
from tests.server.test_assembly import save_pair


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The draft is the target itself, so drafts are accepted."""
    folder = save_pair(tmp_path / "target")
    models = {"target": {"source": str(folder), "device": "cpu"}, "draft": {"source": "target", "device": "cpu"}}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"models": models, "kv_cache": {"tokens": 4096}, "max_context": 256}))
    return file


@pytest.fixture
def prompts(tmp_path: Path) -> list[Prompt]:
    file = tmp_path / "mine.jsonl"
    texts = ["once upon a time", "the quick brown fox", "count to four", "the sea is wide"]
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return load([str(file)])


def changed(config: Path, draft: bool = True, max_running: int = 8) -> None:
    """Rewrite the configuration in place."""
    settings = yaml.safe_load(config.read_text()) | {"scheduler": {"max_running": max_running}}
    if not draft:
        del settings["models"]["draft"]
    config.write_text(yaml.safe_dump(settings))
