"""Python programs from a chat's answers."""

import ast
import re

_BLOCK = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_STARTS = re.compile(r"^(?:import |from |def |async def |class |@|[A-Za-z_]\w*\s*=)", re.MULTILINE)
_OTHERS = ("bash", "sh", "shell", "console", "text", "plaintext", "output", "json")


def function_program(answer: str, prompt: str, name: str, test: str) -> str:
    """A program that fails unless the answer's function passes a HumanEval test.

    prompt: code up to the function's docstring; what stands before the function, imports and helpers, is kept. An
    answer may also be the function's body alone.
    """
    code = python_code(answer, name)
    head = _definition(name).search(prompt)
    preamble = prompt[: head.start()] if head else ""
    if not _definition(name).search(code):  # just its body
        preamble, code = prompt, _indented(code)
    return f"{preamble}\n{code}\n\n{test}\n\ncheck({name})\n"


def python_code(answer: str, name: str | None = None) -> str:
    """The code in an answer: of its blocks the first that defines `name`, otherwise all Python ones together; without
    blocks what compiles, from the first line that looks like code. A block that is never closed goes to the end."""
    blocks = [body for language, body in _BLOCK.findall(answer) if language.lower() not in _OTHERS]
    if not blocks:
        return _bare(answer, name)
    if name is not None:
        for body in blocks:
            if _definition(name).search(body):
                return str(body)
    return "\n\n".join(blocks)


def _definition(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async )?def {re.escape(name)}\b|^{re.escape(name)}\s*=", re.MULTILINE)


def _bare(answer: str, name: str | None) -> str:
    """Prose before and behind code is cut off where that makes it compile."""
    start = _STARTS.search(answer)
    if start is None or (name is not None and not _definition(name).search(answer)):
        return answer
    lines = answer[start.start() :].splitlines()
    for end in range(len(lines), 0, -1):
        code = "\n".join(lines[:end])
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return code
    return answer


def _indented(body: str) -> str:
    """A body whose first line lost its indentation to a tokenizer, or all of whose lines have none."""
    lines = body.strip("\n").splitlines()
    if lines and not lines[0][:1].isspace():
        rest = [line for line in lines[1:] if line.strip()]
        if rest and all(line[:1].isspace() for line in rest) and not lines[0].rstrip().endswith(":"):
            lines[0] = "    " + lines[0]
        else:
            lines = [f"    {line}" for line in lines]
    return "\n".join(lines)
