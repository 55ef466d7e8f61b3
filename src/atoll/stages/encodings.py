"""How compressed rows are written as bytes, and what all stages that compress have in common.

What is read was written by a stranger: it is checked before use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from atoll.core.question import Encoding
from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Mismatch, StageMemory, Wire, as_was

BLOCK = 1 << 14  # numbers; those of a block fill whole bytes, whatever their width
Address = tuple[object, ...]
Change = Callable[[Array, EncodeContext | DecodeContext], Array]


@dataclass(frozen=True)
class Plain:
    """The numbers themselves, little-endian."""

    dtype: str

    def pack(self, row: Array) -> bytes:
        return np.asarray(row, np.dtype(self.dtype).newbyteorder("<")).tobytes()

    def unpack(self, packed: bytes, size: int) -> Array:
        _fits(packed, self.bytes(size))
        row = np.frombuffer(packed, np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype)
        if not np.isfinite(row).all():
            raise ValueError("a number that is not finite was sent: what was compressed never has one")
        return row

    def bytes(self, size: int) -> int:
        return size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class WithTail:
    """A row whose last numbers (its weight) are written plainly, the rest in the given form."""

    encoding: Encoding
    dtype: str
    tail: int = 1

    def pack(self, row: Array) -> bytes:
        return self.encoding.pack(row[: -self.tail]) + Plain(self.dtype).pack(row[-self.tail :])

    def unpack(self, packed: bytes, size: int) -> Array:
        _fits(packed, self.bytes(size))
        cut = self.encoding.bytes(size - self.tail)
        rest = self.encoding.unpack(packed[:cut], size - self.tail)
        return np.concatenate([rest, Plain(self.dtype).unpack(packed[cut:], self.tail)])

    def bytes(self, size: int) -> int:
        return self.encoding.bytes(size - self.tail) + Plain(self.dtype).bytes(self.tail)


@dataclass(frozen=True)
class SparseEncoding:
    """At most k numbers that are not zero: their values in a form of their own, then their positions.

    Positions rise, so they are written as Elias and Fano do: the low bits as they are, the high bits as steps, about
    2 + log2(size / k) bits each and never more; or as a map of all numbers, where that is shorter.
    """

    k: int
    values: Encoding

    def pack(self, row: Array) -> bytes:
        at = np.flatnonzero(row)
        if len(at) > self.k:
            raise ValueError(f"{len(at)} numbers are not zero, where at most {self.k} are: encode the row first")
        if len(at) < self.k:  # the size tells nothing of the row: zeros fill up
            at = np.sort(np.concatenate([at, np.flatnonzero(row == 0)[: self.k - len(at)]]))
        return self.values.pack(row[at]) + _pack_positions(at, len(row))

    def unpack(self, packed: bytes, size: int) -> Array:
        _fits(packed, self.bytes(size))
        cut = self.values.bytes(self.k)
        values = self.values.unpack(packed[:cut], self.k)
        row = np.zeros(size, values.dtype)
        row[_unpack_positions(packed[cut:], self.k, size)] = values
        return row

    def bytes(self, size: int) -> int:
        return self.values.bytes(self.k) + (_position_bits(self.k, size)[1] + 7) // 8


@dataclass(frozen=True)
class Levels:
    """Whole multiples of one step, at most 2^(bits−1) − 1 of it to either side: the step, then the multiples."""

    bits: int
    dtype: str

    @property
    def top(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    def pack(self, row: Array) -> bytes:
        # The step is not beside the row, but the greatest common divisor of its numbers is a step as good.
        digits = np.finfo(self.dtype).nmant + 1
        _, exponent = np.frexp(np.abs(row).max())
        whole = np.ldexp(row.astype(np.float64), digits - exponent).astype(np.int64)
        divisor = int(np.gcd.reduce(whole))
        levels = whole // max(divisor, 1)
        step = np.ldexp(float(divisor), int(exponent) - digits)
        if np.abs(levels).max() > self.top or not np.array_equal(levels * step, row):
            raise ValueError(f"the row is not {self.bits}-bit multiples of one step: encode it first")
        return Plain(self.dtype).pack(np.array([step])) + _pack_numbers(levels + self.top, self.bits)

    def unpack(self, packed: bytes, size: int) -> Array:
        _fits(packed, self.bytes(size))
        cut = np.dtype(self.dtype).itemsize
        step = _scale(packed[:cut], self.dtype)
        levels = _unpack_numbers(packed[cut:], size, self.bits) - self.top
        if (levels > self.top).any():
            raise ValueError(f"a level beyond {self.top} was sent: no such level is ever written")
        if step[0] > np.finfo(self.dtype).max / max(np.abs(levels).max(), 1):
            raise ValueError(f"a step of {step[0]:.3g} was sent, of which multiples are not finite: it is damaged")
        exact = levels * step.astype(np.float64)
        row: Array = exact.astype(self.dtype)
        if not np.array_equal(row, exact):
            raise ValueError(
                f"a step of {step[0]:.3g} was sent, of which multiples are rounded: no such step is written"
            )
        return row

    def bytes(self, size: int) -> int:
        return np.dtype(self.dtype).itemsize + (size * self.bits + 7) // 8


@dataclass(frozen=True)
class Signs:
    """One size for all numbers, then a bit each: set where it is below zero."""

    dtype: str

    def pack(self, row: Array) -> bytes:
        scale = np.abs(row[:1])
        if not (np.abs(row) == scale).all():
            raise ValueError("the row is not signs of one size: encode it first")
        return Plain(self.dtype).pack(scale) + _pack_bits(row < 0)

    def unpack(self, packed: bytes, size: int) -> Array:
        _fits(packed, self.bytes(size))
        cut = np.dtype(self.dtype).itemsize
        scale = _scale(packed[:cut], self.dtype)
        below = _unpack_bits(packed[cut:], size)
        return np.where(below, -scale, scale) + np.zeros(1, self.dtype)  # no minus zero

    def bytes(self, size: int) -> int:
        return np.dtype(self.dtype).itemsize + (size + 7) // 8


def _fits(packed: bytes, size: int) -> None:
    if len(packed) != size:
        raise ValueError(f"{len(packed)} bytes were sent where {size} are written: the vector is of another job")


def _scale(packed: bytes, dtype: str) -> Array:
    scale = Plain(dtype).unpack(packed, 1)
    if np.signbit(scale[0]):
        raise ValueError(f"a scale of {scale[0]:.3g} was sent: a scale is zero or above")
    return scale


def _bits_of(numbers: Array, width: int) -> Array:
    """Write whole numbers in binary, lowest bit first, one after the other."""
    return ((numbers[:, None] >> np.arange(width)) & 1).astype(bool).reshape(-1)


def _numbers(bits: Array, width: int) -> Array:
    return bits.reshape(-1, width) @ (1 << np.arange(width))


def _pack_numbers(numbers: Array, width: int) -> bytes:
    """Write many in blocks: their bits, one by one, would take many times the memory of the numbers."""
    blocks = (numbers[start : start + BLOCK] for start in range(0, len(numbers), BLOCK))
    return b"".join(_pack_bits(_bits_of(block, width)) for block in blocks)


def _unpack_numbers(packed: bytes, count: int, width: int) -> Array:
    found = np.empty(count, np.int64)
    for start in range(0, count, BLOCK):
        block, at = found[start : start + BLOCK], start * width // 8
        bits = len(block) * width
        block[:] = _numbers(_unpack_bits(packed[at : at + (bits + 7) // 8], bits), width)
    return found


def _pack_bits(bits: Array) -> bytes:
    return np.packbits(bits).tobytes()


def _unpack_bits(packed: bytes, count: int) -> Array:
    bits = np.unpackbits(np.frombuffer(packed, np.uint8)).astype(bool)
    if bits[count:].any():
        raise ValueError("bits were sent behind the last number: a row is written in one way only")
    return bits[:count]


@lru_cache(maxsize=256)
def _position_bits(k: int, size: int) -> tuple[int | None, int]:
    """Choose how many low bits of a position are written as they are (None: a map of all), and count the bits."""
    split = min((k * low + k + ((size - 1) >> low), low) for low in range(size.bit_length()))
    return (split[1], split[0]) if split[0] < size else (None, size)


def _pack_positions(at: Array, size: int) -> bytes:
    low, count = _position_bits(len(at), size)
    bits = np.zeros(count, bool)
    if low is None:
        bits[at] = True
    else:
        steps = count - len(at) * low
        bits[(at >> low) + np.arange(len(at))] = True
        bits[steps:] = _bits_of(at & ((1 << low) - 1), low)
    return _pack_bits(bits)


def _unpack_positions(packed: bytes, k: int, size: int) -> Array:
    low, count = _position_bits(k, size)
    bits = _unpack_bits(packed, count)
    steps = count if low is None else count - k * low
    at = np.flatnonzero(bits[:steps])
    if len(at) != k:
        raise ValueError(f"{len(at)} positions were sent where {k} are written: the vector is damaged")
    if low:
        at = ((at - np.arange(k)) << low) | _numbers(bits[steps:], low)
    elif low == 0:
        at = at - np.arange(k)
    if (np.diff(at) <= 0).any() or at[-1] >= size:
        raise ValueError(f"positions were sent that do not rise, or reach beyond {size:,}: the vector is damaged")
    return at


def real(wire: Wire, name: str, *, writes: bool = False) -> None:
    """Refuse integers, and what is written in few bytes already; `writes`: this stage would do so too."""
    wire.need_real(name)
    if wire.row.encoding is not None and writes:
        raise Mismatch(f"{name} after a stage that writes numbers its own way: keep one, or TopK() and Quantise()")
    wire.need_unwritten(name, "undo what that one wrote")


def steady(wire: Wire, name: str) -> None:
    """Refuse to remember numbers that may mean something else in the next round."""
    if not wire.row.shapes:
        raise Mismatch(
            f"{name} adds what it left out to the next round's vector, whose numbers must mean the same then: "
            "put it before RandomK(), Rotate() or LowRank(), or use feedback=False"
        )


def written(wire: Wire, encoding: Encoding) -> Wire:
    """Write a vector in this form, and what stands beside it as it is."""
    beside = WithTail(encoding, wire.row.dtype, wire.tail) if wire.tail else encoding
    return replace(wire, row=replace(wire.row, encoding=beside))


def common(purpose: str, about: EncodeContext | DecodeContext) -> Address:
    """Address randomness that all parties and the server share: it need not be secret, only the same for all."""
    return (about.world.seed, purpose, about.t)


def finite(x: Array) -> Array:
    """Put zero where a number is not finite, so that it spoils neither the rest of the row nor the memory."""
    good = np.isfinite(x)
    return x if good.all() else np.where(good, x, x.dtype.type(0))


def compressing(wire: Wire, feedback: bool, change: Change, back: Change | None = None, scale: float = 1.0) -> Codec:
    """Make a codec that changes rows but for their tail, and remembers what was lost if there is feedback.

    `back` makes whole rows again of what `change` gives, or of a sum of it; None: they are whole. `scale` is what the
    server multiplies with. Error feedback is that of Karimireddy et al. 2019.
    """
    end = wire.tail

    def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
        with np.errstate(over="ignore", invalid="ignore"):
            y = finite(x[:, : wire.row.size - end])
            if feedback and "left" in memory:
                y = finite(y + memory["left"])
            out = change(y, about)
            left = finite(y - (back(out, about) if back else out))
            lost = finite(_length(left) / np.maximum(_length(y), np.finfo(np.float64).tiny))
        rows = np.concatenate([out, x[:, wire.row.size - end :]], axis=1) if end else out
        return Coded(rows, {"left": left} if feedback else {}, {"error_share": lost})

    def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
        assert back is not None
        whole = back(x[None, : len(x) - end], context)[0] * x.dtype.type(scale)
        return Coded(np.concatenate([whole, x[len(x) - end :]]) if end else whole, memory)

    return Codec(encode, decode if back else as_was, remembers=feedback)


def _length(rows: Array) -> Array:
    return np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
