"""What an answer in words says: numbers, formulas, code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evaluation.code import function_program, python_code
from benchmarks.evaluation.maths import maths_answer, same_maths
from benchmarks.evaluation.numbers import numeric_answer, same_number


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("She has 3 + 4 = 7 eggs.", "7"),
        ("The answer is **$1,234.50** for 3 people.", "1234.5"),
        ("The answer is: 18.00", "18"),
        ("So the final answer is 3 * 6 = 18 dollars.", "18"),
        ("First \\boxed{3}, no: \\boxed{\\$70{,}000}. All of 5.", "70000"),
        ("Answer: -5", "-5"),
        ("It falls to −12 degrees", "-12"),
        ("10-3", "3"),
        ("We get 10 - 3 = 7", "7"),
        ("It is 5 in 2024.\n#### 5", "5"),
        ("**Answer:** 42 (of 100)", "42"),
        ("The answer is not clear", None),
        ("half is .5", "0.5"),
        ("the answer is 7\n\nThe answer is 8.", "8"),
        ("La réponse : The answer is 25%", "25"),
        ("1, 2, 3", "3"),
    ],
)
def test_the_number_an_answer_means(answer: str, reference: str | None) -> None:
    if reference is None:
        assert numeric_answer(answer) is None
    else:
        assert same_number(answer, reference)
        assert not same_number(answer, f"{reference}1")


@given(
    st.integers(-(10**9), 10**9), st.sampled_from(["The answer is {}.", "So \\boxed{{{}}}", "x\n#### {}", "= {} eggs"])
)
def test_any_whole_number_is_found_with_and_without_thousands(number: int, words: str) -> None:
    for written in (f"{number}", f"{number:,}", f"{number:,}.00"):
        assert numeric_answer(words.format(written)) == number


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("so $\\boxed{\\dfrac{3}{4}}$", "\\frac{3}{4}"),
        ("\\boxed{\\frac34}", "\\frac{3}{4}"),
        ("\\boxed{0.75}", "\\frac{3}{4}"),
        ("\\boxed{x = 5}", "5"),
        ("\\boxed{10\\text{ cm}}", "10"),
        ("\\boxed{ \\left( 3, \\frac{\\pi}{2} \\right) }", "\\left( 3, \\frac{\\pi}{2} \\right)"),
        ("\\boxed{90^\\circ}", "90"),
        ("\\boxed{11,\\! 111}", "11111"),
        ("\\boxed{50\\%}", "50"),
        ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}"),
        ("The answer is $2\\sqrt3$.", "2\\sqrt{3}"),
        ("hence $a$ is $-\\frac12$", "-\\frac{1}{2}"),
    ],
)
def test_formulas_that_mean_the_same(answer: str, reference: str) -> None:
    assert same_maths(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("\\boxed{\\frac{4}{3}}", "\\frac{3}{4}"),
        ("\\boxed{(3, 4)}", "(4, 3)"),
        ("\\boxed{-5}", "5"),
        ("no formula at all", "5"),
        ("\\boxed{1}{0}", "10"),
        ("\\boxed{\\frac{1}{0}}", "1"),
    ],
)
def test_formulas_that_do_not(answer: str, reference: str) -> None:
    assert not same_maths(answer, reference)


def test_the_last_box_counts_with_its_own_braces() -> None:
    assert maths_answer("\\boxed{1} then \\boxed{\\frac{a}{b}}") == "\\frac{a}{b}"
    assert maths_answer("\\boxed{1") is None


@given(st.text(alphabet="\\\\frac12sqrt,.$%= x^-", max_size=30))
def test_any_expression_without_braces_equals_itself(text: str) -> None:
    assert same_maths(f"\\boxed{{{text}}}", text)


PROMPT = 'from typing import List\n\n\ndef twice(x: int) -> List[int]:\n    """Twice."""\n'
TEST = "def check(candidate):\n    assert candidate(2) == [2, 2]\n"
RIGHT = "def twice(x: int) -> List[int]:\n    return [x, x]"


@pytest.mark.parametrize(
    "answer",
    [
        f"Here it is:\n\n```python\n{RIGHT}\n```\n\nIt returns twice.",
        f"```py\n{RIGHT}\n```\nUse it:\n```python\nprint(twice(3)\n```",
        f"```\nfrom typing import List\n{RIGHT}\n```",
        f"```python\n{RIGHT}",
        RIGHT,
        f"Sure! This is the function:\n\n{RIGHT}\n\nThis function returns its argument twice.",
        "    return [x, x]\n",
        "return [x, x]",
        "y = x\n    return [x, y]",
        "```python\n    return [x, x]\n```",
        f"Run it:\n```bash\npip install x\n```\n```python\n{RIGHT}\n```",
        "```python\ntwice = lambda x: [x, x]\n```",
    ],
)
def test_a_right_function_is_found_however_it_is_wrapped(answer: str) -> None:
    program = function_program(answer, PROMPT, "twice", TEST)
    exec(compile(program, "answer", "exec"), {})


@pytest.mark.parametrize(
    "answer",
    ["```python\ndef twice(x):\n    return [x]\n```", "I cannot do this.", "", "```python\ndef once(x): pass\n```"],
)
def test_a_wrong_one_fails_its_tests(answer: str) -> None:
    program = function_program(answer, PROMPT, "twice", TEST)
    with pytest.raises((AssertionError, SyntaxError, TypeError, NameError)):
        exec(compile(program, "answer", "exec"), {})


def test_helpers_that_a_prompt_defines_are_kept() -> None:
    prompt = "def helper(x):\n    return [x]\n\n\ndef twice(x):\n    '''Twice.'''\n"
    answer = "```python\ndef twice(x):\n    return helper(x) * 2\n```"
    exec(compile(function_program(answer, prompt, "twice", TEST), "answer", "exec"), {})


def test_without_a_name_all_python_blocks_count() -> None:
    assert python_code("```python\na = 1\n```\ntext\n```\nb = 2\n```\n```text\nno\n```") == "a = 1\n\nb = 2"
