"""Run by torchrun, once per process: python -m tests.core.models.shard_worker FOLDER...

Loads each folder's model as this process's shard, replays the batches the parent replayed on the whole model,
and compares with the logits it left in FOLDER/expected.pt. Prints one line per folder: the largest difference,
the key heads in this process's cache, and the weights it holds.
"""

import os
import sys
from pathlib import Path

import torch

from core.models.loader import load_model
from core.models.runner import ModelRunner
from tests.core.models.test_runner import BLOCK, BLOCKS, Replay


def replayed(runner: ModelRunner) -> torch.Tensor:
    """Logits [rows, vocab] of some mixed batches, in a fixed order."""
    replay = Replay(runner, [23, 50, 9], True)
    replay.round({0: 7, 1: 40}, {0: 0, 1: 1})
    replay.round({0: 9, 2: 8, 1: 1}, {0: 1, 2: 8, 1: 1})
    replay.round({2: 1, 1: 5, 0: 4}, {2: 1, 1: 5, 0: 4})
    return torch.stack([logits[position] for logits in replay.logits for position in sorted(logits)])


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        loaded = load_model(folder, "float32", tp_plan="auto")
        runner = ModelRunner(loaded, BLOCKS, BLOCK)
        difference = (replayed(runner) - torch.load(folder / "expected.pt")).abs().max()
        local = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in loaded.model.parameters())
        line = f"{folder.name} {difference:.2e} {runner.cache.layer(0)[0].shape[2]} {local}\n"
        os.write(1, line.encode())  # in one piece: both processes write into the same pipe
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
