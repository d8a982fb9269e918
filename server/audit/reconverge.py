"""Re-convergence: whether the target, going its own way, comes back to what was delivered.

Both texts begin at a loosened position: the delivered one with the loosened token, the target's own with its own
choice instead. They re-converge if they share a run of RUN tokens that begins within `within` tokens in both, at
places no more than MOST_SHIFT apart; the two ways may differ in length, but a longer shift is likelier to be a text
that repeats itself than one that came back.

    delivered    quick  red   fox  jumps over the lazy dog and
    the target's fast   brown red  fox   jumps over the lazy dog      a run of 8 from 1 and from 2: a shift of 1

An answer that ends with fewer than RUN tokens behind the loosened one has no room for such a run. There the target
must end too, and with all of them. What only says that a text ends is no part of either: any two answers share it.
"""

from collections.abc import Sequence

RUN = 8
MOST_SHIFT = 8


def reconverges(delivered: Sequence[int], own: Sequence[int], within: int, ended: bool) -> bool:
    """delivered, own: token ids from the loosened position on, without what ends them (ending.py). ended: both reach
    their answer's last word, and both answers ended by themselves."""
    if any(_along(delivered, own, shift, within) for shift in range(-MOST_SHIFT, MOST_SHIFT + 1)):
        return True
    rest, shift = list(delivered[1:]), len(own) - len(delivered)
    if not ended or not 0 < len(rest) < RUN or abs(shift) > MOST_SHIFT:
        return False
    start = 1 + shift
    return 0 <= start <= within and list(own[start:]) == rest


def _along(delivered: Sequence[int], own: Sequence[int], shift: int, within: int) -> bool:
    """Whether delivered[i] and own[i + shift] share such a run: one walk, which knows how long the current run is."""
    run = 0
    for i in range(max(0, -shift), min(len(delivered), len(own) - shift)):
        run = run + 1 if delivered[i] == own[i + shift] else 0
        start = i + 1 - run
        if start > within or start + shift > within:
            return False  # so do all later ones
        if run == RUN:
            return True
    return False
