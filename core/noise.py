"""The exponential race's noise: E(v), a pure function of (seed, choice index, position, token id).

The token taken at temperature > 0 is argmax of log p(v) - log E(v) with independent E(v) ~ Exp(1): an
exact sample of p (Gumbel-max, the exponential race), fixed before anybody drafts. E comes from a
counter-based hash (SplitMix64's finaliser), so nothing has a generator state, and target, draft, any
batch and any device see the same noise.

The noise is built in two levels, so that a race need not look at the whole vocabulary. Token ids fall
into blocks of 64. The least E of a block is itself exponential, of rate 64, and sits at a uniformly
drawn token; the 63 others lie above it by fresh Exp(1) (the exponential has no memory). So

    E(v) = m            if v is its block's holder
    E(v) = m + e(v)     otherwise,     m = Exp(1) / 64 from the block's hash, e(v) from the token's

is exactly 64 independent Exp(1), and m alone bounds what any token of the block can score. Worked
example: token 130 lies in block 2 (ids 128..191). Its block's hash gives m = 0.01 and holder 128 + 7;
130 is not 135, so E(130) = 0.01 + e(130). A vocabulary padded to another size sees the same E.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.device_copy import to_device
from core.sampling_params import SamplingParams

BLOCK = 64
_BLOCK_BITS = 6

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB
_BLOCK_DOMAIN = 0xD1B54A32D192ED03  # keeps the blocks' hashes apart from the tokens'


def _signed(value: int) -> int:
    """The same 64 bits as torch's int64 holds them."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def mix(x: int) -> int:
    """SplitMix64's finaliser on a 64-bit integer: a bijection whose output bits look independent."""
    x = ((x ^ (x >> 30)) * _MUL_1) & _MASK64
    x = ((x ^ (x >> 27)) * _MUL_2) & _MASK64
    return x ^ (x >> 31)


def _mix_(x: Tensor) -> Tensor:
    """`mix` in place on an int64 tensor. torch's >> drags the sign along, hence the masks; products wrap."""
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(_signed(_MUL_1))
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(_signed(_MUL_2))
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))


def race_key(params: SamplingParams, position: int) -> int:
    """64 bits naming the race of one absolute position; each argument is mixed before the next joins it."""
    key = mix((params.seed + _GOLDEN) & _MASK64)
    key = mix((key + (params.choice_index + 1) * _GOLDEN) & _MASK64)
    return mix((key + (position + 1) * _GOLDEN) & _MASK64)


def _hash(keys: Tensor, ids: Tensor) -> Tensor:
    """The hash of ids [..., m] under keys [n, 1], int64 [n, m]."""
    return _mix_((ids + 1).mul_(_signed(_GOLDEN)) + keys)


def _exponential(bits: Tensor) -> Tensor:
    """Exp(1) in float64 from each hash's upper 52 bits: u = (k + 0.5) / 2^52 lies strictly inside (0, 1),
    so the variate is at least 1.1e-16 and at most 36.8."""
    uniform = (bits >> 12).bitwise_and_((1 << 52) - 1).double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_()


def exponential(key: int, token: int) -> float:
    """E(token) of the race with this key (`race_key`), for the few tokens of a race on the host; that of the tensors
    but for the last bit of its logarithms."""
    bits = mix((((token >> _BLOCK_BITS) + 1) * _GOLDEN + mix(key ^ _BLOCK_DOMAIN)) & _MASK64)
    minimum = _variate(bits) / BLOCK
    if token == (token >> _BLOCK_BITS) * BLOCK + (bits & (BLOCK - 1)):
        return minimum
    return minimum + _variate(mix(((token + 1) * _GOLDEN + key) & _MASK64))


def _variate(bits: int) -> float:
    return -math.log(((bits >> 12) + 0.5) * 2.0**-52)


Race = tuple[SamplingParams, int]
"""What names a race: whose (seed and choice index) and the absolute position it decides."""


@dataclass(frozen=True, slots=True)
class RaceNoise:
    """The noise of n races by blocks of token ids, all tensors on one device.

    keys: int64 [n, 1], from which each token's own variate follows. Per block, [n, blocks]: minimum, its
    least E, float64; holder, the token id that has it, int64; bound, -log(minimum), float64, which no
    token of the block exceeds.
    """

    keys: Tensor
    minimum: Tensor
    holder: Tensor
    bound: Tensor

    @classmethod
    def draw(cls, races: Sequence[Race], count: int, device: torch.device) -> "RaceNoise":
        """Draw the first `count` blocks of each race."""
        names = [race_key(params, position) for params, position in races]
        pairs = [[_signed(name), _signed(mix(name ^ _BLOCK_DOMAIN))] for name in names]
        keys, block_keys = to_device(pairs, torch.int64, device).unsqueeze(-1).unbind(1)
        blocks = torch.arange(count, device=device)
        bits = _hash(block_keys, blocks)
        minimum = _exponential(bits).div_(BLOCK)
        # The variate uses the upper 52 bits, the holder the lower 6: disjoint, hence independent.
        holder = bits.bitwise_and_(BLOCK - 1).add_(blocks * BLOCK)
        return cls(keys, minimum, holder, minimum.log().neg_())

    def neg_log_exponential(self, lines: Tensor, ids: Tensor) -> Tensor:
        """-log E(v) in float64 [s, m], of token ids int64 [s, m] (or [1, m]) in the races `lines`, int64 [s]."""
        above = _exponential(_hash(self.keys[lines], ids))
        line, block = lines.unsqueeze(1), ids >> _BLOCK_BITS
        above.masked_fill_(ids == self.holder[line, block], 0.0)
        return above.add_(self.minimum[line, block]).log_().neg_()

    def narrowed(self, count: int) -> "RaceNoise":
        """The first `count` blocks, views."""
        return RaceNoise(self.keys, self.minimum[:, :count], self.holder[:, :count], self.bound[:, :count])

    def rows(self, begin: int, end: int) -> "RaceNoise":
        """The races begin .. end - 1, views."""
        some = slice(begin, end)
        return RaceNoise(self.keys[some], self.minimum[some], self.holder[some], self.bound[some])

    def taken(self, lines: Sequence[int]) -> "RaceNoise":
        """The races of these lines, in order."""
        if list(lines) == list(range(len(self.keys))):
            return self
        if list(lines) == list(range(lines[0], lines[-1] + 1)):
            return self.rows(lines[0], lines[-1] + 1)
        index = to_device(lines, torch.int64, self.keys.device)
        return RaceNoise(self.keys[index], self.minimum[index], self.holder[index], self.bound[index])

    @staticmethod
    def joined(parts: Sequence["RaceNoise"]) -> "RaceNoise":
        return RaceNoise(
            torch.cat([part.keys for part in parts]),
            torch.cat([part.minimum for part in parts]),
            torch.cat([part.holder for part in parts]),
            torch.cat([part.bound for part in parts]),
        )


class NoiseCache:
    """Lives for one round: a position's block noise is drawn once for draft and target, wherever asked first.

    Models on two devices each draw their own, so that a row's noise never depends, to the last bit of a
    logarithm, on whether somebody drafted.
    """

    def __init__(self) -> None:
        self._tables: dict[torch.device, _Table] = {}

    def draw(self, races: Sequence[Race], vocab: int, device: torch.device) -> RaceNoise:
        """The noise of n >= 1 races over token ids below vocab, in order; the missing ones in one go."""
        count = -(-vocab // BLOCK)
        table = self._tables.get(device)
        if table is None or table.count < count:  # a wider vocabulary: what was drawn for fewer blocks will not do
            table = self._tables[device] = _Table(count, device)
        drawn = table.draw(races)
        return drawn if table.count == count else drawn.narrowed(count)


class _Table:
    """Noise of one device over `count` blocks: one line a race, in the order in which they were asked for.

    Kept in the parts in which it was drawn until somebody asks across them: a draft's steps each ask for their
    own part, the target for all of them.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.count = count
        self._device = device
        self._lines: dict[tuple[int, int, int], int] = {}
        self._parts: list[RaceNoise] = []
        self._last_start = 0  # line with which the last part begins

    def draw(self, races: Sequence[Race]) -> RaceNoise:
        names = [(params.seed, params.choice_index, position) for params, position in races]
        missing = {name: race for name, race in zip(names, races, strict=True) if name not in self._lines}
        if missing:
            self._last_start = len(self._lines)
            self._parts.append(RaceNoise.draw(list(missing.values()), self.count, self._device))
            self._lines.update(zip(missing, range(self._last_start, self._last_start + len(missing)), strict=True))
        lines = [self._lines[name] for name in names]
        if min(lines) < self._last_start:
            self._parts, self._last_start = [RaceNoise.joined(self._parts)], 0
        return self._parts[-1].taken([line - self._last_start for line in lines])
