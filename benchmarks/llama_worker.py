"""llama.cpp's own server, as xllamacpp carries it. Runs as a script under any Python that has that package, and imports
nothing else of this project.

    python llama_worker.py '{"model": "a.gguf", "draft": "b.gguf", "mode": "draft", "slots": 8, "context": 16384,
                             "threads": 2, "options": {"n_max": 8}}'

Writes {"url": ...} to stdout once it listens, and ends when stdin does.
"""

import json
import sys
from typing import Any

# Each names its section of the parameters, and its kind: ngram-map-k, ngram_map_k, ..._NGRAM_MAP_K.
_NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def parameters(xllamacpp: Any, wanted: dict[str, Any]) -> Any:
    """CommonParams for one mode. options: attributes of the mode's own section, or where that has none of the name, of
    the draft's (how many tokens ngram-cache drafts); left at llama.cpp's defaults if not given. ValueError for an
    unknown mode, AttributeError for an unknown option."""
    params = xllamacpp.CommonParams()
    params.model.path = wanted["model"]
    params.n_parallel = wanted["slots"]
    params.n_ctx = wanted["context"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = wanted["threads"]
    params.verbosity = 0
    kinds, mode = xllamacpp.common_speculative_type, wanted["mode"]
    if mode == "plain":
        return params
    if mode == "draft":
        section = params.speculative.draft
        section.mparams.path = wanted["draft"]
        section.cpuparams.n_threads = section.cpuparams_batch.n_threads = wanted["threads"]
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    elif mode in _NGRAMS:
        section = getattr(params.speculative, mode.replace("-", "_"))
        kind = "COMMON_SPECULATIVE_TYPE_" + mode.upper().replace("-", "_")
        params.speculative.types = [getattr(kinds, kind)]
    else:
        raise ValueError(f"unknown mode {mode!r}")
    for name, value in wanted.get("options", {}).items():
        target = section if hasattr(section, name) else params.speculative.draft
        getattr(target, name)  # setting an unknown one would be silent
        setattr(target, name, value)
    return params


def main() -> None:
    import xllamacpp

    server = xllamacpp.Server(parameters(xllamacpp, json.loads(sys.argv[1])))
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
