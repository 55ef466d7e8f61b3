"""A clock that stands still while this process does: a server that was paused takes nobody for silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STEP = 2.0  # seconds that pass at most between two looks; whoever measures by this clock looks more often


class AwakeClock:
    """Seconds in which this process ran. A suspended machine or a stopped process is a step of `step` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, step: float = STEP) -> None:
        self._clock, self._step, self._lock = clock, step, threading.Lock()
        self._last, self._now = clock(), 0.0

    def __call__(self) -> float:
        with self._lock:
            last, self._last = self._last, self._clock()
            self._now += min(self._last - last, self._step)
            return self._now
