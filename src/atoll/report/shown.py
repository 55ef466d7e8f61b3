"""Text as screens, logs and pages may have it. Whatever a peer sends goes through here before a person sees it."""

from __future__ import annotations

import re
import unicodedata

_UNUSUAL = re.compile(r"[^\x20-\x7e\n\t]")
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # what moves a cursor, hides or turns text round, or is no sign


def shown(text: str) -> str:
    r"""Return a text in which control characters stand as their codes; line ends and tabs stay.

    Example:
        >>> from atoll.report.shown import shown
        >>> shown("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return _UNUSUAL.sub(_seen, text)


def one_line(text: str) -> str:
    """Return a text as one line, so that nobody can add lines to a log."""
    return shown(text.replace("\n", "\\n").replace("\t", " "))


def _seen(found: re.Match[str]) -> str:
    sign = found[0]
    return sign.encode("unicode_escape").decode() if unicodedata.category(sign) in _UNSEEN else sign
