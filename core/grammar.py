"""Grammar: one sequence's place in the language its answer must belong to.

The matcher (llguidance) is built above core from text and handed down; here it speaks of token ids alone.
Which tokens may follow a block's drafts is found by leading the matcher through them and asking for its
mask at every place. It is left where it then stands: whoever asks about the same drafts next, be it the
draft model's next step or the target's rows, finds the masks made, and other drafts roll it back first.
Only `push`, at commit, moves the sequence's own place, so a rejected draft leaves no trace.

    taken  {"a":     drafts  1 , x     masks after: []  digits     [1]  digits , }     [1 ,]  "
                                                    [1 , x]  void, since x is illegal

A matcher keeps what it found out about its grammar, of drafts too, and is full one day; then it, and every copy of
it, is of no use any more. A sequence that meets such a limit goes on with a matcher of its own, made anew, and has
failed only if that one cannot follow it either. Whatever others, or its own rejected drafts, have filled the old one
with, they thus never change an answer. A draft behind which a limit is met counts as illegal until the next push.

A mask (token_mask.py) has one bit per token id, and behind the last id one that no model knows, "the answer may end
here", which becomes the request's own end tokens.
"""

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par

from core.token_mask import Bits, has, only, pack

# After so many new matchers a sequence is followed without its drafts, whose limits would cost one every round.
_MOST_RENEWALS = 4
_executor = LLExecutor(max(1, min(8, (os.cpu_count() or 1) - 1)))


class Grammar:
    """Stateful, one per sequence. finished: the answer is complete and nothing may follow, or an end token ended
    it. failure: why the answer cannot go on; None while it can.

    Token ids are the target's. Once its sequence is submitted the worker thread alone may touch it.
    """

    def __init__(
        self,
        start: LLMatcher,
        renew: Callable[[], LLMatcher],
        accept_id: int,
        closing: Iterable[int],
        eos: Iterable[int],
    ) -> None:
        """start: a matcher before any token; it is copied, and shares its limits with its copies. renew: makes one
        that shares nothing. accept_id: the bit of "may end here", the last id of the matcher's tokenizer. closing:
        tokens without text that may end a complete answer. eos: what may end it where nothing can follow and closing
        is empty, because the request ignores EOS."""
        self._start = start
        self._renew = renew
        self._accept_id = accept_id
        self._closing = frozenset(closing)
        self._last = self._closing or frozenset(eos)
        words = accept_id // 32 + 1
        self._closing_bits, self._last_bits = pack(self._closing, words), pack(self._last, words)
        self._accept_bits = pack([accept_id], words)
        self._matcher = start.deep_copy()
        self._taken: list[int] = []
        # The drafts that the matcher was led through, whether nothing may follow each of them, and the masks of the
        # places before, between and behind them (the last of which may not have been asked for yet).
        self._path: list[int] = []
        self._stops: list[bool] = []
        self._masks: list[Bits] = []
        self._error: str | None = None  # of the matcher, which cannot be used any more
        self._dead: str | None = None  # why even a new one has no mask of the sequence's own place
        self._halted = False  # by a limit behind drafts: until the next push none are followed further
        self._renewals, self._renewed_at = 0, -1  # how often, and behind how many tokens for the last time
        self.finished = False
        self.failure: str | None = None

    def push(self, token_id: int) -> bool:
        """Take the next delivered token. False if the grammar forbids it; `failure` then says why it was chosen."""
        explore([(self, ())])
        place = self._masks[0]
        if has(place, token_id) and self._go(token_id):
            del self._path[0], self._masks[0]
            self._taken.append(token_id)
            self._halted = self._renewals >= _MOST_RENEWALS
            self.finished = self._stops.pop(0)
            return True
        if self._closes(place, token_id):
            self.finished = True
            return True
        self.failure = (
            (self._dead or self._error or "no token of this model can continue it").partition("<non-verbose")[0].strip()
        )
        return False

    def legal(self, drafts: Sequence[int]) -> int:
        """How many of the drafts may be delivered, one after the other; an end token is the last of them."""
        explore([(self, drafts)])
        reached = self._shared(drafts)
        if reached < len(drafts) and self._closes(self._masks[reached], drafts[reached]):
            return reached + 1
        return reached

    def ends_with(self, drafts: Sequence[int]) -> bool:
        """Whether the answer is complete behind the drafts, all of them explored, and nothing may follow."""
        return 0 < len(drafts) == self._shared(drafts) and self._stops[len(drafts) - 1]

    def forced(self, drafts: Sequence[int]) -> int | None:
        """The only token that may follow the drafts, all of them legal; None where there is a choice or the end."""
        explore([(self, drafts)])
        token = only(self._masks[len(drafts)]) if self._shared(drafts) == len(drafts) else None
        return None if token == self._accept_id else token

    def masks(self, drafts: Sequence[int], count: int, barred: int = 0, barred_ids: Iterable[int] = ()) -> Bits:
        """What may stand at the last `count` of the len(drafts) + 1 places before, between and behind the drafts.

        Returns int32 [count, words], all bits set behind an illegal draft: what is chosen there is never
        delivered. The tokens of barred_ids are taken out of the leading `barred` rows unless nothing else
        is left there: an answer that is complete ends, whatever min_tokens says.
        """
        explore([(self, drafts)])
        known = self._masks[len(drafts) + 1 - count : self._shared(drafts) + 1]
        rows = np.full((count, len(self._accept_bits)), -1, dtype=np.int32)
        if known:
            legal = np.stack(known, out=rows[: len(known)])
            accepts = (legal & self._accept_bits).any(1)
            legal &= ~self._accept_bits
            legal[accepts] |= self._closing_bits
            if barred:
                spared = legal[:barred] & ~pack(barred_ids, len(self._accept_bits))
                legal[:barred] = np.where(spared.any(1, keepdims=True), spared, legal[:barred])
            legal[accepts & ~legal.any(1)] = self._last_bits
        return rows

    def _closes(self, place: Bits, token_id: int) -> bool:
        """Whether it is an end token that may stand at the place of that mask."""
        if not has(place, self._accept_id):
            return False
        return token_id in self._closing or (token_id in self._last and not (place & ~self._accept_bits).any())

    def _shared(self, drafts: Sequence[int]) -> int:
        """How many of the leading drafts the matcher was led through."""
        for index, (draft, token) in enumerate(zip(drafts, self._path, strict=False)):
            if draft != token:
                return index
        return min(len(drafts), len(self._path))

    def _retreat(self, depth: int) -> None:
        """Roll the matcher back to the place behind the first `depth` drafts of its path."""
        if self._error is None and not self._matcher.rollback(len(self._path) - depth):
            self._replay()  # some grammars know no way back
            depth = 0
        if self._error is not None:
            self._start_anew()
            depth = 0
        del self._path[depth:], self._stops[depth:], self._masks[depth + 1 :]

    def _start_anew(self) -> None:
        """Follow the sequence with a new matcher; the path is for the caller to drop, here and below."""
        self._renewals += 1
        self._renewed_at = len(self._taken)
        self._start = self._renew()
        self._replay()

    def _replay(self) -> None:
        """Lead a copy of the first matcher to the sequence's own place."""
        self._matcher = self._start.deep_copy()
        self._error = None if self._matcher.consume_tokens(self._taken) else self._matcher.get_error()

    def _go(self, token_id: int) -> bool:
        """Make the path begin with that token. False if the matcher fails on it, which its mask did not foresee."""
        if self._path[:1] == [token_id]:
            return True
        self._retreat(0)
        if self._advance(token_id):
            return True
        self._retreat(0)  # with a new matcher
        return self._advance(token_id)

    def _advance(self, token_id: int) -> bool:
        if not self._matcher.consume_token(token_id):
            self._error = self._matcher.get_error()
            return False
        self._path.append(token_id)
        # Asked before the next mask: making that one may show more, which must not depend on who asked for it.
        self._stops.append(self._matcher.is_stopped())
        return True

    def _turn(self, drafts: Sequence[int]) -> None:
        """Leave a path that leads elsewhere than through the drafts, but not one that only leads further."""
        shared = self._shared(drafts)
        broken = self._error is not None and not self._halted
        if self._dead is None and (broken or shared < min(len(drafts), len(self._path))):
            self._retreat(shared)

    def _step(self, drafts: Sequence[int]) -> bool:
        """Lead the matcher through the next draft, if there is one and it is legal."""
        depth, stuck = len(self._path), self._halted or self._error is not None
        if depth >= len(drafts) or stuck or not has(self._masks[depth], drafts[depth]):
            return False
        self._halted = not self._advance(drafts[depth])
        return not self._halted

    def _keep(self, mask: Bits) -> None:
        """Keep the mask of the place where the matcher stands, if it has one.

        The sequence's own place must have one, if need be from a new matcher and in the end an empty one. To a place
        behind drafts that has none no draft may lead.
        """
        if self._matcher.is_error() and not self._path and self._renewed_at != len(self._taken):
            self._start_anew()
            fill_next_token_bitmask_par(_executor, [(self._matcher, 0)], mask[None])
        if not self._matcher.is_error():
            self._masks.append(mask)
            return
        self._error = self._matcher.get_error()
        if self._path:
            del self._path[-1], self._stops[-1]
            self._halted = True
        else:
            self._dead = self._error
            self._masks.append(np.zeros_like(mask))


def explore(wants: Iterable[tuple[Grammar, Sequence[int]]]) -> None:
    """Make the masks of every place before, between and behind each grammar's drafts, up to the first illegal one.

    A batch walks in step, so that its matchers work side by side: a mask takes some 50 us.
    """
    walking = list(wants)
    for grammar, drafts in walking:
        grammar._turn(drafts)
    while walking:
        lacking = [grammar for grammar, _ in walking if len(grammar._masks) == len(grammar._path)]
        if lacking:
            rows = np.zeros((len(lacking), len(lacking[0]._accept_bits)), dtype=np.int32)
            fill_next_token_bitmask_par(_executor, [(g._matcher, row) for row, g in enumerate(lacking)], rows)
            for grammar, mask in zip(lacking, rows, strict=True):
                grammar._keep(mask)
        walking = [(grammar, drafts) for grammar, drafts in walking if grammar._step(drafts)]
