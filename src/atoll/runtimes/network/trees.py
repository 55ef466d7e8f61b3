"""Trees of arrays that travel between server and party, and the layouts they are held against before use.

What is read was written by a stranger: it is measured, then parsed, then checked; nothing in it is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, prod
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from atoll.core.tree import Array, Tree, length, nest
from atoll.core.wire import Wire

MOST_LEAVES = 10_000
MOST_WEIGHT = 1e12
MOST_NUMBER = 1e30  # of a vector: a sum of millions stays finite
_HEADER = 2**21  # bytes of names, types and shapes at most; of plain values as well
_DEEP, _LONG = 32, 256  # branches in a path, letters in a path
_ABSURD = 2**48  # bytes of an array whose empty axes count as one
_REST = "."  # the name under which plain values travel: no path is called so
_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "U32": "uint32",
    "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
}  # fmt: skip
_CODES = {name: code for code, name in _TYPES.items()}
_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", type(None): "none"}
_Axes = Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**40)], ...], Meta(max_length=32)]

Reason = Literal["size", "form", "name", "dtype", "shape", "not finite", "range", "length", "weight", "version"]


class Fault(ValueError):
    """Bytes or a tree that must not be used: `reason` in a word, and a sentence that says what to look at."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Reason = reason


def refuse_if(condition: bool, reason: Reason, sentence: str) -> None:
    """Every check has this one form, so that each can be taken out in turn to see a test fail."""
    if condition:
        raise Fault(reason, sentence)


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers from `low` to `high`, both among them; a `strict` range leaves `low` out."""

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
    """One array, by its exact type and shape (`upto`: the row may be shorter); without a shape a plain value."""

    dtype: Annotated[str, Meta(max_length=16)]
    shape: _Axes | None = None
    finite: bool = True
    range: Range | None = None
    weight: Range | None = None  # of the last number along the last axis, which is a weight
    length: float | None = None  # no row is longer
    within: Annotated[str, Meta(max_length=_LONG)] | None = None  # a leaf of which no number is exceeded
    upto: bool = False

    def __post_init__(self) -> None:
        known = _PLAIN.values() if self.shape is None else _CODES
        refuse_if(self.dtype not in known, "dtype", f"dtype={self.dtype!r}: such a leaf is one of {', '.join(known)}")
        blank = (self.weight is not None or self.length is not None) and not (self.shape and self.shape[-1])
        refuse_if(blank, "shape", f"shape={self.shape}: it has no last number for a weight, and no row for a length")
        odd = self.length is not None and not self.dtype.startswith("float")
        refuse_if(odd, "dtype", f"dtype={self.dtype!r}: only real numbers have a length")


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tree must look like: its leaves by their paths, no more and no fewer."""

    leaves: Annotated[dict[str, Leaf], Meta(max_length=MOST_LEAVES)]

    def __post_init__(self) -> None:
        _check_paths(self.leaves)
        for path, leaf in self.leaves.items():
            other = self.leaves.get(leaf.within) if leaf.within is not None else leaf
            odd = other is None or other.shape != leaf.shape or (leaf.within is not None and leaf.shape is None)
            refuse_if(odd, "shape", f"leaf {path!r} is held against {leaf.within!r}, which is no leaf of its shape")

    @classmethod
    def of(cls, tree: Tree) -> Layout:
        """Describe a tree by an example; what is real in it has to be finite."""
        plain = {path: Leaf(_PLAIN[type(leaf)]) for path, leaf in _walk(tree) if type(leaf) in _PLAIN}
        arrays = {path: _array(path, leaf) for path, leaf in _walk(tree) if path not in plain}
        return cls(plain | {path: Leaf(array.dtype.name, array.shape) for path, array in arrays.items()})

    @property
    def most_bytes(self) -> int:
        """Bytes of a tree laid out so: at most, and exactly where nothing is plain or may be shorter."""
        shapes = {k: (np.dtype(leaf.dtype), leaf.shape) for k, leaf in self.leaves.items() if leaf.shape is not None}
        plain = {_REST: (np.dtype(np.uint8), (_HEADER,))} if len(shapes) < len(self.leaves) else {}
        head, _, size = _arranged({**shapes, **plain})
        return len(head) + size

    def check(self, tree: Tree) -> None:
        """Raise a Fault unless the tree is laid out so."""
        self.check_leaves(dict(_walk(tree)))

    def check_leaves(self, found: Mapping[str, Any]) -> None:
        """Check leaves that are already by their paths."""
        more, missing = sorted(found.keys() - self.leaves.keys()), sorted(self.leaves.keys() - found.keys())
        refuse_if(bool(more), "name", f"{more[:1]}: no leaf of the layout is called so")
        refuse_if(bool(missing), "name", f"{missing[:1]}: this leaf is missing")
        for path, leaf in self.leaves.items():
            if leaf.shape is None:
                _check_plain(path, found[path], leaf)
            else:
                _check_array(path, _array(path, found[path]), leaf)
        for path, leaf in self.leaves.items():
            over = leaf.within is not None and bool(np.any(found[path] > found[leaf.within]))
            refuse_if(over, "range", f"leaf {path!r} has numbers above those of {leaf.within!r}")


def answer_layout(wire: Wire) -> Layout:
    """What one party's answer to "contribute" looks like where this is its wire."""
    real = wire.ring is None
    # In a ring any integer may be a masked one, and noise of a party's own may carry its weight anywhere.
    visible = wire.weighted and real and not any(event.where == "local" for event in wire.noise)
    weight = Range(0.0, MOST_WEIGHT, strict=True) if visible else None
    span = Range(-MOST_NUMBER, MOST_NUMBER) if real else None
    # A wire says how long a vector is at most: who sends a longer one has not clipped it.
    length = wire.l2 if real else None
    vector = Leaf(wire.dtype, (1, wire.size), finite=real, range=span, weight=weight, length=length)
    return Layout({"finite": Leaf("bool", (1,)), "vector": vector})


def figures_layout(told: Tree) -> Layout:
    """What a party's evaluation looks like, by an example: sums over samples, of which none was counted below zero."""
    leaves = Layout.of(told).leaves
    counted, count = ("n", "correct", "squares", "yy"), Range(0.0, MOST_WEIGHT)
    return Layout({
        name: msgspec.structs.replace(
            leaf, range=count if name in counted else None, within="n" if name == "correct" else None
        )
        for name, leaf in leaves.items()
    })  # fmt: skip


def message_layout(most: int) -> Layout:
    """What one message of a protocol looks like: bytes, at most so many."""
    return Layout({"message": Leaf("uint8", (most,), upto=True)})


def _check_plain(path: str, value: Any, leaf: Leaf) -> None:
    kind = _PLAIN.get(type(value), "array")
    refuse_if(kind != leaf.dtype, "dtype", f"leaf {path!r} is of type {kind}, not {leaf.dtype}")
    if kind in ("int", "float"):
        refuse_if(leaf.finite and not isfinite(value), "not finite", f"leaf {path!r} is {value}, which is not finite")
        inside = leaf.range is None or leaf.range.holds(np.asarray(value))
        refuse_if(not inside, "range", f"leaf {path!r} is {value}: it is {leaf.range}")


def _check_array(path: str, array: Array, leaf: Leaf) -> None:
    refuse_if(array.dtype.name != leaf.dtype, "dtype", f"leaf {path!r} is of {array.dtype}, not {leaf.dtype}")
    shorter = leaf.upto and array.ndim == len(leaf.shape or ()) == 1 and array.shape <= (leaf.shape or ())
    refuse_if(
        array.shape != leaf.shape and not shorter, "shape", f"leaf {path!r} has shape {array.shape}, not {leaf.shape}"
    )
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
        refuse_if(
            longest > leaf.length * (1 + 1e-5),
            "length",
            f"leaf {path!r} is {longest:g} long, and at most {leaf.length:g} by the job: it was not clipped",
        )


def _ends(numbers: Array) -> tuple[Any, Any]:
    """The least and the greatest number; both are NaN if one is. No mask as long as the array is made."""
    flat = numbers.reshape(-1).view(np.float32 if numbers.dtype == np.complex64 else numbers.dtype)
    with np.errstate(invalid="ignore"):
        return flat.min(), flat.max()


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """Where an array stands, in the words of the safetensors format."""

    dtype: str
    shape: _Axes
    data_offsets: tuple[int, int]


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A branch without leaves."""


_Values = Annotated[dict[str, bool | int | float | str | _Nothing | None], Meta(max_length=MOST_LEAVES)]
_tensors, _plain = msgspec.json.Decoder(dict[str, _Tensor]), msgspec.msgpack.Decoder(_Values)
SORTED = msgspec.msgpack.Encoder(order="sorted")
BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError)


def write_tree(tree: Tree) -> bytes:
    """Write a tree as a safetensors file, in the one way there is: equal trees give equal bytes.

    Plain values (bool, int, float, str, None) and empty branches stand in it as one more array, of msgpack bytes;
    NumPy's own scalars are written, and come back, as arrays without axes.
    """
    leaves = dict(_walk(tree))
    _check_paths(leaves)
    plain = {path: leaf for path, leaf in leaves.items() if type(leaf) in (*_PLAIN, dict)}
    arrays = {path: _array(path, leaf) for path, leaf in leaves.items() if path not in plain}
    if plain:
        try:
            arrays[_REST] = np.frombuffer(SORTED.encode(plain), np.uint8)
        except (OverflowError, UnicodeError):
            raise Fault("form", "an int beyond 64 bits or a str of half letters cannot travel: send an array") from None
        refuse_if(len(arrays[_REST]) > _HEADER, "size", f"plain values of over {_HEADER} bytes: send arrays instead")
    head, starts, _ = _arranged({path: (array.dtype, array.shape) for path, array in arrays.items()})
    refuse_if(len(head) > _HEADER, "size", f"names and shapes take {len(head)} bytes: at most {_HEADER} travel")
    parts: list[Any] = [head, *(arrays[path].reshape(-1).view(np.uint8) for path in starts)]
    return b"".join(parts)


def read_tree(data: bytes | memoryview, limit: int, *, schema: Layout | None = None) -> dict[str, Any]:
    """Read what `write_tree` wrote, byte for byte, or raise a Fault. Arrays are views of `data` that cannot be written.

    Beside the data itself, memory is taken for names and plain values only, of which there are a few megabytes.
    """
    view = memoryview(data).cast("B")
    refuse_if(len(view) > limit, "size", f"a tree of {len(view)} bytes: at most {limit} are read")
    tensors = _tensors_of(view)
    shapes = {path: (np.dtype(_TYPES[t.dtype]), t.shape) for path, t in tensors.items()}
    head, starts, size = _arranged(shapes)
    refuse_if(view[: len(head)] != head, "form", "the header of the tree is not as it is written: it is damaged")
    refuse_if(len(view) != len(head) + size, "size", f"{len(view) - len(head)} bytes of arrays: there should be {size}")
    found: dict[str, Any] = {}
    for path, start in starts.items():
        dtype, shape = shapes[path]
        array = np.frombuffer(view, dtype.newbyteorder("<"), prod(shape), len(head) + start).reshape(shape)
        array.flags.writeable = False
        odd = dtype == np.bool_ and bool((array.view(np.uint8) > 1).any())
        refuse_if(odd, "form", f"leaf {path!r} has bools that are neither true nor false")
        found[path] = array
    plain = _plain_of(found.pop(_REST)) if _REST in found else {}
    refuse_if(bool(found.keys() & plain.keys()), "name", "two leaves of the tree have the same path")
    found |= plain
    _check_paths(found)
    if schema is not None:
        schema.check_leaves(found)
    return nest(found)


def _tensors_of(view: memoryview) -> dict[str, _Tensor]:
    length = int.from_bytes(view[:8], "little")
    refuse_if(length > min(_HEADER, len(view) - 8), "size", f"a header of {length} bytes: it is longer than may be")
    try:
        tensors = _tensors.decode(view[8 : 8 + length])
    except BROKEN:
        raise Fault("form", "the header of the tree cannot be read: it is damaged, or no tree") from None
    refuse_if(len(tensors) > MOST_LEAVES, "size", f"{len(tensors)} leaves: at most {MOST_LEAVES} are read")
    for path, tensor in tensors.items():
        refuse_if(tensor.dtype not in _TYPES, "dtype", f"leaf {path[:64]!r} is of an unknown type")
        bytes_ = prod(max(n, 1) for n in tensor.shape) * np.dtype(_TYPES[tensor.dtype]).itemsize
        refuse_if(bytes_ > _ABSURD, "shape", f"leaf {path[:64]!r} has shape {tensor.shape}: nothing is so large")
    return tensors


def _plain_of(rest: Array) -> dict[str, Any]:
    refuse_if(rest.dtype != np.uint8 or rest.ndim != 1, "form", "plain values are bytes: these are damaged")
    refuse_if(rest.size > _HEADER, "size", f"plain values of {rest.size} bytes: at most {_HEADER} are read")
    try:
        found = _plain.decode(rest.data)
    except BROKEN:
        raise Fault("form", "the plain values of the tree cannot be read: they are damaged") from None
    refuse_if(not found, "form", "plain values that are none: they are not written")
    refuse_if(SORTED.encode(found) != rest.data, "form", "the plain values are not as they are written: damaged")
    return {path: {} if isinstance(value, _Nothing) else value for path, value in found.items()}


def _arranged(shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> tuple[bytes, dict[str, int], int]:
    """The one header for arrays of these names, types and shapes, where after it each starts, and where all end."""
    at, tensors = 0, dict[str, _Tensor]()
    # Wide numbers first, so that each array starts at a multiple of its own width.
    for path in sorted(shapes, key=lambda path: (-shapes[path][0].itemsize, path)):
        dtype, shape = shapes[path]
        end = at + prod(shape) * dtype.itemsize
        tensors[path] = _Tensor(_CODES[dtype.name], shape, (at, end))
        at = end
    text = msgspec.json.encode(tensors)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, {path: t.data_offsets[0] for path, t in tensors.items()}, at


def _walk(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf); a branch without leaves is a leaf itself."""
    refuse_if(prefix.count("/") > _DEEP, "name", f"a tree of over {_DEEP} branches in each other: make it flatter")
    for name, value in tree.items():
        refuse_if(not isinstance(name, str) or "/" in name, "name", f"{name!r}: a name is a str without '/'")
        if isinstance(value, Mapping) and value:
            yield from _walk(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", {} if isinstance(value, Mapping) else value


def _check_paths(paths: Mapping[str, Any]) -> None:
    """Refuse names that look like places on a disk or garble a screen, and leaves that are branches too."""
    refuse_if(len(paths) > MOST_LEAVES, "size", f"{len(paths)} leaves: a tree has at most {MOST_LEAVES}")
    branches = set[str]()
    for path in paths:
        names = path.split("/")
        odd = any(name in ("", ".", "..") or name.endswith(":") for name in names) or "\\" in path
        refuse_if(odd or not path.isprintable(), "name", f"leaf {path[:64]!r}: this is no name for a leaf")
        refuse_if(len(path) > _LONG or len(names) > _DEEP, "name", f"leaf {path[:64]!r}: its path is too long")
        branches |= {path[:k] for k, letter in enumerate(path) if letter == "/"}
    both = sorted(branches.intersection(paths))
    refuse_if(bool(both), "name", f"{both[:1]} is a leaf and a branch at once")


def _array(path: str, leaf: Any) -> Array:
    kind = type(leaf).__name__
    refuse_if(not hasattr(leaf, "__array__"), "dtype", f"leaf {path!r} is a {kind}: arrays and plain values travel")
    array = np.asarray(leaf, order="C")
    refuse_if(array.dtype.name not in _CODES, "dtype", f"leaf {path!r} is of {array.dtype}, which does not travel")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
