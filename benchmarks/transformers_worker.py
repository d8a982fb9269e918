"""transformers' own generate in a process of its own: plain, with an assistant model, with prompt lookup.

    python -m benchmarks.transformers_worker '{"target": FOLDER, "draft": FOLDER or null, "threads": 2, "eos": [ids],
                                               "trials": [{"mode": "plain", "prompts": [[ids]]}, ...]}'

Every trial is timed in float32 and in bfloat16, and each mode at each number of prompts then runs in the dtype that was
faster for it; the first line that it writes tells which. Both copies of the weights stay if both are needed. Then it
reads one JSON object a line from stdin, {"mode": "plain", "prompts": [[ids], ...], "max_tokens": 64}, and answers with
one line, {"answers": [{"tokens": [ids], "asked": s, "arrivals": [s], "first": 1}, ...]}.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_LOOKUP_TOKENS = 10
_WARM_UP_TOKENS = 4
_TRIAL_TOKENS = 24
_TRIALS = 2  # of which the best counts
_DTYPES = (torch.float32, torch.bfloat16)
MODES = ("plain", "assisted", "lookup")

Kind = tuple[str, int]  # a mode, and how many prompts at once


class _Clock:
    """A stopping criterion that never stops: generate calls it after each of its rounds."""

    def __init__(self) -> None:
        self.ticks: list[tuple[float, int]] = []  # when, and how long the sequences were then

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_more: Any) -> torch.Tensor:
        self.ticks.append((time.perf_counter(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Generator:
    def __init__(self, target: Any, draft: Any, eos: Sequence[int]) -> None:
        self._target, self._draft, self._eos = target, draft, list(eos)

    def answers(self, mode: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[dict[str, Any]]:
        """Plain generate takes them as one left-padded batch; the other two take one prompt at a time, so theirs wait
        for each other. ValueError for an unknown mode."""
        asked = time.perf_counter()
        if mode == "plain":
            return self._batch(prompts, max_tokens, asked, {})
        if mode == "assisted":
            more = {"assistant_model": self._draft}
        elif mode == "lookup":
            more = {"prompt_lookup_num_tokens": _LOOKUP_TOKENS}
        else:
            raise ValueError(f"unknown mode {mode!r}")
        return [one for prompt in prompts for one in self._batch([prompt], max_tokens, asked, more)]

    @torch.inference_mode()
    def _batch(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, asked: float, more: dict[str, Any]
    ) -> list[dict[str, Any]]:
        clock, widest = _Clock(), max(map(len, prompts))
        pad = self._eos[0] if self._eos else 0
        ids = torch.tensor([[pad] * (widest - len(one)) + list(one) for one in prompts])
        mask = torch.tensor([[0] * (widest - len(one)) + [1] * len(one) for one in prompts])
        out = self._target.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=self._eos or None,
            pad_token_id=pad,
            stopping_criteria=[clock],
            **more,
        )
        return [self._answer(row[widest:].tolist(), clock.ticks, widest, asked) for row in out]

    def _answer(self, row: list[int], ticks: list[tuple[float, int]], prompt: int, asked: float) -> dict[str, Any]:
        """One sequence up to its end token; rounds behind that belong to its batch."""
        length = next((i + 1 for i, token in enumerate(row) if token in self._eos), len(row))
        mine = [tick for k, tick in enumerate(ticks) if not k or ticks[k - 1][1] - prompt < length]
        first = min(length, mine[0][1] - prompt)
        return {"tokens": row[:length], "asked": asked, "arrivals": [when for when, _ in mine], "first": first}


class FastestGenerator:
    """Generators by dtype, each mode and number of prompts with the one that is faster at it. seconds: a token's, by
    kind and dtype."""

    def __init__(self, generators: Mapping[str, Generator], seconds: Mapping[Kind, Mapping[str, float]]) -> None:
        self.chosen = {kind: min(found, key=found.__getitem__) for kind, found in seconds.items()}
        self._generators = {name: generators[name] for name in set(self.chosen.values())}

    def answers(self, mode: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[dict[str, Any]]:
        """ValueError for what was not tried."""
        kind = (mode, _at_once(mode, prompts))
        if kind not in self.chosen:
            raise ValueError(f"{kind} was not tried, only {sorted(self.chosen)}")
        return self._generators[self.chosen[kind]].answers(mode, prompts, max_tokens)


def _at_once(mode: str, prompts: Sequence[Sequence[int]]) -> int:
    return len(prompts) if mode == "plain" else 1


def token_seconds(generator: Generator, mode: str, prompts: Sequence[Sequence[int]]) -> float:
    """A token's time behind the first ones, warmed up."""
    generator.answers(mode, prompts, _WARM_UP_TOKENS)
    return min(_token_seconds(generator.answers(mode, prompts, _TRIAL_TOKENS)) for _ in range(_TRIALS))


def _token_seconds(answers: Sequence[Mapping[str, Any]]) -> float:
    """Where all came in one round, its whole time."""
    tokens: int = sum(len(one["tokens"]) - one["first"] for one in answers)
    ended: float = max(one["arrivals"][-1] for one in answers)
    if tokens:
        began: float = min(one["arrivals"][0] for one in answers)
        return (ended - began) / tokens
    asked: float = answers[0]["asked"]
    return (ended - asked) / sum(len(one["tokens"]) for one in answers)


def load(folder: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def fastest(wanted: Mapping[str, Any]) -> tuple[FastestGenerator, dict[str, Any]]:
    """Time all trials in both dtypes; also returns what there is to tell of them."""
    generators: dict[str, Generator] = {}
    seconds: dict[Kind, dict[str, float]] = {}
    for dtype in _DTYPES:
        name = str(dtype).removeprefix("torch.")
        draft = load(wanted["draft"], dtype) if wanted["draft"] else None
        generators[name] = Generator(load(wanted["target"], dtype), draft, wanted["eos"])
        for trial in wanted["trials"]:
            mode, prompts = trial["mode"], trial["prompts"]
            found = seconds.setdefault((mode, _at_once(mode, prompts)), {})
            found[name] = token_seconds(generators[name], mode, prompts)
    chooser = FastestGenerator(generators, seconds)
    shown = {f"{mode}, {size} at once": (mode, size) for mode, size in seconds}
    return chooser, {
        "dtype": {name: chooser.chosen[kind] for name, kind in shown.items()},
        "token_seconds": {name: seconds[kind] for name, kind in shown.items()},
    }


def main() -> None:
    wanted = json.loads(sys.argv[1])
    torch.set_num_threads(wanted["threads"])
    generator, told = fastest(wanted)
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answers = generator.answers(order["mode"], order["prompts"], order["max_tokens"])
        print(json.dumps({"answers": answers}), flush=True)


if __name__ == "__main__":
    main()
