"""Telling parties that a run is over, and waiting for those who do not know it yet: who is not told waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import IO, NoReturn

from atoll.runtimes.network.messages.calls import RunOver
from atoll.runtimes.network.messages.payload import Header


class Farewell:
    """Who takes part and has not said goodbye. All of it may be called from any thread."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names, self._turn = {*names}, threading.Condition()

    @property
    def names(self) -> list[str]:
        with self._turn:
            return sorted(self._names)

    def came(self, name: str) -> None:
        with self._turn:
            self._names.add(name)

    def left(self, name: str) -> None:
        """Wait no more for somebody who knows that it is over, or is none of them any more."""
        with self._turn:
            self._names.discard(name)
            self._turn.notify_all()

    def wait(self, within: float) -> None:
        """Wait until all have said goodbye, for so many seconds at most."""
        until = time.monotonic() + within
        with self._turn:
            while self._names and (left := until - time.monotonic()) > 0:
                self._turn.wait(min(left, 0.2))  # in slices, so that a signal is heard


class OverService:
    """What a server does with calls when its run has ended before it was started: everybody is told that."""

    def __init__(self, reason: str, farewell: Farewell) -> None:
        self._reason, self._farewell = reason, farewell

    def hello(self, name: str, hello: bytes) -> NoReturn:
        raise RunOver(self._reason)

    def next_question(self, name: str, wait: float) -> NoReturn:
        raise RunOver(self._reason)

    def answer(self, name: str, header: Header, body: IO[bytes]) -> NoReturn:
        raise RunOver(self._reason)

    def here(self, name: str) -> None:
        return

    def goodbye(self, name: str, said: bytes) -> None:
        self._farewell.left(name)

    def unwritten(self, why: str) -> None:
        return
