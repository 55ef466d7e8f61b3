"""How data is refused: two exceptions and the sentence for an unknown word. Nothing here looks at data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable

import numpy as np

from atoll.core.errors import AtollError, nearest

RENAMED = {"least": "min_samples"}  # options of release 0.1 and what they are called now


class BadData(AtollError, ValueError):
    """Data, or a request for data, that cannot be used as it is. The message says what to change.

    Example:
        >>> import atoll
        >>> try:
        ...     atoll.data.load("digit")
        ... except atoll.data.BadData as error:
        ...     print(str(error).partition(" (")[0])
        there is no data set 'digit': did you mean 'digits'?
    """

    code = "bad_data"


class DataMissing(AtollError, FileNotFoundError):
    """A data file is missing and cannot be downloaded. The message names the file and the folder to put it in.

    Example:
        >>> import atoll
        >>> try:
        ...     atoll.Federated.open("no-such-folder")
        ... except atoll.data.DataMissing as error:
        ...     print(error)
        no-such-folder holds no saved federation: write one with Federated.save(folder)
    """

    code = "data_missing"


def unknown(what: str, said: object, known: Iterable[str]) -> BadData:
    """Say that a word is not known, which known word is nearest, and which there are."""
    words = sorted(known)
    now = RENAMED.get(str(said))
    hint = f"it is called '{now}' now" if now else nearest(said, words, "choose a known one")
    return BadData(f"there is no {what} {said!r}: {hint} (known: {', '.join(words) or 'none'})")


def options_of(function: Callable[..., object]) -> dict[str, bool]:
    """Return the arguments of a function that have a name to callers, each with whether it must be given."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is not p.POSITIONAL_ONLY}


def accept(what: str, function: Callable[..., object], options: Iterable[str]) -> None:
    """Refuse options that a function does not have, or the lack of one that it needs."""
    known, given = options_of(function), set(options)
    for option in given:
        if option not in known:
            raise unknown(f"option of {what}", option, known)
    for option, needed in known.items():
        if needed and option not in given:
            raise BadData(f"{what} needs {option}: add {option} = …")


def whole(option: str, value: object, least: int, most: float = math.inf) -> int:
    """Return a whole number within its bounds, or refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        upto = f" to {most}" if most < math.inf else " or more"
        raise BadData(f"{option} = {value!r} cannot be: give a whole number, {least}{upto}")
    return int(value)


def seed_number(value: object) -> int:
    """Return a seed, or refuse what is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BadData(f"seed = {value!r} cannot be: give a whole number")
    return int(value)


def number(option: str, value: object, least: float = 0.0, below: float = math.inf) -> float:
    """Return a number within its bounds, or refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not least <= value < below:
        upto = f" to below {below:g}" if below < math.inf else " or more"
        raise BadData(f"{option} = {value!r} cannot be: give a number, {least:g}{upto}")
    return float(value)
