"""Which actor answers which chunks of a question, and who adds to the running total next. No call of Ray lives here.

The sum of a question is ((c0 + c1) + c2) + … over its chunks, as the simulator adds them: a sum of floating-point
numbers depends on its order. So the sums of chunks stay with the actors that made them, and the running total travels:
an actor adds its own chunks to it, in their order. Each actor gets a run of neighbouring chunks, so that few totals
travel. Runs get shorter lap by lap: the total goes round while actors work, and little is left to add at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

LAP = 0.7  # of what is left goes out in one lap
LAST = 8  # chunks an actor, of which there is one lap only


class Add(NamedTuple):
    """An actor adds the sums that it keeps of these chunks to the running total."""

    actor: int
    chunks: range


class Plan:
    """What is to do, who has it or keeps the sums of it, how far the running total is."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.added = 0  # the running total holds the chunks before this one
        self.tries = [0] * count  # actors that died over a chunk
        self._free = [range(count)]  # runs that nobody has, in order
        self._lap, self._length = 0, 0  # runs to come in this lap, and their length
        self._last = False  # whether it is the last one
        self._told: tuple[int, int] | None = None  # who was given the total last, and how far it was
        self._runs: dict[int, range] = {}  # what is left of an actor's run
        self._with: dict[int, int] = {}  # chunk -> the actor that works on it or keeps its sums
        self._in_hand: dict[int, list[range]] = {}  # what an actor works on
        self._answered: set[int] = set()

    def take(self, actor: int, actors: int, capacity: int) -> range:
        """Return the chunks of an actor's next call, none if it has to wait.

        So many `actors` are there. The sums of `capacity` chunks an actor may wait to be added: chunks far ahead wait.
        """
        in_hand = self._in_hand.setdefault(actor, [])
        if len(in_hand) == 2 or any(self.tries[some[0]] for some in in_hand):  # two hide the way there and back
            return range(0)
        run = self._runs.pop(actor, None) or self._claim(actors, capacity) or self._steal()
        # In the last lap a quarter of what is left: the last calls are short, so that all actors end together.
        chunks = run[: -(-len(run) // 4)] if self._last else run
        # An actor that died had many chunks in hand: one by one, with no other call, they show which it was.
        risky = next((i for i, c in enumerate(chunks) if self.tries[c]), len(chunks))
        chunks = chunks[: risky or int(not in_hand)]
        if len(run) > len(chunks):
            self._runs[actor] = run[len(chunks) :]
        if chunks:
            in_hand.append(chunks)
        self._with |= dict.fromkeys(chunks, actor)
        return chunks

    def _claim(self, actors: int, capacity: int) -> range:
        if not self._free or self._free[0].start >= self.added + capacity * actors:
            return range(0)
        if not self._lap:
            each = -(-sum(map(len, self._free)) // actors)
            self._last = each <= LAST
            self._lap, self._length = actors, each if self._last else ceil(LAP * each)
        # Half the capacity: the next run is begun before the total has come to this one.
        length = min(self._length, max(capacity // 2, 1))
        run, rest = self._free[0][:length], self._free[0][length:]
        self._free[:1] = [rest] if rest else []
        self._lap -= 1
        return run

    def _steal(self) -> range:
        """Take the later half of the longest run that somebody has not begun, if all is claimed."""
        if self._free or not self._runs:
            return range(0)
        actor, run = max(self._runs.items(), key=lambda item: len(item[1]))
        del self._runs[actor]
        if len(run) > 1:
            self._runs[actor] = run[: len(run) // 2]
        return run[len(run) // 2 :]

    def answered(self, actor: int, chunks: range) -> None:
        """Note that a call is done and the sums of its chunks are there."""
        self._in_hand[actor].remove(chunks)
        self._answered |= set(chunks)

    def add(self) -> Add | None:
        """Return who adds which sums now: all that come next, once the actor that has them has no more to come."""
        actor, stop = self._with.get(self.added, -1), self.added
        while self._with.get(stop) == actor and stop in self._answered:
            stop += 1
        more = self._with.get(stop) == actor or (actor in self._runs and self._runs[actor].start == stop)
        return None if more or stop == self.added else Add(actor, range(self.added, stop))

    def hold(self) -> int | None:
        """Return who may have the total before it adds: the actor that works on what comes next, once."""
        actor = self._with.get(self.added)
        if actor is None or not self.added or self._told == (actor, self.added):
            return None
        self._told = actor, self.added
        return actor

    def has_added(self, add: Add) -> None:
        """Note how far the running total is."""
        self.added = add.chunks.stop
        for c in add.chunks:
            del self._with[c]

    def lost(self, actor: int) -> list[int]:
        """Take back all that an actor had: its run, what it was at, the sums that it kept; return what it was at."""
        in_hand = [c for chunks in self._in_hand.pop(actor, ()) for c in chunks]
        self._again([*self._runs.pop(actor, ()), *(c for c, h in self._with.items() if h == actor)])
        return in_hand

    def lost_total(self) -> None:
        """Begin to add anew: the running total is gone."""
        self._again(range(self.added))
        self.added = 0

    def _again(self, chunks: Sequence[int]) -> None:
        self._answered -= set(chunks)
        for c in chunks:
            self._with.pop(c, None)
        free, self._free = sorted({*chunks, *(c for run in self._free for c in run)}), []
        for c in free:  # runs of neighbours
            if self._free and self._free[-1].stop == c:
                self._free[-1] = range(self._free[-1].start, c + 1)
            else:
                self._free.append(range(c, c + 1))
