"""How many planted wrong tokens each verifier lets through: FLy's blind spot, measured.

For every item the target's own choice is the right answer; a wrong one is drafted in its place, and behind it what the
target itself goes on with (benchmarks/planting.py). One block, one forward of the target, and on its rows every
verifier's own evidence and verdict. Items whose right answer is not the target's choice are left out and counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.matrix import GREEDY, Setting, settings_matrix
from benchmarks.planted_items import Item, fork, read_items
from benchmarks.planting import Planted, Reader, Refusal, plant, verdict
from benchmarks.progress import progress
from benchmarks.results_file import Results, Table, configuration
from benchmarks.stack import Stack, load_stack
from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.sequence import GenerationRequest
from core.verifiers.params import FlyParams, HybridParams, TypicalParams
from server.audit.tally import wilson
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import CompletionBody

TITLE = "Planted wrong tokens that were let through"
# The gate as published, always open and never open (above ln 3 nats); csd's gate without its memory is a `lossy`.
VERIFIERS = (
    "strict",
    "fly",
    '{"type": "fly", "entropy_threshold": 0}',
    '{"type": "fly", "entropy_threshold": 10}',
    "csd",
    '{"type": "lossy", "threshold": 0.3}',
    "hybrid",
    "lossy",
    "typical",
)
THETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
_ALIKE = Refusal("this tokenizer does not tell the answers apart")


@dataclass(frozen=True, slots=True)
class Sample:
    """One planted item. accepted: the rule by which each setting let the wrong token through, or None; held: by what
    those with FLy's rule held it back. drafted: the block, from the first token on that is wrong. entropy: top-3, nats;
    probability, gap: of that token; behind: drafts behind it."""

    kind: str
    ask: str
    begin: str
    right: str
    wrong: str
    drafted: str
    entropy: float
    probability: float
    gap: float
    behind: int
    accepted: Mapping[str, str | None]
    held: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


async def measure_adversarial(
    config: Path, items: Path, verifiers: Sequence[str], num_drafts: int, results: Results
) -> Path:
    """num_drafts: of each block, the planted token included."""
    questions, settings = read_items(items), settings_matrix(verifiers, ["auto"], ["default"])
    run = _Run(await load_stack(config), settings, num_drafts)
    with progress("adversarial", len(questions)) as report:
        for item in questions:
            report(f"{item.begin}{item.wrong}".splitlines()[-1].lstrip() + f": {run.add(item)}")
    told = {
        "configuration": configuration(run.stack.settings, config),
        "items": items.name,
        "num_draft_tokens": num_drafts,
        "memory_pairs": run.memory_pairs,
        "asked": len(questions),
        "planted": len(run.samples),
        "left_out": run.left_out,
        "verifiers": {setting.name: _figures(run.samples, setting.name) for setting in settings},
        "gate": {str(theta): _share(sum(s.entropy < theta for s in run.samples), len(run.samples)) for theta in THETAS},
        "samples": [sample.as_json() for sample in run.samples],
    }
    return results.write("adversarial", TITLE, told, _tables(told))


class _Run:
    def __init__(self, stack: Stack, settings: Sequence[Setting], num_drafts: int) -> None:
        """ApiError for settings that the configuration does not allow."""
        self.stack = stack
        self.samples: list[Sample] = []
        self.left_out: list[dict[str, Any]] = []
        self._num_drafts = num_drafts
        self._reader = Reader(stack.runtime.target)
        self._requests = {setting.name: self._request(setting) for setting in settings}
        self._probe = self._request(Setting("probe", {"verifier": "strict"}))
        self.memory_pairs = int(self._memory(self._probe).keys.size)

    def add(self, item: Item) -> str:
        """What came of it, in words."""
        at = fork(item, self.stack.encode_chat)
        found = _ALIKE if at is None else plant(self._reader, at, self._num_drafts, self.stack.model.eos_token_ids)
        if isinstance(found, Refusal):
            choice = None if found.choice is None else self.stack.model.token_bytes.label(found.choice)
            self.left_out.append({"ask": item.ask, "begin": item.begin, "why": found.reason, "choice": choice})
            return f"left out, {found.reason}: {choice!r}"
        self.samples.append(self._sample(item, found))
        through = [name for name, rule in self.samples[-1].accepted.items() if rule is not None]
        return f"let through by {', '.join(through) or 'none'}"

    def _sample(self, item: Item, planted: Planted) -> Sample:
        gate = self._look(planted, FlyParams(window=0))
        whole = self._look(planted, TypicalParams())
        accepted, held = {}, {}
        for name, blank in self._requests.items():
            request, memory = replace(blank, prompt=tuple(planted.context)), self._memory(blank)
            evidence = planted.evidence(request, self.stack.runtime.control_ids, memory)
            how, _ = verdict(evidence, request, memory)
            accepted[name] = how.value if how.loosened else None
            if not how.loosened and isinstance(request.verifier, FlyParams | HybridParams):
                held[name] = self._held(planted, request.verifier)
        decode = self.stack.served.language.tokenizer.decode
        return Sample(
            kind=item.kind,
            ask=item.ask,
            begin=item.begin,
            right=item.right,
            wrong=item.wrong,
            drafted=decode(planted.drafts),
            entropy=gate.entropy[0],
            probability=whole.probability[0],
            gap=whole.gap[0],
            behind=len(planted.drafts) - 1,
            accepted=accepted,
            held=held,
        )

    def _held(self, planted: Planted, params: FlyParams | HybridParams) -> str:
        """By what FLy's rule held the planted token back: its gate, or its window, since the answer ends inside it."""
        alone = FlyParams(entropy_threshold=params.entropy_threshold, entropy=params.entropy, window=0)
        return "window" if self._look(planted, alone).entropy[0] >= params.entropy_threshold else "gate"

    def _look(self, planted: Planted, verifier: FlyParams | TypicalParams) -> Evidence:
        """Evidence of the planted token's row whatever stands behind it."""
        request = replace(self._probe, prompt=tuple(planted.context), verifier=verifier)
        return planted.evidence(request, self.stack.runtime.control_ids)

    def _request(self, setting: Setting) -> GenerationRequest:
        """As a server would understand it; its prompt comes later. A strict prefix would lie before the token."""
        stack, drafts = self.stack, {"draft_length": "fixed", "num_draft_tokens": self._num_drafts, "strict_prefix": 0}
        fields = {**GREEDY, **drafts, **setting.fields}
        body = CompletionBody.model_validate({"model": stack.config.model, "prompt": [0], "max_tokens": 1, **fields})
        [request] = make_plan(body, [[0]], f"planted-{setting.name}", stack.config, stack.model, "prompt").requests
        return request

    def _memory(self, request: GenerationRequest) -> MemorySnapshot:
        return self.stack.runtime.memory.snapshot(request.drafter)


def _figures(samples: Sequence[Sample], name: str) -> dict[str, Any]:
    kinds = dict.fromkeys(sample.kind for sample in samples)
    through = [sample for sample in samples if sample.accepted[name] is not None]
    return {
        **_share(len(through), len(samples)),
        "rules": dict(Counter(sample.accepted[name] for sample in through)),
        "held": dict(Counter(sample.held[name] for sample in samples if name in sample.held)),
        "kinds": {
            kind: _share(sum(s.kind == kind for s in through), sum(s.kind == kind for s in samples)) for kind in kinds
        },
    }


def _share(count: int, of: int) -> dict[str, Any]:
    """interval: Wilson's, 95 %; it and the share are None of nothing."""
    return {
        "count": count,
        "of": of,
        "share": count / of if of else None,
        "interval": wilson(count / of, of) if of else None,
    }


def _tables(told: Mapping[str, Any]) -> list[Table]:
    verifiers: Mapping[str, Any] = told["verifiers"]
    rows = [
        (
            name,
            *_cells(one),
            ", ".join(f"{count} {rule}" for rule, count in one["rules"].items()),
            ", ".join(f"{count} {what}" for what, count in one["held"].items()),
        )
        for name, one in verifiers.items()
    ]
    gate = [(f"{theta} nats", *_cells(one)) for theta, one in told["gate"].items()]
    kinds = dict.fromkeys(kind for one in verifiers.values() for kind in one["kinds"])
    by_kind = [
        (kind, *(f"{one['kinds'][kind]['count']} of {one['kinds'][kind]['of']}" for one in verifiers.values()))
        for kind in kinds
    ]
    reasons = Counter(one["why"] for one in told["left_out"])
    counts = [("planted", str(told["planted"])), *((why, str(count)) for why, count in reasons.items())]
    return [
        Table(("verifier", "let through", "share", "95 %", "by rule", "held back by FLy's"), rows),
        Table(("threshold", "gate closed", "share", "95 %"), gate, "The entropy gate alone"),
        Table(("kind", *verifiers), by_kind, "Let through, by kind of question"),
        Table(("items", str(told["asked"])), counts, "Items"),
    ]


def _cells(one: Mapping[str, Any]) -> Sequence[str]:
    count = f"{one['count']} of {one['of']}"
    if one["interval"] is None:
        return count, "", ""
    low, high = one["interval"]
    return count, f"{one['share']:.0%}", f"{low:.0%}..{high:.0%}"
