"""Errors that a person can act on. Every exception class of Atoll derives from one, and has a code for programs."""

from __future__ import annotations

from collections.abc import Iterable


class AtollError(Exception):
    """What Atoll refuses or gives up. The message is one sentence with the remedy, `code` names it for programs.

    A subclass also has the built-in base that fits (ValueError, OSError, …), and a code that no other class has. Code
    decides by the class or the code, never by the words of the message.

    Example:
        >>> import atoll
        >>> try:
        ...     atoll.data.load("digit")
        ... except atoll.AtollError as error:
        ...     print(error.code)
        bad_data
    """

    code: str = "atoll"


class Mismatch(AtollError, ValueError):
    """Two parts that cannot be combined, or a part that cannot be used. The message says what to change.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> channel = atoll.Channel([atoll.Weigh(), atoll.Clip(1.0)])
        >>> try:
        ...     atoll.assemble(atoll.Job(atoll.FedAvg(atoll.models.softmax()), channel=channel), data)
        ... except atoll.Mismatch as error:
        ...     print(error)
        Clip() after Weigh() would clip the weight too: put Clip() first, or use Average()
    """

    code = "mismatch"


class Unwritable(AtollError, OSError):
    """A file or folder cannot be written; what it held before is untouched."""

    code = "unwritable"


class NotInstalled(AtollError, ImportError):
    """An optional library is missing; the sentence says how to install it."""

    code = "not_installed"


def nearest(name: object, known: Iterable[str], otherwise: str | None = None) -> str:
    """Say which known name was probably meant; if none is near, `otherwise`, or else all of them.

    Args:
        name: what was written.
        known: the names that exist.
        otherwise: what to say if none is near. Default: a list of all names.
    """
    from difflib import get_close_matches

    words = sorted(known)
    close = get_close_matches(str(name), words, 1, 0.5)
    return (
        f"did you mean '{close[0]}'?" if close else f"there are {', '.join(words)}" if otherwise is None else otherwise
    )
