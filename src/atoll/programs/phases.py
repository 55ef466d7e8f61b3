"""What is said of the phases of a method: once where it is the same for all of them, else by phase."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def by_phase(said: Mapping[str, T]) -> list[tuple[str, T]]:
    """Pair what is said with the phases it is said of: "" where that is all of them.

    >>> by_phase({"gradient": "a sum", "train": "each vector"})
    [('phase gradient', 'a sum'), ('phase train', 'each vector')]
    >>> by_phase({"gradient": "a sum", "train": "a sum"})
    [('', 'a sum')]
    """
    found: dict[T, list[str]] = {}
    for phase, what in said.items():
        found.setdefault(what, []).append(phase)
    if len(found) == 1:
        return [("", what) for what in found]
    return [(f"phase{'s' * (len(those) > 1)} {', '.join(those)}", what) for what, those in found.items()]


def all_done(rounds: int) -> str:
    """Say that a run did all its rounds.

    >>> all_done(1), all_done(60)
    ('its only round is done', 'all 60 rounds done')
    """
    return f"all {rounds} rounds done" if rounds > 1 else "its only round is done"


def lines_by_phase(said: Mapping[str, Sequence[str]]) -> list[str]:
    """Write lines about phases."""
    found = by_phase({phase: tuple(lines) for phase, lines in said.items()})
    return [f"{phase}: {line}" if phase else line for phase, lines in found for line in lines]


def seen_by_phase(said: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Put together who sees what in each phase.

    >>> seen_by_phase({"gradient": {"server": "a sum", "network": "nothing"}, "train": {"network": "nothing"}})
    {'server (phase gradient)': 'a sum', 'network': 'nothing'}
    """
    who = dict.fromkeys(one for words in said.values() for one in words)
    return {
        f"{one} ({phase})" if phase else one: what
        for one in who
        for phase, what in by_phase({name: words.get(one, "") for name, words in said.items()})
        if what
    }
