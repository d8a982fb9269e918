"""transformers' own generate in a process of its own: plain, with an assistant model, with prompt lookup.

    python -m benchmarks.transformers_worker '{"target": FOLDER, "draft": FOLDER or null, "threads": 2}'

Reads one JSON object a line from stdin, {"mode": "plain", "prompts": [[ids], ...], "max_tokens": 64}, and answers with
one line, {"answers": [{"tokens": [ids], "asked": s, "arrivals": [s], "first": 1}, ...]}. The first line it writes tells
its dtype: bfloat16 where this machine decodes faster with it, else float32.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

_LOOKUP_TOKENS = 10
_TRIAL_PROMPT = 64
_TRIAL_TOKENS = 6
MODES = ("plain", "assisted", "lookup")


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


def load(folder: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def faster_dtype(target: Any) -> torch.dtype:
    """Which of float32 and bfloat16 decodes faster here; the model comes and goes as float32."""
    trial = Generator(target, None, ())
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        target.to(dtype)
        (answer,) = trial.answers("plain", [[1] * _TRIAL_PROMPT], _TRIAL_TOKENS)
        seconds[dtype] = answer["arrivals"][-1] - answer["arrivals"][0]
    return min(seconds, key=seconds.__getitem__)


def main() -> None:
    wanted = json.loads(sys.argv[1])
    torch.set_num_threads(wanted["threads"])
    dtype = faster_dtype(load(wanted["target"], torch.float32))
    target = load(wanted["target"], dtype)
    draft = load(wanted["draft"], dtype) if wanted["draft"] else None
    generator = Generator(target, draft, wanted["eos"])
    print(json.dumps({"dtype": str(dtype).removeprefix("torch.")}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answers = generator.answers(order["mode"], order["prompts"], order["max_tokens"])
        print(json.dumps({"answers": answers}), flush=True)


if __name__ == "__main__":
    main()
