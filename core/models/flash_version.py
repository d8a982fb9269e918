"""Which flash-attn is installed, without importing it: that takes torch, and CUDA."""

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

# Earlier ones lack soft caps or paged keys and values; 3 and 4 are other packages with other calls.
FLASH_VERSIONS = ">=2.8,<3"


def flash_version() -> str | None:
    """The installed release; None if there is none, or one whose calls we do not know."""
    try:
        found = version("flash-attn")
    except PackageNotFoundError:
        return None
    return found if SpecifierSet(FLASH_VERSIONS, prereleases=True).contains(found) else None
