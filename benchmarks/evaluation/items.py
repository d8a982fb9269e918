"""An item of a task: what is asked, and how an answer to it is judged."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from benchmarks.evaluation.code import function_program, python_code
from benchmarks.evaluation.maths import maths_answer, normal, same_maths
from benchmarks.evaluation.numbers import numeric_answer, same_number
from benchmarks.evaluation.sandbox import Sandbox, Verdict


class Scorer(Protocol):
    """runs_code: whether it needs the sandbox."""

    runs_code: ClassVar[bool]

    def judge(self, answer: str, sandbox: Sandbox | None) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Item:
    """task: what its figures are listed under, such as "gsm8k" or "spec-bench/writing". scorer: None where an answer is
    neither right nor wrong, only like `off`'s or not."""

    task: str
    name: str
    prompt: str
    scorer: Scorer | None = None


@dataclass(frozen=True, slots=True)
class NumberScorer:
    reference: str
    runs_code: ClassVar[bool] = False

    def judge(self, answer: str, sandbox: Sandbox | None = None) -> Verdict:
        passed = same_number(answer, self.reference)
        return Verdict(passed, "" if passed else f"{numeric_answer(answer)} is not {self.reference}")


@dataclass(frozen=True, slots=True)
class MathsScorer:
    reference: str
    runs_code: ClassVar[bool] = False

    def judge(self, answer: str, sandbox: Sandbox | None = None) -> Verdict:
        passed = same_maths(answer, self.reference)
        return Verdict(passed, "" if passed else f"{maths_answer(answer)} is not {normal(self.reference)}"[:200])


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    """HumanEval: `test` defines check(candidate). prompt: the code that was to be completed."""

    prompt: str
    name: str
    test: str
    runs_code: ClassVar[bool] = True

    def judge(self, answer: str, sandbox: Sandbox | None) -> Verdict:
        assert sandbox is not None
        return sandbox.run(function_program(answer, self.prompt, self.name, self.test))


@dataclass(frozen=True, slots=True)
class AssertsScorer:
    """MBPP: assertions on the answer's functions. setup: code before them."""

    setup: str
    asserts: tuple[str, ...]
    runs_code: ClassVar[bool] = True

    def judge(self, answer: str, sandbox: Sandbox | None) -> Verdict:
        assert sandbox is not None
        return sandbox.run("\n\n".join([python_code(answer), self.setup, *self.asserts]))
