"""Re-convergence: whether the target, going its own way, comes back to what was delivered.

Both texts begin at a loosened position: the delivered one with the loosened token, the target's own with its own
choice instead. They re-converge if they share a run of RUN tokens that begins within `within` tokens in both, at
places no more than MOST_SHIFT apart; the two ways may differ in length, but a longer shift is likelier to be a text
that repeats itself than one that came back. Where the delivered text ended by itself, a run that reaches its last
token is complete however short it is: the target ends there too.

    delivered    quick  red   fox  jumps over the lazy dog and
    the target's fast   brown red  fox   jumps over the lazy dog      a run of 8 from 1 and from 2: a shift of 1
"""

from collections.abc import Sequence

RUN = 8
MOST_SHIFT = 8


def reconverges(delivered: Sequence[int], own: Sequence[int], within: int, ended: bool) -> bool:
    """delivered, own: token ids from the loosened position on; more than within + RUN of them change nothing, unless
    the end is among them. ended: whether `delivered` reaches the answer's last token, and the answer ended by itself.
    """
    return any(_along(delivered, own, shift, within, ended) for shift in range(-MOST_SHIFT, MOST_SHIFT + 1))


def _along(delivered: Sequence[int], own: Sequence[int], shift: int, within: int, ended: bool) -> bool:
    """Whether delivered[i] and own[i + shift] share such a run: one walk, which knows how long the current run is."""
    run = 0
    for i in range(max(0, -shift), min(len(delivered), len(own) - shift)):
        run = run + 1 if delivered[i] == own[i + shift] else 0
        start = i + 1 - run
        if start > within or start + shift > within:
            return False  # so do all later ones
        if run == RUN or (run and ended and i + 1 == len(delivered)):
            return True
    return False
