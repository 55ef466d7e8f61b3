"""What may be asked of a party, and what question and answer look like: declared once, used for everything.

Layouts on the network, limits of size, consent, the audit log, "who sees what" and byte counts all follow from these
declarations. What is held against a layout was written by a stranger: it is measured and checked, never run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, prod
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import Meta

from atoll.core.errors import AtollError
from atoll.core.tree import EMPTY, Array, Tree, length

MAX_LEAVES = 10_000
PLAIN_BYTES = 2**21  # of names, types and shapes at most; of plain values as well
_DEEP, _LONG = 32, 256  # branches in a path, letters in a path
TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "U32": "uint32",
    "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
}  # fmt: skip
CODES = {name: code for code, name in TYPES.items()}
PLAIN = {bool: "bool", int: "int", float: "float", str: "str", type(None): "none"}
Axes = Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**40)], ...], Meta(max_length=32)]

REST = "."  # the name under which plain values travel: no path is called so

Reason = Literal["size", "form", "name", "dtype", "shape", "not finite", "range", "length", "weight", "version"]


class Fault(AtollError, ValueError):
    """Bytes or a tree that must not be used: `reason` in a word, and a sentence that says what to look at."""

    code = "fault"

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Reason = reason


def refuse_if(condition: bool, reason: Reason, sentence: str) -> None:
    """Raise a Fault on a condition. Every check has this one form, so that each can be removed to see a test fail.

    Args:
        condition: whether to refuse.
        reason: the reason in a word.
        sentence: what to look at.
    """
    if condition:
        raise Fault(reason, sentence)


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of numbers, with both ends.

    Args:
        low: the smallest number.
        high: the largest number.
        strict: whether `low` itself is left out. Default false.
    """

    low: float
    high: float
    strict: bool = False

    def __str__(self) -> str:
        return f"{'above' if self.strict else 'at least'} {self.low:g} and at most {self.high:g}"

    def holds(self, numbers: Array) -> bool:
        """Whether all numbers are inside; what is not a number never is."""
        low, high = _ends(numbers) if numbers.size else (self.high, self.high)
        return bool((low > self.low if self.strict else low >= self.low) and high <= self.high)


class Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array by its exact type and shape, or a plain value.

    Args:
        dtype: name of the type, such as "float32"; of a plain value "bool", "int", "float", "str" or "none".
        shape: the exact shape. Default: a plain value.
        finite: whether all numbers must be finite. Default true.
        range: what all numbers are within. Default: no limit.
        weight: what the last number along the last axis, a weight, is within. Default: it is no weight.
        length: the largest L2 norm of a row. Default: no norm bound.
        within: another leaf of the same shape whose numbers are not exceeded, each by each. Default: none.
        upto: whether an array of one axis may be shorter than `shape`. Default false.
    """

    dtype: str
    shape: Axes | None = None
    finite: bool = True
    range: Range | None = None
    weight: Range | None = None
    length: float | None = None
    within: str | None = None
    upto: bool = False

    def __post_init__(self) -> None:
        known = PLAIN.values() if self.shape is None else CODES
        refuse_if(self.dtype not in known, "dtype", f"dtype={self.dtype!r}: such a leaf is one of {', '.join(known)}")
        blank = (self.weight is not None or self.length is not None) and not (self.shape and self.shape[-1])
        refuse_if(blank, "shape", f"shape={self.shape}: it has no last number for a weight, and no row for a length")
        odd = self.length is not None and not self.dtype.startswith("float")
        refuse_if(odd, "dtype", f"dtype={self.dtype!r}: only real numbers have a length")


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tree must look like: its leaves by their paths, no more and no fewer.

    Args:
        leaves: each leaf by its path, such as "broadcast/params".
    """

    leaves: dict[str, Leaf]

    def __post_init__(self) -> None:
        check_paths(self.leaves)
        for path, leaf in self.leaves.items():
            other = self.leaves.get(leaf.within) if leaf.within is not None else leaf
            odd = other is None or other.shape != leaf.shape or (leaf.within is not None and leaf.shape is None)
            refuse_if(odd, "shape", f"leaf {path!r} is held against {leaf.within!r}, which is no leaf of its shape")

    @classmethod
    def of(cls, tree: Tree) -> Layout:
        """Describe a tree by an example; what is real in it has to be finite."""
        plain = {path: Leaf(PLAIN[type(leaf)]) for path, leaf in walk(tree) if type(leaf) in PLAIN}
        arrays = {path: array_of(path, leaf) for path, leaf in walk(tree) if path not in plain}
        return cls(plain | {path: Leaf(array.dtype.name, array.shape) for path, array in arrays.items()})

    @property
    def max_bytes(self) -> int:
        """Bytes of a tree laid out so: at most, and exactly where nothing is plain or may be shorter."""
        shapes = {k: (np.dtype(leaf.dtype), leaf.shape) for k, leaf in self.leaves.items() if leaf.shape is not None}
        plain = {REST: (np.dtype(np.uint8), (PLAIN_BYTES,))} if len(shapes) < len(self.leaves) else {}
        head, _, size = arranged({**shapes, **plain})
        return len(head) + size

    def check(self, tree: Tree) -> None:
        """Raise a Fault unless the tree is laid out so."""
        self.check_leaves(dict(walk(tree)))

    def check_leaves(self, found: Tree) -> None:
        """Check leaves that are already by their paths."""
        more, missing = sorted(found.keys() - self.leaves.keys()), sorted(self.leaves.keys() - found.keys())
        refuse_if(bool(more), "name", f"{more[:1]}: no leaf of the layout is called so")
        refuse_if(bool(missing), "name", f"{missing[:1]}: this leaf is missing")
        for path, leaf in self.leaves.items():
            if leaf.shape is None:
                _check_plain(path, found[path], leaf)
            else:
                _check_array(path, array_of(path, found[path]), leaf)
        for path, leaf in self.leaves.items():
            over = leaf.within is not None and bool(np.any(found[path] > found[leaf.within]))
            refuse_if(over, "range", f"leaf {path!r} has numbers above those of {leaf.within!r}")


Packed = bytes  # by another name: an encoding has a method of that one


class Encoding(Protocol):
    """How one row is written as bytes, and read back bit for bit. What cannot be read raises a ValueError."""

    def bytes(self, size: int) -> int: ...
    def pack(self, row: Array) -> Packed: ...
    def unpack(self, packed: Packed, size: int) -> Array: ...


Exposure = Literal["nothing", "sealed", "masked", "noised", "plain"]


class Origin(NamedTuple):
    """Where a sealed leaf comes from.

    Args:
        role: the role that sealed it.
        question: the question in whose answer it was sealed.
        leaf: its name in that answer.
    """

    role: str
    question: str
    leaf: str


class Question(NamedTuple):
    """One question that may be asked: who is asked, what travels, who learns what of it.

    Args:
        name: the name of the question.
        asks: the layout of the question.
        answers: the layout of the answer.
        roles: who may be asked. Default "party".
        reveals: by role, what it learns, in words. Default: nothing.
        exposure: in which form a party's data leaves it: "nothing" of it, "sealed" (encrypted for somebody who is not
            the server), "masked" (one part of a hidden sum), "noised" (with noise of the party's own) or "plain".
            Default "plain".
        contributes: whether the answer holds something computed from private data. Default false.
        seals: for a leaf of the answer, the only role that can open it. Default: none is sealed.
        opens: for a leaf of the question, where it was sealed. Default: none was.
        times: how often it is asked in a round, at most. Default 1.
        encodings: for a leaf of the answer, how its rows are written. Default: number by number.
    """

    name: str
    asks: Layout
    answers: Layout
    roles: tuple[str, ...] = ("party",)
    reveals: Mapping[str, str] = EMPTY
    exposure: Exposure = "plain"
    contributes: bool = False
    seals: Mapping[str, str] = EMPTY
    opens: Mapping[str, Origin] = EMPTY
    times: int = 1
    encodings: Mapping[str, Encoding] = EMPTY


def _check_plain(path: str, value: object, leaf: Leaf) -> None:
    kind = PLAIN.get(type(value), "array")
    refuse_if(kind != leaf.dtype, "dtype", f"leaf {path!r} is of type {kind}, not {leaf.dtype}")
    if isinstance(value, int | float) and kind != "bool":
        refuse_if(leaf.finite and not isfinite(value), "not finite", f"leaf {path!r} is {value}, which is not finite")
        inside = leaf.range is None or leaf.range.holds(np.asarray(value))
        refuse_if(not inside, "range", f"leaf {path!r} is {value}: it is {leaf.range}")


def _check_array(path: str, array: Array, leaf: Leaf) -> None:
    refuse_if(array.dtype.name != leaf.dtype, "dtype", f"leaf {path!r} is of {array.dtype}, not {leaf.dtype}")
    shorter = leaf.upto and array.ndim == len(leaf.shape or ()) == 1 and array.shape <= (leaf.shape or ())
    other = array.shape != leaf.shape and not shorter
    refuse_if(other, "shape", f"leaf {path!r} has shape {array.shape}, not {leaf.shape}")
    if leaf.weight is not None:
        last = array[..., -1]
        some, held = last.flat[:3].tolist(), leaf.weight.holds(last)
        refuse_if(not held, "weight", f"leaf {path!r} has weights {some}: one is {leaf.weight}")
    bad = leaf.finite and array.dtype.kind in "fc" and array.size > 0 and not np.isfinite(_ends(array)).all()
    refuse_if(bad, "not finite", f"leaf {path!r} has numbers that are not finite")
    inside = leaf.range is None or leaf.range.holds(array)
    refuse_if(not inside, "range", f"leaf {path!r} has other numbers than {leaf.range}")
    if leaf.length is not None and array.size:
        longest = max(map(length, array.reshape(-1, array.shape[-1])))
        # What was clipped in another order of adding may be longer by a rounding.
        said = f"leaf {path!r} is {longest:g} long, and at most {leaf.length:g} by the job: it was not clipped"
        refuse_if(longest > leaf.length * (1 + 1e-5), "length", said)


def _ends(numbers: Array) -> tuple[float, float]:
    """The least and the greatest number; both are NaN if one is. No mask as long as the array is made."""
    flat = numbers.reshape(-1).view(np.float32 if numbers.dtype == np.complex64 else numbers.dtype)
    with np.errstate(invalid="ignore"):
        return flat.min(), flat.max()


class Placed(msgspec.Struct):
    """Where an array stands, in the words of the safetensors format.

    Args:
        dtype: code of the type, such as "F32".
        shape: its shape.
        data_offsets: its first byte after the header, and the first byte behind it.
    """

    dtype: str
    shape: Axes
    data_offsets: tuple[int, int]


def arranged(shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> tuple[bytes, dict[str, int], int]:
    """Return the one header for arrays of these names, types and shapes, where after it each starts, and where all end.

    Args:
        shapes: type and shape of each array by its path.
    """
    at, tensors = 0, dict[str, Placed]()
    # Wide numbers first, so that each array starts at a multiple of its own width.
    for path in sorted(shapes, key=lambda path: (-shapes[path][0].itemsize, path)):
        dtype, shape = shapes[path]
        end = at + prod(shape) * dtype.itemsize
        tensors[path] = Placed(CODES[dtype.name], shape, (at, end))
        at = end
    text = msgspec.json.encode(tensors)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, {path: t.data_offsets[0] for path, t in tensors.items()}, at


def walk(tree: Tree, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (path, leaf); a branch without leaves is a leaf itself.

    Args:
        tree: the tree.
        prefix: what every path starts with. Default: nothing.
    """
    refuse_if(prefix.count("/") > _DEEP, "name", f"a tree of over {_DEEP} branches in each other: make it flatter")
    for name, value in tree.items():
        refuse_if(not isinstance(name, str) or "/" in name, "name", f"{name!r}: a name is a str without '/'")
        if isinstance(value, Mapping) and value:
            yield from walk(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", {} if isinstance(value, Mapping) else value


def check_paths(paths: Mapping[str, object]) -> None:
    """Refuse names that look like places on a disk or garble a screen, and leaves that are branches too.

    Args:
        paths: the leaves by their paths.
    """
    refuse_if(len(paths) > MAX_LEAVES, "size", f"{len(paths)} leaves: a tree has at most {MAX_LEAVES}")
    branches = set[str]()
    for path in paths:
        names = path.split("/")
        odd = any(name in ("", ".", "..") or name.endswith(":") for name in names) or "\\" in path
        refuse_if(odd or not path.isprintable(), "name", f"leaf {path[:64]!r}: this is no name for a leaf")
        refuse_if(len(path) > _LONG or len(names) > _DEEP, "name", f"leaf {path[:64]!r}: its path is too long")
        branches |= {path[:k] for k, letter in enumerate(path) if letter == "/"}
    both = sorted(branches.intersection(paths))
    refuse_if(bool(both), "name", f"{both[:1]} is a leaf and a branch at once")


def array_of(path: str, leaf: object) -> Array:
    """Return a leaf as an array in little-endian order; refuse what is no array, or of a type that does not travel.

    Args:
        path: the path of the leaf, for the message.
        leaf: the value.
    """
    kind = type(leaf).__name__
    refuse_if(not hasattr(leaf, "__array__"), "dtype", f"leaf {path!r} is a {kind}: arrays and plain values travel")
    array = np.asarray(leaf, order="C")
    refuse_if(array.dtype.name not in CODES, "dtype", f"leaf {path!r} is of {array.dtype}, which does not travel")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
