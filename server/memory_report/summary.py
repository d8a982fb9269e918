"""A memory in a few lines: whose it is, what it was made of, how large its tables are."""

from collections.abc import Iterator, Mapping

from core.correction_memory import CorrectionMemory
from server.memory_report.coverage import known_often

_THRESHOLD = 6  # csd's frequency_threshold where nobody says


def summary(memory: CorrectionMemory) -> Iterator[str]:
    yield f"target {memory.target[:16]}, draft {(memory.draft or 'none')[:16]} (fingerprints), made {memory.created}"
    for run in memory.origin.runs:
        yield f"run: {_run(run)}"
    for proposer, table in memory.tables.items():
        counts = table.fold().occurrences
        if not counts.size and not table.calibrated_samples:
            continue
        often, share = known_often(counts, _THRESHOLD)
        yield (
            f"{proposer}: {counts.size} pairs, {int(counts.sum())} rejections in {table.calibrated_samples} samples, "
            f"{table.calibrated_tokens} tokens; {often} pairs occur at least {_THRESHOLD} times: {share:.0%} of these"
        )


def _run(run: Mapping[str, object]) -> str:
    names = [
        str(one["name"]) for key in ("target", "draft") if isinstance(one := run.get(key), Mapping) and "name" in one
    ]
    files = run.get("prompts")
    read = [str(one.get("file")) for one in files if isinstance(one, Mapping)] if isinstance(files, list) else []
    return (
        f"{run.get('began')}, {' with '.join(names)}, {run.get('drafter')} K = {run.get('num_draft_tokens')}, "
        f"{run.get('samples')} samples of at most {run.get('max_tokens')} tokens from {', '.join(read)}"
    )
