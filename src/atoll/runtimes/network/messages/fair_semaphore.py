"""A fair semaphore: few proceed at a time, in the order in which they came. No call and no party is known here."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

SLICE = 1.0  # seconds after which who waits looks whether it is still wanted


class Turn:
    """The right to proceed, once it is had."""

    def __init__(self) -> None:
        self.had, self.began, self.over = threading.Event(), math.inf, False


class FairSemaphore:
    """Lets `limit` callers proceed at a time, in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._lock, self._free, self._queue = threading.Lock(), limit, deque[Turn]()

    @property
    def wanted(self) -> bool:
        """Whether anybody waits."""
        return bool(self._queue)

    def take(self, waits: Callable[[], None]) -> Turn:
        """Wait for a turn; `waits` is called now and then, and may raise."""
        turn = Turn()
        with self._lock:
            self._queue.append(turn)
            self._deal()
        try:
            while not turn.had.wait(SLICE):
                waits()
        except BaseException:
            self.give(turn)
            raise
        return turn

    def give(self, turn: Turn) -> None:
        """Give a turn back, had or waited for; a second time does nothing."""
        with self._lock:
            if turn.over:
                return
            turn.over = True
            if turn.had.is_set():
                self._free += 1
            else:
                self._queue.remove(turn)
            self._deal()

    def _deal(self) -> None:
        while self._free and self._queue:
            turn = self._queue.popleft()
            self._free, turn.began = self._free - 1, time.monotonic()
            turn.had.set()
