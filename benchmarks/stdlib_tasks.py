"""Prompts to calibrate on that anybody can have: the standard library's documented functions as small tasks.

    python -m benchmarks.stdlib_tasks stdlib-tasks.jsonl

One task a function, class or method with a docstring, in a form its name decides: write it, complete it, explain it,
test it, or answer a question about it. The same Python gives the same file; another version's differs a little. None
of it is in the sets that are evaluated on.
"""

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = """
argparse array ast asyncio base64 bisect calendar collections colorsys configparser contextlib copy csv dataclasses
datetime decimal difflib email.utils enum fnmatch fractions functools glob graphlib gzip hashlib heapq hmac html
html.parser inspect io ipaddress itertools json keyword linecache locale logging math mimetypes operator os os.path
pathlib pprint queue random re sched secrets shelve shlex shutil signal socket sqlite3 statistics string struct
subprocess tarfile tempfile textwrap threading time timeit tokenize traceback types unicodedata unittest urllib.parse
urllib.request uuid warnings weakref xml.etree.ElementTree zipfile zlib
"""
FORMS = (
    "Write a Python function that does what `{name}{signature}` does, without calling it. Its documentation:\n\n{doc}",
    "Complete this Python function. Answer with the whole function in one code block.\n\n"
    '```python\ndef {short}{signature}:\n    """{doc}"""\n```',
    "Explain to a beginner what Python's `{name}` is for, with a short example. Its documentation:\n\n{doc}",
    "Write three unit tests with pytest for `{name}{signature}`. Its documentation:\n\n{doc}",
    "When would one use Python's `{name}`, and what are its pitfalls? Its documentation:\n\n{doc}",
    "Rewrite this documentation of Python's `{name}` as a numbered list of short statements:\n\n{doc}",
)
LEAST_DOC, MOST_DOC = 60, 700  # characters


def tasks() -> Iterator[dict[str, str]]:
    seen: set[str] = set()
    for module in MODULES.split():
        for name, member in _documented(importlib.import_module(module), module):
            doc = inspect.cleandoc(member.__doc__)
            if len(doc) < LEAST_DOC or doc in seen:
                continue
            seen.add(doc)
            form = FORMS[hashlib.sha256(name.encode()).digest()[0] % len(FORMS)]
            text = form.format(name=name, short=name.rpartition(".")[2], signature=_signature(member), doc=_cut(doc))
            yield {"name": name, "prompt": text}


def _documented(module: ModuleType, name: str) -> Iterator[tuple[str, Any]]:
    """Public functions, classes and their public methods, by name."""
    for short, member in sorted(vars(module).items()):
        owner = getattr(member, "__module__", None) or name
        if short.startswith("_") or not callable(member) or owner.lstrip("_") not in (name, name.rpartition(".")[2]):
            continue
        if isinstance(getattr(member, "__doc__", None), str):
            yield f"{name}.{short}", member
        if inspect.isclass(member):
            for inner, method in sorted(vars(member).items()):
                if not inner.startswith("_") and callable(method) and isinstance(method.__doc__, str):
                    yield f"{name}.{short}.{inner}", method


def _signature(member: Any) -> str:
    try:
        text = str(inspect.signature(member))
    except (TypeError, ValueError):
        return "(...)"
    return text if " at 0x" not in text else "(...)"  # an address is another one each time


def _cut(doc: str) -> str:
    """Whole paragraphs, as many as are not too long; at least the beginning of the first."""
    kept = ""
    for paragraph in doc.split("\n\n"):
        if kept and len(kept) + len(paragraph) > MOST_DOC:
            break
        kept += ("\n\n" if kept else "") + paragraph
    return kept[:MOST_DOC]


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(f"usage: {__spec__.name} FILE.jsonl")
    out.write_text("".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks()), "utf-8")


if __name__ == "__main__":
    main()
