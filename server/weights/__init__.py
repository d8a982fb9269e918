"""Model weights: where they may come from, and getting them onto this machine once.

`WeightStore.resolve` turns a model's ordered list of sources into a local folder that the loader can read. The
first source that works is taken; whatever it was, a file with a stated checksum is the same file. GGUF files are
converted once into the cache, and what was downloaded for that is dropped afterwards: the converted folder
remembers the checksum, and half the disk is saved.
"""

from server.weights.errors import WeightsError
from server.weights.sources import HuggingFaceSource, LocalSource, ModelSource, PypiSource, Source
from server.weights.store import WeightStore, default_cache

__all__ = [
    "HuggingFaceSource",
    "LocalSource",
    "ModelSource",
    "PypiSource",
    "Source",
    "WeightStore",
    "WeightsError",
    "default_cache",
]
