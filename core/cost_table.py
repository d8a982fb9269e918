"""What a plain decoding step costs on this machine: the yardstick behind `estimated_speedup`.

Filled by measuring real target forwards at start-up and refreshed, while serving, by every round that
happens to be a plain one (no drafts, no prefill). Seconds per round by batch size.
"""

from bisect import bisect_left


class CostTable:
    """Smoothed seconds of an `off` round for each batch size seen; straight lines in between.

    The start-up figure is for a short context, where attention costs next to nothing. Rounds of longer
    contexts take longer, `off` ones included, so until plain rounds have been seen in service the
    yardstick is too short and `estimated_speedup` too low: it errs against us, the more so the longer
    the context. Afterwards it is for the mean context of the plain rounds of late.
    """

    def __init__(self, smoothing: float = 0.1) -> None:
        """smoothing: weight of the newest observation in the running mean, 0 < smoothing <= 1."""
        self._smoothing = smoothing
        self._seconds: dict[int, float] = {}

    def record(self, batch_size: int, seconds: float) -> None:
        known = self._seconds.get(batch_size)
        self._seconds[batch_size] = seconds if known is None else known + self._smoothing * (seconds - known)
        self.cap(batch_size, self._seconds[batch_size])

    def cap(self, batch_size: int, seconds: float) -> None:
        """A round of at least so many sequences took so long: a plain one of them, or of fewer, takes no longer.

        So every round corrects a figure that other load on the machine spoiled at start-up.
        """
        for size, known in self._seconds.items():
            if size <= batch_size:
                self._seconds[size] = min(known, seconds)

    def off_step(self, batch_size: int) -> float | None:
        """Seconds of one `off` round of `batch_size` sequences; None while nothing was measured.

        Between two measured sizes a straight line; beyond the largest (smallest) one its slope is
        unknown, so the nearest value stands in, which understates the speedup rather than praise it.
        """
        if not self._seconds:
            return None
        sizes = sorted(self._seconds)
        at = bisect_left(sizes, batch_size)
        if at == len(sizes):
            return self._seconds[sizes[-1]]
        if at == 0 or sizes[at] == batch_size:
            return self._seconds[sizes[at]]
        low, high = sizes[at - 1], sizes[at]
        share = (batch_size - low) / (high - low)
        return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])

    def as_dict(self) -> dict[int, float]:
        return dict(sorted(self._seconds.items()))
