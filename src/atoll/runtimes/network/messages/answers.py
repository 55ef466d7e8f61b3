"""Answers as they travel: rows that a stage has compressed are written in its encoding, all else as a tree of arrays.

What is read was written by a stranger. Its length is known from the job before any of it is decoded, and what was
decoded is held against the same layout as numbers that were sent one by one.
"""

from __future__ import annotations

import numpy as np

from atoll.core.question import Encoding, Fault, Leaf, Question
from atoll.core.tree import Array, Tree, leaves, nest
from atoll.programs.traffic import travels
from atoll.runtimes.network.messages.trees import read_tree, write_tree


def write_answer(question: Question, tree: Tree) -> bytes:
    """Write an answer to a question."""
    found = dict(leaves(tree))
    for path, how in question.encodings.items():
        found[path] = np.stack([_written(path, how, row) for row in np.asarray(found[path])])
    return write_tree(nest(found))


def read_answer(question: Question, data: bytes) -> Tree:
    """Read what `write_answer` wrote, bit for bit, or raise a Fault."""
    layout = travels(question)
    tree = read_tree(data, layout.max_bytes, schema=layout)
    if not question.encodings:
        return tree
    found = dict(leaves(tree))
    for path, how in question.encodings.items():
        found[path] = np.stack([_read(path, how, row, question.answers.leaves[path]) for row in found[path]])
    question.answers.check_leaves(found)
    return nest(found)


def _written(path: str, how: Encoding, row: Array) -> Array:
    try:
        return np.frombuffer(how.pack(row), np.uint8)
    except ValueError as error:
        raise Fault("form", f"leaf {path!r}: {error}") from None


def _read(path: str, how: Encoding, row: Array, leaf: Leaf) -> Array:
    assert leaf.shape is not None
    try:
        return how.unpack(row.tobytes(), leaf.shape[-1])
    except ValueError as error:
        raise Fault("form", f"leaf {path!r}: {error}") from None
