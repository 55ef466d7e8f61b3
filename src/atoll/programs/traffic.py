"""What travels between a server and one party, in bytes, worked out from what is declared before anything runs.

Bytes are those of the bodies of questions and answers, as they are written: arrays with their names, types and shapes.
A party's audit log and a server's facts count the same bodies. The network adds headers and TLS, which are named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from atoll.core.question import PLAIN, REST, Encoding, Layout, Leaf, Question, arranged, array_of, walk
from atoll.core.tree import Tree

# What the network adds, by the layout of its protocols. A window is what may be under way before the receiver gives
# more room (HTTP/2's own size, which `settings` of the network leaves as it is). A sender fills it with five frames,
# each in a TLS record: no frame has over 16,384 bytes. The receiver answers each window with a record of two updates.
_RECORD, _FRAME, _UPDATE, _WINDOW = 22, 9, 13, 65_535  # bytes
_OWN = (
    220  # bytes of Atoll's records for a question with its answer, either way: headers, envelopes, digests, a receipt
)
_CALL = 100  # bytes of HTTP/2's headers and TLS for a call, either way; a question with its answer takes two
HEADERS = _OWN + 2 * _CALL
FRAMES = 5 * (_RECORD + _FRAME) / _WINDOW  # of all bytes
FLOW = (_RECORD + 2 * _UPDATE) / _WINDOW  # of all bytes, the other way


def on_line(body: int, other: int, questions: int) -> float:
    """Count the bytes at a socket in one direction: `body` go this way, `other` the other way."""
    return body * (1 + FRAMES) + other * FLOW + questions * HEADERS


class Traffic(NamedTuple):
    """What one party sends and receives: bytes of bodies, and the questions that they belong to."""

    up: int = 0
    down: int = 0
    questions: int = 0

    def plus(self, other: Traffic, times: int = 1) -> Traffic:
        """Add another's, so many times."""
        return Traffic(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


class Cost(NamedTuple):
    """What each party moves, and what those who hold a key move beyond that, all of them together."""

    each: Traffic = Traffic()
    holders: Traffic = Traffic()


def travels(question: Question) -> Layout:
    """Lay an answer out as it travels: rows that have an encoding as its bytes."""
    packed = {path: _packed(question.answers.leaves[path], how) for path, how in question.encodings.items()}
    return Layout({**question.answers.leaves, **packed}) if packed else question.answers


def body_bytes(layout: Layout) -> int:
    """Count the bytes of a tree that is laid out so; a plain value is taken for a small number."""
    shapes = {k: (np.dtype(leaf.dtype), leaf.shape) for k, leaf in layout.leaves.items() if leaf.shape is not None}
    plain = [path for path in layout.leaves if path not in shapes]
    if plain:
        shapes[REST] = np.dtype(np.uint8), (len(msgspec.msgpack.encode(dict.fromkeys(plain, 0))),)
    head, _, size = arranged(shapes)
    return len(head) + size


def tree_bytes(tree: Tree) -> int:
    """Count the bytes of a tree that travels."""
    found = []
    for path, leaf in walk(tree):
        if type(leaf) in PLAIN:
            found.append((path, Leaf(PLAIN[type(leaf)])))
        else:
            array = array_of(path, leaf)
            found.append((path, Leaf(array.dtype.name, array.shape)))
    return _leaf_bytes(tuple(found))


@lru_cache(maxsize=256)  # a round is asked like the round before
def _leaf_bytes(leaves: tuple[tuple[str, Leaf], ...]) -> int:
    return body_bytes(Layout(dict(leaves)))


def traffic(questions: Iterable[Question], messages: Mapping[str, tuple[int, int]]) -> Traffic:
    """Count what one party is asked and answers where it is put these questions once.

    `messages` says how long the messages of a protocol are, asked and answered, by the name of the question without
    its phase; who has no message in a question is not put it.
    """
    found = Traffic()
    for question in questions:
        asks, answers = question.asks, travels(question)
        if "message" in answers.leaves:
            name = question.name.partition("/")[2]
            if name not in messages:
                continue
            asks, answers = (
                _of_length(layout, size) for layout, size in zip((asks, answers), messages[name], strict=True)
            )
        found = found.plus(Traffic(body_bytes(answers), body_bytes(asks) if asks.leaves else 0, 1))
    return found


def _of_length(layout: Layout, size: int) -> Layout:
    return Layout({**layout.leaves, "message": Leaf("uint8", (size,))})


def _packed(leaf: Leaf, how: Encoding) -> Leaf:
    assert leaf.shape is not None
    return Leaf("uint8", (*leaf.shape[:-1], how.bytes(leaf.shape[-1])))
