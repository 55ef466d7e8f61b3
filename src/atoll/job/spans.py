"""Where each key and each value of a TOML text stands, so that one word can be changed and all else stays.

tomllib says what a text means but not where. `scan` walks over a text that tomllib has accepted, so it need not
check anything: it only has to know where keys, strings, arrays and tables begin and end.
"""

from __future__ import annotations

import tomllib
from typing import NamedTuple

Path = tuple[str | int, ...]  # keys, and positions in arrays: ("stages", 0, "use")
BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Span(NamedTuple):
    """A piece of the text: `text[start:end]` is the key, the value, or the whole `key = value` at a path."""

    path: Path
    start: int
    end: int


class Spans(NamedTuple):
    """All pieces of a text. A key may stand in several places: in headers and in dotted keys."""

    keys: list[Span]
    values: list[Span]
    pairs: list[Span]


def scan(text: str) -> Spans:
    """Return where the keys, values and pairs of a TOML text are; tomllib must have accepted the text."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found = Spans([], [], [])
        self._rows: dict[Path, int] = {}  # tables in each array of tables so far

    def document(self) -> None:
        table: Path = ()
        while first := self._next():
            if first == "[":
                table = self._header()
            else:
                self._pair(table)

    def _next(self) -> str:
        """Go on to what is neither space nor comment; return its first character, or nothing at the end."""
        while self.at < len(self.text):
            here = self.text[self.at]
            if here == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif here.isspace():
                self.at += 1
            else:
                return here
        return ""

    def _header(self) -> Path:
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        path = self._key((), header=True)
        self.at = self.text.index("]", self.at) + (2 if array else 1)
        if not array:
            return path
        self._rows[path] = self._rows.get(path, 0) + 1
        return (*path, self._rows[path] - 1)

    def _key(self, path: Path, *, header: bool = False) -> Path:
        """Read a key with its dots; return the path that it leads to."""
        while True:
            if header and path in self._rows:  # what follows belongs to the last of the tables
                path = (*path, self._rows[path] - 1)
            quoted = self._next() in "\"'"
            start = self.at
            if quoted:
                self._string()
                name = str(tomllib.loads(f"k = {self.text[start : self.at]}")["k"])
            else:
                while self.text[self.at] in BARE:
                    self.at += 1
                name = self.text[start : self.at]
            path = (*path, name)
            self.found.keys.append(Span(path, start, self.at))
            if self._next() != ".":
                return path
            self.at += 1

    def _pair(self, table: Path) -> None:
        start = self.at
        path = self._key(table)
        self.at += 1  # the sign =
        self._value(path)
        self.found.pairs.append(Span(path, start, self.at))

    def _value(self, path: Path) -> None:
        first = self._next()
        start = self.at
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._table(path)
        else:  # a number, a truth value, a date (which may hold a space)
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\r\n":
                self.at += 1
            self.at = start + len(self.text[start : self.at].rstrip())
        self.found.values.append(Span(path, start, self.at))

    def _array(self, path: Path) -> None:
        self.at += 1
        number = 0
        while self._next() != "]":
            self._value((*path, number))
            number += 1
            if self._next() == ",":
                self.at += 1
        self.at += 1

    def _table(self, path: Path) -> None:
        self.at += 1
        while self._next() != "}":
            self._pair(path)
            if self._next() == ",":
                self.at += 1
        self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        long = self.text.startswith(quote * 3, self.at)
        end = quote * 3 if long else quote
        self.at += len(end)
        while not self.text.startswith(end, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(end)
        while long and self.text.startswith(quote, self.at):  # up to two quotes may stand before the last three
            self.at += 1
