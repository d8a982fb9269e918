"""Data sets as items, from the field names under which they were published."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.datasets import CODE, DataError
from benchmarks.evaluation.items import AssertsScorer, FunctionScorer, Item, MathsScorer, NumberScorer

Record = dict[str, Any]
_NUMBER = '{}\n\nThink step by step. End with a line that says "The answer is" and the number.'
_MATHS = "{}\n\nThink step by step, and put the final answer in \\boxed{{}}."
_FUNCTION = (
    "{}\nYour function should pass these tests:\n\n```python\n{}\n```\n\nAnswer with the whole code in one block."
)


def humaneval(records: Sequence[Record]) -> Iterator[Item]:
    """task_id, prompt, entry_point, test: its own tests decide."""
    for record in records:
        scorer = FunctionScorer(record["prompt"], record["entry_point"], record["test"])
        yield Item("humaneval", record["task_id"], CODE.format(record["prompt"]), scorer)


def mbpp(records: Sequence[Record]) -> Iterator[Item]:
    """task_id, text or (sanitized) prompt, test_list, and test_setup_code or test_imports."""
    for record in records:
        setup = record.get("test_setup_code") or "\n".join(record.get("test_imports") or ())
        asked = _FUNCTION.format(record.get("text") or record["prompt"], "\n".join(record["test_list"]))
        yield Item("mbpp", f"mbpp/{record['task_id']}", asked, AssertsScorer(setup, tuple(record["test_list"])))


def gsm8k(records: Sequence[Record]) -> Iterator[Item]:
    """question, answer, whose number stands behind ####."""
    for number, record in enumerate(records):
        _, marker, reference = record["answer"].rpartition("####")
        if not marker:
            raise DataError(f'gsm8k, line {number + 1}: "answer" has no #### with a number behind it')
        yield Item("gsm8k", f"gsm8k/{number}", _NUMBER.format(record["question"]), NumberScorer(reference.strip()))


def mgsm(records: Sequence[Record]) -> Iterator[Item]:
    """question, and answer_number or, in its tab-separated files, the number as answer."""
    for number, record in enumerate(records):
        reference = record["answer_number"] if record.get("answer_number") is not None else record["answer"]
        yield Item("mgsm", f"mgsm/{number}", _NUMBER.format(record["question"]), NumberScorer(str(reference)))


def math500(records: Sequence[Record]) -> Iterator[Item]:
    """problem, answer, and unique_id if there is one."""
    for number, record in enumerate(records):
        name = str(record.get("unique_id") or f"math500/{number}")
        yield Item("math500", name, _MATHS.format(record["problem"]), MathsScorer(record["answer"]))


def spec_bench(records: Sequence[Record]) -> Iterator[Item]:
    """question_id, category, turns: of several turns the first, since later ones ask about an answer."""
    for record in records:
        yield Item(f"spec-bench/{record['category']}", f"spec-bench/{record['question_id']}", record["turns"][0])


def mt(records: Sequence[Record]) -> Iterator[Item]:
    """Any file in MT-Bench's manner: turns, prompt or question; category and question_id if it has them. No score."""
    for number, record in enumerate(records):
        text = record.get("prompt") or record.get("question") or record["turns"][0]
        category = record.get("category")
        name = f"mt/{record.get('question_id', number)}"
        yield Item(f"mt/{category}" if category else "mt", name, text)


READERS: dict[str, Callable[[Sequence[Record]], Iterator[Item]]] = {
    "humaneval": humaneval,
    "gsm8k": gsm8k,
    "spec-bench": spec_bench,
    "math500": math500,
    "mbpp": mbpp,
    "mgsm": mgsm,
    "mt": mt,
}


def read(kind: str, records: Sequence[Record], where: str) -> list[Item]:
    """DataError, with the place, for records that are not of that kind."""
    try:
        return list(READERS[kind](records))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        missing = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where} is not {kind} as it was published: {missing}") from error


def parse(text: str, name: str) -> list[Record]:
    """Records of a file: one JSON object a line, a JSON list of them, or for names in .tsv questions and answers.

    ValueError if it is none of these.
    """
    if name.endswith(".tsv"):
        rows = [row for row in csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE) if row]
        if any(len(row) != 2 for row in rows):
            raise ValueError("a line should be a question, a tab and an answer")
        return [{"question": question, "answer": answer} for question, answer in rows]
    found: list[Record]
    if text.lstrip().startswith("["):
        found = json.loads(text)
    else:
        # Not splitlines, which would part a JSON string at U+2028.
        found = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not found or not all(isinstance(record, dict) for record in found):
        raise ValueError("it should hold JSON objects, one a line or in a list")
    return found
