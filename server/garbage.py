"""Python's search for unreachable objects, kept away from start-up and from what start-up makes.

Imports, vocabularies and models are millions of objects that stay: looking through them again and again takes a second
of a start, and later a tenth of a second amid a round.
"""

import gc


def pause() -> None:
    """Search no more, until `resume`."""
    gc.disable()


def resume() -> None:
    """Search again, but never through what is there now."""
    gc.collect()
    gc.freeze()
    gc.enable()
