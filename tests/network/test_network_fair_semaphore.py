"""A fair semaphore: so many at a time, first come first served, none lost whoever gives up."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.runtimes.network.messages.fair_semaphore import FairSemaphore


def nothing() -> None:
    pass


def begin(turns: FairSemaphore, order: list[int], k: int, waits: object = nothing) -> threading.Thread:
    thread = threading.Thread(target=lambda: (turns.take(waits), order.append(k)), daemon=True)  # type: ignore[arg-type]
    before = len(turns._queue)
    thread.start()
    while len(turns._queue) == before:
        time.sleep(0.001)
    return thread


def test_who_came_first_goes_first_also_before_one_who_has_just_had_a_turn() -> None:
    turns, order = FairSemaphore(1), list[int]()
    held = turns.take(nothing)
    assert not turns.wanted
    threads = [begin(turns, order, k) for k in range(3)]
    assert turns.wanted
    turns.give(held)
    again = begin(turns, order, 9)
    threads[0].join(5)
    assert order == [0]
    assert again.is_alive()


def test_who_gives_up_waiting_takes_no_turn_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.runtimes.network.messages.fair_semaphore.SLICE", 0.01)
    turns = FairSemaphore(1)
    held = turns.take(nothing)

    def gives_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        turns.take(gives_up)
    assert not turns.wanted
    turns.give(held)
    turns.give(held)  # twice is once
    turns.take(nothing)
    waiting = begin(turns, [], 0)
    assert waiting.is_alive()


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=40))
@settings(deadline=None, max_examples=50)
def test_never_more_than_so_many(most: int, steps: list[bool]) -> None:
    turns, held = FairSemaphore(most), []
    for takes in steps:
        if takes and len(held) < most:
            held.append(turns.take(nothing))
        elif held:
            turns.give(held.pop(0))
        assert turns._free == most - len(held)
