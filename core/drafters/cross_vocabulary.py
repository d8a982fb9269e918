"""Drafting with a draft model of another vocabulary, through the text that both have in common (bridge.py).

A turn feeds what the draft's KV lacks of its reading of the text and takes its likeliest next token, as in model.py.
Once the turns are over what they say is told in the target's tokens, which are the drafts. So these are proposals like
lookup's: they share no noise with the target, whatever the temperature, and what penalties or biases do to the target's
tokens the draft model does not know.

    target     "def" " add" "(first" ","              drafts     " second" "):"
    reading    "def" " add" "(" "first" ","           drafted    " sec" "ond" "):"

A sequence's draft_tokens count the target's tokens that were read. What a text takes of the draft model's context, or
of the room there is for its KV in all, is known from its reading alone; beyond, it is not drafted for any more.
"""

import math
import sys
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.device_clock import DeviceInterval
from core.device_copy import to_device
from core.drafters.base import DraftJob, DraftStep, explore_behind
from core.drafters.bridge import Bridge
from core.drafters.forced import force
from core.layout import RaggedLayout, Segment
from core.models.draft_tables import DraftTable, DraftTables
from core.models.runner import ModelRunner
from core.sequence import Sequence

PIECE = 256  # rows of a forward that reads
_MORE_TURNS = 2  # for each draft wanted, at most: where the draft model's tokens are the smaller ones


@dataclass(slots=True, eq=False)
class _Turns:
    """A job at its draft model's work. open: ids of its text behind the settled ones. most: it may draft no more.
    reach: the chance that all it drafted is right."""

    job: DraftJob
    table: DraftTable
    open: list[int]
    most: int
    drafted: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    reach: float = 1.0

    @property
    def wanted(self) -> int:
        return self.job.limit - len(self.job.drafts)


class CrossDrafter:
    """One per runtime. tables: of the runner's KV. target_vocab: ids that the target has. piece: rows of a forward that
    reads; the first that drafts may read so many, too, where its sequences are fewer."""

    def __init__(
        self, runner: ModelRunner, tables: DraftTables, bridge: Bridge, target_vocab: int, piece: int = PIECE
    ) -> None:
        self._runner, self._tables, self._bridge, self._piece = runner, tables, bridge, piece
        self._target_vocab = target_vocab
        self._unusable = to_device(list(bridge.unusable), torch.int64, runner.device)
        self._longest = min(tables.capacity, runner.loaded.max_context)

    def read(self, targets: list[tuple[Sequence, int]], drafting: Collection[Sequence]) -> None:
        """Bring each sequence's reading to its first so many tokens, which are verified, feed what of it is settled
        and move the watermark. Who finds no room beside those before it, and beside those that are `drafting` in this
        round, stays behind; so does for some rounds who lost its room and has a long text to read again, since what
        is fed in one is bounded by what the orders are for."""
        fed: dict[Sequence, DraftTable] = {}
        most = max(self._piece, _MORE_TURNS * sum(upto - sequence.draft_tokens for sequence, upto in targets))
        for sequence, upto in targets:
            table = self._reading(sequence, upto)
            if len(table.tokens) <= self._longest:
                self._tables.look_up(table)
                if not self._tables.make_room(sequence, len(table.tokens), [*fed, *drafting]):
                    continue
                fed[sequence] = table
            else:
                sequence.draft_tokens = max(sequence.draft_tokens, upto)
        self._catch_up([(table, []) for table in fed.values() if len(table.tokens) > 1], most=most)
        for sequence, upto in targets:
            if sequence in fed and fed[sequence].lacks_nothing:
                again = min(fed[sequence].reading.taken, sequence.target_tokens)
                sequence.draft_tokens = max(sequence.draft_tokens, upto, again)

    def draft(self, jobs: list[DraftJob]) -> list[DraftStep]:
        """Draft for all jobs and move their watermarks; returns the draft model's forwards. Those whose KV finds no
        room together take turns."""
        steps: list[DraftStep] = []
        waiting = self._begin(force(jobs))
        while waiting:
            together: dict[Sequence, _Turns] = {}
            left = []
            for turns in waiting:
                sequence = turns.job.sequence
                positions = len(turns.table.tokens) + len(turns.open) + turns.most - 1
                if self._tables.make_room(sequence, positions, together):
                    together[sequence] = turns
                    sequence.draft_tokens = len(sequence.tokens)  # those before it may have needed its room
                else:
                    left.append(turns)
            steps += self._work(list(together.values()))
            waiting = left
        return steps

    def _reading(self, sequence: Sequence, upto: int) -> DraftTable:
        table = self._tables.find(sequence) or self._tables.open(sequence, self._bridge.read())
        table.reading.push(sequence.tokens[table.reading.taken : upto])
        return table

    def _begin(self, jobs: list[DraftJob]) -> list[_Turns]:
        """Those that the draft model can draft for at all: a fact about each one's own text."""
        able = []
        for job in jobs:
            sequence = job.sequence
            table = self._reading(sequence, len(sequence.tokens))
            sequence.draft_tokens = len(sequence.tokens)
            behind = table.reading.ahead(job.drafts)
            length = len(table.tokens) + len(behind)
            most = min(_MORE_TURNS * (job.limit - len(job.drafts)), self._longest + 1 - length)
            if most > 0 and length > 0:
                self._tables.look_up(table)
                able.append(_Turns(job, table, behind, most))
        return able

    def _work(self, group: list[_Turns]) -> list[DraftStep]:
        self._catch_up([(turns.table, turns.open) for turns in group], self._piece // max(1, len(group)))
        steps, active = [], group
        while active:
            step = DeviceInterval(self._runner.device)
            rows = self._turn(active)
            step.end()
            steps.append(DraftStep(rows, len(active), step.seconds()))
            active = [turns for turns in active if self._goes_on(turns)]
        self._deliver(group)
        return steps

    def _turn(self, group: list[_Turns]) -> int:
        """One draft forward and what it drafts for each; rows of the forward."""
        segments = []
        for turns in group:
            start, ids = turns.table.lacking(turns.open + turns.drafted)
            segments.append(Segment(tuple(ids), start, tuple(turns.table.blocks), 1))
            turns.table.beyond += ids
        layout = RaggedLayout.build(segments, self._runner.block_size)
        tokens, chances = self._choices(self._runner.forward(layout))
        for turns, token, chance in zip(group, tokens, chances, strict=True):
            self._tables.settle(turns.table)
            turns.drafted.append(token)
            turns.chances.append(chance)
            turns.job.turns += 1
        return layout.num_rows

    def _choices(self, logits: Tensor) -> tuple[list[int], list[float]]:
        """The likeliest token of each row and its probability. Waits for the device once."""
        logits.index_fill_(1, self._unusable, -torch.inf)
        best = logits.max(dim=1)
        chances = (best.values - logits.logsumexp(dim=1)).exp().nan_to_num(nan=0.0)
        numbers, found = torch.stack([best.indices.double(), chances.double()]).tolist()
        return [int(number) for number in numbers], found

    def _goes_on(self, turns: _Turns) -> bool:
        """Whether another turn is worth its while, as `DraftJob.extend` would judge it."""
        job, right = turns.job, turns.chances[-1] ** turns.job.doubt
        turns.reach *= right + (1 - right) * job.forgiving
        if len(turns.drafted) >= turns.most or turns.drafted[-1] in self._bridge.closing:
            return False
        if job.reach * turns.reach < job.min_reach:
            return False
        return len(turns.drafted) < turns.wanted or len(self._crossed(turns)[0]) < turns.wanted

    def _crossed(self, turns: _Turns) -> tuple[list[int], list[float]]:
        """What it drafted in the target's tokens, and how probable the draft model finds each."""
        tokens: list[int] = []
        chances: list[float] = []
        done = 0
        known = turns.job.sequence.tokens[-self._bridge.window :] + turns.job.drafts
        for token, needed in self._bridge.cross(known, turns.drafted):
            if token >= self._target_vocab:
                break
            tokens.append(token)
            chances.append(math.prod(turns.chances[done:needed]))
            done = max(done, needed)
        return tokens, chances

    def _deliver(self, group: list[_Turns]) -> None:
        found = [(turns.job, *self._crossed(turns)) for turns in group]
        explore_behind((job, tokens) for job, tokens, _ in found)
        force([job for job, tokens, chances in found if job.extend(tokens, chances if job.min_reach > 0 else None)])

    def _catch_up(self, tables: list[tuple[DraftTable, list[int]]], spare: int = 1, most: int = sys.maxsize) -> None:
        """Feed what the tables' KV lacks of their texts and the ids behind, but for the last `spare` of each, or the
        last one, in forwards of few rows; `most` in all, the first tables first."""
        lacking = [(table, *table.lacking(behind)) for table, behind in tables]
        while True:
            segments, room = [], min(self._piece, most)
            most -= room
            for index, (table, start, ids) in enumerate(lacking):
                count = min(room, len(ids) - max(spare, 1))
                if count > 0:
                    segments.append(Segment(tuple(ids[:count]), start, tuple(table.blocks), 0))
                    table.beyond += ids[:count]
                    lacking[index] = table, start + count, ids[count:]
                    room -= count
            if not segments:
                break
            self._runner.forward(RaggedLayout.build(segments, self._runner.block_size))
        for table, _ in tables:
            self._tables.settle(table)
