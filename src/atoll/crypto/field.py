"""Exact arithmetic on arrays of a prime field, and the Lagrange code on it: any `u` of `n` shares give the parts back.

Elements are `uint32` below p. The prime is 2^31 - 1 unless a smaller one is given (to count every case of a proof).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from atoll.crypto.mask import CHUNK, ZEROS

P = 2**31 - 1
Elements = npt.NDArray[np.uint32]
# A product is made of tiles of 16 × 128 × 128, too small for the library below to wake other threads for: on a
# machine that is busy those cost many times what they save.
_ROWS, _COLUMNS = 16, 128
_TERMS = 128  # of a float64 sum that is still exact: 2^46 each (see matmul)


def _fold(x: npt.NDArray[np.int64], spare: npt.NDArray[np.int64], p: int) -> None:
    """Bring |x| < 2^62 closer to the field in its place; for small fields all the way. `spare` is work space."""
    if p == P:  # 2^31 is 1 in this field: the high bits are added to the low ones, for negative numbers too
        np.right_shift(x, 31, out=spare)
        x &= P
        x += spare
    else:
        x %= p


def _reduce(x: npt.NDArray[np.int64], p: int) -> Elements:
    """Give the elements that -2^61 < x < 2^62 stand for; x is used up."""
    spare = np.empty_like(x)
    _fold(x, spare, p)
    if p == P:
        x += p  # above zero now, and below 3 * 2^31
        _fold(x, spare, p)
    small = x.astype(np.uint32)  # at most p + 2
    return np.minimum(small, small - np.uint32(p))  # below p the difference wraps and is the larger one


def add(a: Elements, b: Elements, p: int = P) -> Elements:
    """Sum in the field, number by number."""
    total = a + b
    return np.minimum(total, total - np.uint32(p))


def subtract(a: Elements, b: Elements, p: int = P) -> Elements:
    """Difference in the field, number by number."""
    difference = a - b
    return np.minimum(difference, difference + np.uint32(p))


def multiply(a: Elements, b: Elements, p: int = P) -> Elements:
    """Product in the field, number by number."""
    return _reduce(a.astype(np.int64) * b.astype(np.int64), p)


def invert(a: Elements, p: int = P) -> Elements:
    """Inverse in the field, number by number (Fermat: a^(p - 2))."""
    if not np.all(a):
        raise ZeroDivisionError("zero has no inverse in a field")
    result, power = np.ones_like(a), a
    for bit in reversed(bin(p - 2)[2:]):
        if bit == "1":
            result = multiply(result, power, p)
        power = multiply(power, power, p)
    return result


def matmul(a: Elements, b: Elements, p: int = P) -> Elements:
    """Matrix product in the field, exact in float64.

    With a = high * 2^15 + low, |high| <= 2^15, |low| <= 2^14 and b < 2^31, a term stays at or below 2^46.
    """
    centred = a.astype(np.int64)
    centred -= p * (centred > p // 2)
    high = (centred + 2**14) >> 15
    rows, inner = a.shape
    halves = np.zeros((-(-2 * rows // _ROWS) * _ROWS, inner))
    halves[:rows], halves[rows : 2 * rows] = high, centred - (high << 15)
    tiles = halves.reshape(-1, _ROWS, inner)
    out = np.empty((rows, b.shape[1]), np.uint32)
    for start in range(0, b.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        width = min(_COLUMNS, b.shape[1] - start)
        total = np.zeros((rows, width), np.int64)
        spare = np.empty_like(total)
        for k in range(0, inner, _TERMS):
            terms = slice(k, k + _TERMS)
            product = (tiles[:, :, terms] @ b[terms, columns].astype(np.float64)).astype(np.int64)
            product = product.reshape(len(halves), width)
            upper, lower = product[:rows], product[rows : 2 * rows]
            _fold(upper, spare, p)
            upper <<= 15
            upper += lower
            _fold(upper, spare, p)
            total += upper
        out[:, columns] = _reduce(total, p)
    return out


def add_up(rows: Sequence[Elements], p: int = P) -> Elements:
    """Sum of one or more rows in the field."""
    total = rows[0].astype(np.int64)
    for row in rows[1:]:
        total += row
    return _reduce(total, p)


def from_signed(x: npt.NDArray[np.int64], p: int = P) -> Elements:
    """Elements that stand for integers of at most (p - 1) / 2 in size."""
    low, high = (int(x.min()), int(x.max())) if x.size else (0, 0)
    if max(-low, high) > p // 2:
        raise ValueError(f"integers from {low} to {high}: a field of {p} holds -{p // 2} to {p // 2}; scale them down")
    return np.where(x < 0, x + p, x).astype(np.uint32)


def to_signed(a: Elements, p: int = P) -> npt.NDArray[np.int64]:
    """Integers nearest to zero that the elements stand for."""
    x = a.astype(np.int64)
    return x - p * (x > p // 2)


def to_bytes(a: Elements) -> bytes:
    """Four bytes an element, the low one first."""
    return a.astype("<u4", copy=False).tobytes()


def from_bytes(data: bytes, count: int, p: int = P) -> Elements:
    """Read exactly `count` elements; refuse another length and numbers that are not of the field."""
    if len(data) != 4 * count:
        raise ValueError(f"{len(data)} bytes: {count} elements of a field take {4 * count}")
    a = np.frombuffer(data, "<u4").astype(np.uint32, copy=False)
    if count and int(a.max()) >= p:
        raise ValueError(f"element {int(a.max())}: elements of this field are below {p}")
    return a


def uniform(key: bytes, count: int, p: int = P) -> Elements:
    """Elements drawn evenly from the AES-256-CTR key stream: cut each word to the bits of p, skip what is not below p.

    A longer draw by the same key begins with the shorter one. A key is for one use.
    """
    if len(key) != 32:
        raise ValueError(f"{len(key)} bytes of key: AES-256 takes 32")
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor()
    buffer = np.empty(CHUNK + 15, np.uint8)  # the cipher asks for one block less a byte of room
    words, bits = buffer[:CHUNK].view("<u4"), np.uint32((1 << (p - 1).bit_length()) - 1)
    out, filled = np.empty(count, np.uint32), 0
    while filled < count:
        size = min(4 * (count - filled), CHUNK)
        stream.update_into(ZEROS[:size], buffer.data)
        drawn = words[: size // 4] & bits
        if drawn.max() >= p:
            drawn = drawn[drawn < p]
        out[filled : filled + len(drawn)] = drawn
        filled += len(drawn)
    return out


def lagrange(points: Sequence[int], targets: Sequence[int], p: int = P) -> Elements:
    """Matrix (targets × points) from a polynomial's values at `points` to its values at `targets`."""
    everywhere = [*points, *targets]
    if len(set(everywhere)) < len(everywhere) or not all(0 <= x < p for x in everywhere):
        raise ValueError(f"{len(everywhere)} points: they differ and are elements of the field of {p}")
    x, t = np.array(points, np.uint32), np.array(targets, np.uint32)
    gaps = subtract(t[:, None], x[None, :], p)
    between = subtract(x[:, None], x[None, :], p)
    np.fill_diagonal(between, 1)
    # Barycentric form: product over c of (t - x_c), over (t - x_b) times the product over c != b of (x_b - x_c).
    below = multiply(gaps, _product(between, p)[None, :], p)
    return multiply(_product(gaps, p)[:, None], invert(below, p), p)


def _product(rows: Elements, p: int) -> Elements:
    """Product of every row's numbers."""
    result = np.ones(len(rows), np.uint32)
    for column in rows.T:
        result = multiply(result, column, p)
    return result


@lru_cache(maxsize=8)
def _generator(u: int, n: int, p: int) -> Elements:
    return lagrange(range(u), range(u, u + n), p)


def encode(parts: Elements, n: int, p: int = P) -> Elements:
    """Turn u parts (rows) into n shares: the polynomial that is the parts at 0 ... u - 1, seen at u ... u + n - 1.

    Where t of the parts are drawn evenly, any t shares are even and independent of the other parts: a polynomial of
    degree below u that is zero at u - t parts and t shares is zero everywhere, so those t parts and t shares determine
    each other.
    """
    return matmul(_generator(len(parts), n, p), parts, p)


def decode(shares: Elements, who: Sequence[int], wanted: int, p: int = P) -> Elements:
    """Give the first `wanted` parts from as many shares as there were parts; `who` says which share each row is."""
    u = len(who)
    return matmul(lagrange([u + j for j in who], range(wanted), p), shares, p)
