"""Trees of arrays that travel between server and party, and the layouts they are held against before use.

What is read was written by a stranger: it is measured, then parsed, then checked; nothing in it is ever run.
"""

from __future__ import annotations

from math import prod
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from atoll.core.question import (
    MAX_LEAVES,
    PLAIN,
    PLAIN_BYTES,
    REST,
    TYPES,
    Fault,
    Layout,
    Placed,
    arranged,
    array_of,
    check_paths,
    refuse_if,
    walk,
)
from atoll.core.tree import Array, Tree, nest

_ABSURD = 2**48  # bytes of an array whose empty axes count as one


class _Nothing(msgspec.Struct):
    """A branch without leaves."""


_Values = Annotated[dict[str, bool | int | float | str | _Nothing | None], Meta(max_length=MAX_LEAVES)]
_tensors, _plain = msgspec.json.Decoder(dict[str, Placed]), msgspec.msgpack.Decoder(_Values)
SORTED = msgspec.msgpack.Encoder(order="sorted")
BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError)


def write_tree(tree: Tree) -> bytes:
    """Write a tree as a safetensors file, in the one way there is: equal trees give equal bytes.

    Plain values (bool, int, float, str, None) and empty branches stand in it as one more array, of msgpack bytes;
    NumPy's own scalars are written, and come back, as arrays without axes.
    """
    leaves = dict(walk(tree))
    check_paths(leaves)
    plain = {path: leaf for path, leaf in leaves.items() if type(leaf) in (*PLAIN, dict)}
    arrays = {path: array_of(path, leaf) for path, leaf in leaves.items() if path not in plain}
    if plain:
        try:
            arrays[REST] = np.frombuffer(SORTED.encode(plain), np.uint8)
        except (OverflowError, UnicodeError):
            raise Fault("form", "an int beyond 64 bits or a str of half letters cannot travel: send an array") from None
        refuse_if(
            len(arrays[REST]) > PLAIN_BYTES, "size", f"plain values of over {PLAIN_BYTES} bytes: send arrays instead"
        )
    head, starts, _ = arranged({path: (array.dtype, array.shape) for path, array in arrays.items()})
    refuse_if(len(head) > PLAIN_BYTES, "size", f"names and shapes take {len(head)} bytes: at most {PLAIN_BYTES} travel")
    return b"".join([head, *(arrays[path].reshape(-1).view(np.uint8).data for path in starts)])


def read_tree(data: bytes | memoryview, limit: int, *, schema: Layout | None = None) -> Tree:
    """Read what `write_tree` wrote, byte for byte, or raise a Fault. Arrays are views of `data` that cannot be written.

    Beside the data itself, memory is taken for names and plain values only, of which there are a few megabytes.
    """
    view = memoryview(data).cast("B")
    refuse_if(len(view) > limit, "size", f"a tree of {len(view)} bytes: at most {limit} are read")
    tensors = _tensors_of(view)
    shapes = {path: (np.dtype(TYPES[t.dtype]), t.shape) for path, t in tensors.items()}
    head, starts, size = arranged(shapes)
    refuse_if(view[: len(head)] != head, "form", "the header of the tree is not as it is written: it is damaged")
    refuse_if(len(view) != len(head) + size, "size", f"{len(view) - len(head)} bytes of arrays: there should be {size}")
    found: dict[str, Array] = {}
    for path, start in starts.items():
        dtype, shape = shapes[path]
        array = np.frombuffer(view, dtype.newbyteorder("<"), prod(shape), len(head) + start).reshape(shape)
        array.flags.writeable = False
        odd = dtype == np.bool_ and bool((array.view(np.uint8) > 1).any())
        refuse_if(odd, "form", f"leaf {path!r} has bools that are neither true nor false")
        found[path] = array
    plain = _plain_of(found.pop(REST)) if REST in found else {}
    refuse_if(bool(found.keys() & plain.keys()), "name", "two leaves of the tree have the same path")
    both: dict[str, object] = {**found, **plain}
    check_paths(both)
    if schema is not None:
        schema.check_leaves(both)
    return nest(both)


def _tensors_of(view: memoryview) -> dict[str, Placed]:
    length = int.from_bytes(view[:8], "little")
    refuse_if(length > min(PLAIN_BYTES, len(view) - 8), "size", f"a header of {length} bytes: it is longer than may be")
    try:
        tensors = _tensors.decode(view[8 : 8 + length])
    except BROKEN:
        raise Fault("form", "the header of the tree cannot be read: it is damaged, or no tree") from None
    refuse_if(len(tensors) > MAX_LEAVES, "size", f"{len(tensors)} leaves: at most {MAX_LEAVES} are read")
    for path, tensor in tensors.items():
        refuse_if(tensor.dtype not in TYPES, "dtype", f"leaf {path[:64]!r} is of an unknown type")
        bytes_ = prod(max(n, 1) for n in tensor.shape) * np.dtype(TYPES[tensor.dtype]).itemsize
        refuse_if(bytes_ > _ABSURD, "shape", f"leaf {path[:64]!r} has shape {tensor.shape}: nothing is so large")
    return tensors


def _plain_of(rest: Array) -> dict[str, object]:
    refuse_if(rest.dtype != np.uint8 or rest.ndim != 1, "form", "plain values are bytes: these are damaged")
    refuse_if(rest.size > PLAIN_BYTES, "size", f"plain values of {rest.size} bytes: at most {PLAIN_BYTES} are read")
    try:
        found = _plain.decode(rest.data)
    except BROKEN:
        raise Fault("form", "the plain values of the tree cannot be read: they are damaged") from None
    refuse_if(not found, "form", "plain values that are none: they are not written")
    refuse_if(SORTED.encode(found) != rest.data, "form", "the plain values are not as they are written: damaged")
    return {path: {} if isinstance(value, _Nothing) else value for path, value in found.items()}
