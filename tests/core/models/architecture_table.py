"""The table in docs/models.md, made from what the tests prove.

python -m tests.core.models.architecture_table --write    writes it into the page; without --write prints it
"""

import sys
from pathlib import Path

from core.models.architectures import SUPPORTED
from tests.core.models.families import FAMILIES

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
_BEGIN, _END = "<!-- architectures: begin -->\n", "<!-- architectures: end -->\n"


def table() -> str:
    """Markdown, a row for each architecture."""
    rows = ["| architecture | models | attention | also | proven as |", "|---|---|---|---|---|"]
    for name, architecture in sorted(SUPPORTED.items(), key=lambda item: item[0].lower()):
        attention = "full, window" if architecture.window else "full"
        notes = "; ".join(filter(None, ["experts" if architecture.experts else "", architecture.notes]))
        proofs = ", ".join(family for family, (proven, _) in FAMILIES.items() if proven == name)
        rows.append(f"| `{name}` | {architecture.models} | {attention} | {notes} | {proofs} |")
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with the table as it should be. ValueError if its markers are gone."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE} has lost its markers")
    return before + begin + table() + end + after


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(table(), end="")
