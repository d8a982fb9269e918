"""Other engines' modes and options by name: `llama.cpp:draft:n_max=8`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.errors import BenchError

TRANSFORMERS_MODES = {"generate": "plain", "assisted": "assisted", "lookup": "lookup"}
_NGRAM = ("size_n", "size_m", "min_hits")
_DRAFT = ("n_max", "n_min", "p_min", "p_split")
# llama.cpp's modes, and the options that each heeds.
LLAMA_OPTIONS = {
    "plain": (),
    "draft": _DRAFT,
    "ngram-simple": _NGRAM,
    "ngram-map-k": _NGRAM,
    "ngram-map-k4v": _NGRAM,
    "ngram-mod": ("n_match", "n_min", "n_max"),
    "ngram-cache": ("n_max", "n_min"),
}
MODES = (*(f"transformers:{mode}" for mode in TRANSFORMERS_MODES), *(f"llama.cpp:{mode}" for mode in LLAMA_OPTIONS))
# Every mode as it comes, and variants that may suit short answers better: its defaults draft 3 tokens with a model, and
# from n-grams only behind 12 or 24 tokens that repeat.
PEERS = (
    "transformers:generate",
    "transformers:assisted",
    "transformers:lookup",
    "llama.cpp:plain",
    "llama.cpp:draft",
    "llama.cpp:draft:n_max=8",
    "llama.cpp:draft:n_max=16:p_min=0.75",
    "llama.cpp:ngram-simple",
    "llama.cpp:ngram-simple:size_n=4:size_m=8",
    "llama.cpp:ngram-simple:size_n=4:size_m=16",
    "llama.cpp:ngram-map-k",
    "llama.cpp:ngram-map-k:size_n=4:size_m=16",
    "llama.cpp:ngram-map-k4v",
    "llama.cpp:ngram-map-k4v:size_n=4:size_m=16",
    "llama.cpp:ngram-mod",
    "llama.cpp:ngram-mod:n_match=12:n_min=4:n_max=16",
    "llama.cpp:ngram-cache",
    "llama.cpp:ngram-cache:n_max=8",
    "llama.cpp:ngram-cache:n_max=16",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """name: as it was asked for, and as tables call it."""

    name: str
    engine: str
    mode: str
    options: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def needs_draft(self) -> bool:
        return self.mode in ("assisted", "draft")


def parse(name: str) -> Peer:
    """BenchError for an engine, mode or option that is not known, or a value that is no number."""
    engine, _, rest = name.partition(":")
    mode, *options = rest.split(":")
    if f"{engine}:{mode}" not in MODES:
        raise BenchError(f"unknown peer {name!r}; known are {', '.join(MODES)}")
    allowed = LLAMA_OPTIONS[mode] if engine == "llama.cpp" else ()
    found: dict[str, int | float] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in allowed:
            raise BenchError(f"{name}: {engine}:{mode} has {_listed(allowed)}, not {key!r}")
        found[key] = _number(name, key, value)
    return Peer(name, engine, mode, found)


def choose(names: Iterable[str], draft: bool) -> tuple[list[Peer], list[Peer]]:
    """The peers of these names, or without any all of PEERS; and those of the latter that need the draft model which
    there is not. BenchError if one that was named needs it."""
    named = list(dict.fromkeys(names))
    peers = [parse(name) for name in named or PEERS]
    missing = [] if draft else [peer for peer in peers if peer.needs_draft]
    if named and missing:
        raise BenchError(f"{missing[0].name} needs a draft model, and the configuration has none (models.draft)")
    return [peer for peer in peers if peer not in missing], missing


def _listed(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"the options {listed}" if listed else "no options"


def _number(name: str, key: str, value: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise BenchError(f"{name}: {key} should be a number, got {value!r}")
