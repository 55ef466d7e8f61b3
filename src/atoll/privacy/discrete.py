"""The discrete Gaussian on the integers (Canonne, Kamath, Steinke 2020), drawn in bulk by integer comparisons only.

Whole numbers leave no trace of rounding for an attacker, and bulk draws leave no trace of single ones in the time.
"""

from __future__ import annotations

import builtins
import os
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, log2, pi, prod
from typing import NamedTuple, Protocol

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.keys import rng
from atoll.core.tree import Array

_SMALLEST, _LARGEST = 2.0**-10, 2.0**50
_TABLE_MOST = 2048.0  # up to this σ a table holds the whole distribution
_TAIL = 13.5  # exp(-13.5²/2) < 2^-128: what lies further out is never drawn
_PRECISION = 256
_UNDECIDED = np.iinfo(np.int32).min
_EXACT = Context(prec=100)


class Bits(Protocol):
    """A source of random bytes; every call of `bytes(n)` gives new ones.

    Example:
        >>> from atoll.privacy import AddressedBits, Bits
        >>> source: Bits = AddressedBits(0, "example")
        >>> len(source.bytes(5))
        5
    """

    def bytes(self, n: int) -> builtins.bytes: ...


class SecureBits:
    """Secret random bytes for deployment: AES-256 in counter mode, with a new key of the system for every call.

    Nothing is kept between calls, so neither threads, forks nor a later theft of memory repeat a byte.

    Example:
        >>> from atoll.privacy import SecureBits
        >>> len(SecureBits().bytes(16))
        16
    """

    def bytes(self, n: int) -> builtins.bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(b"\0" * 16)).encryptor()
        return stream.update(b"\0" * n)


class AddressedBits:
    """Random bytes that are derived from an address: for simulation, never for secrets.

    Args:
        *address: seed, purpose, round, party: the same address gives the same bytes.

    Example:
        >>> from atoll.privacy import AddressedBits
        >>> AddressedBits(0, "noise").bytes(8) == AddressedBits(0, "noise").bytes(8)
        True
    """

    def __init__(self, *address: object) -> None:
        self._source = rng(*address, "bits").bit_generator

    def bytes(self, n: int) -> builtins.bytes:
        words: Array = self._source.random_raw(-(-n // 8))
        return words.astype("<u8").tobytes()[:n]


def discrete_gaussian(sigma: float, size: int | tuple[int, ...], bits: Bits) -> Array:
    """Return independent draws X with P(X = k) ∝ exp(−k²/2σ²), as int64.

    Each draw is within 2^-100 of this distribution in total variation. The table of thresholds has entries rounded to
    2^-128, fewer than 2^16 of them, from weights with errors below 2^-190; the tail beyond 13.5 σ holds less than
    2^-127; and a draw compares a uniform number of 128 bits, of which it asks for the later ones only where the first
    16 do not decide. A σ above 2048 adds rejections that are decided to 2^-128 as well.

    Args:
        sigma: the parameter σ, close to the standard deviation, from 2^-10 to 2^50.
        size: number of draws, or the shape of the array.
        bits: the source of randomness: `SecureBits()` for real noise.

    Example:
        >>> from atoll.privacy import AddressedBits, discrete_gaussian
        >>> draws = discrete_gaussian(10.0, 10_000, AddressedBits(0))
        >>> draws.dtype.name, 9.5 < float(draws.std()) < 10.5
        ('int64', True)
    """
    if not _SMALLEST <= sigma <= _LARGEST:
        raise Mismatch(f"sigma={sigma}: the discrete Gaussian is drawn for sigma from 2^-10 to 2^50")
    shape = (size,) if isinstance(size, int) else tuple(size)
    n = prod(shape)
    if sigma <= _TABLE_MOST:
        return (_invert(_signed_table(sigma), n, bits) - _reach(sigma)).reshape(shape)
    return _spread(sigma, n, bits).reshape(shape)


class _Table(NamedTuple):
    """Thresholds 2^128·P(index ≤ i) in two words, and the index that 16 bits decide alone (or `_UNDECIDED`)."""

    high: Array
    low: Array
    guide: Array


def _reach(sigma: float) -> int:
    return ceil(_TAIL * sigma) + 1


def _weights(sigma: float) -> list[int]:
    """Return 2^256·exp(−k²/2σ²) for k = 0, 1, …, to an error below 2^32.

    w_{k+1} = w_k·q^{2k+1} with q = exp(−1/2σ²). No factor is above 1, so the errors of the products only add up: to
    1 + 4k in q^{2k+1} and to 2k² + 2k in w_k, where k < 2^15.
    """
    one = 1 << _PRECISION
    wide = Decimal(sigma)
    q = _EXACT.exp(_EXACT.divide(Decimal(-1), _EXACT.multiply(2, _EXACT.multiply(wide, wide))))
    ratio = int(_EXACT.multiply(q, one))
    square = ratio * ratio >> _PRECISION
    weights = [one]
    for _ in range(_reach(sigma)):
        weights.append(weights[-1] * ratio >> _PRECISION)
        ratio = ratio * square >> _PRECISION
    return weights


def _table(weights: list[int]) -> _Table:
    total, running, ends = sum(weights), 0, []
    for weight in weights[:-1]:
        running += weight
        ends.append(min((running << 128) // total, (1 << 128) - 1))
    high = np.array([end >> 64 for end in ends], np.uint64)
    low = np.array([end & (1 << 64) - 1 for end in ends], np.uint64)
    edges = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    first = np.searchsorted(high, edges, "right")
    last = np.searchsorted(high, edges | np.uint64((1 << 48) - 1), "right")
    # A threshold inside or on the edge of a cell leaves the cell undecided: `left` counts those on the edge too.
    clear = (first == last) & (first == np.searchsorted(high, edges, "left"))
    return _Table(high, low, np.where(clear, first, _UNDECIDED).astype(np.int32))


@lru_cache(maxsize=16)
def _signed_table(sigma: float) -> _Table:
    weights = _weights(sigma)
    return _table(weights[:0:-1] + weights)


def _words(n: int, bits: Bits) -> Array:
    return np.frombuffer(bits.bytes(8 * n), "<u8")


def _invert(table: _Table, n: int, bits: Bits) -> Array:
    """Draw n indices: how many thresholds are at most a uniform number of 128 bits."""
    head = np.frombuffer(bits.bytes(2 * n), "<u2")
    index = table.guide[head].astype(np.int64)
    open_ = np.flatnonzero(index == _UNDECIDED)
    more = _words(len(open_), bits) >> np.uint64(16)
    high = head[open_].astype(np.uint64) << np.uint64(48) | more
    found = np.searchsorted(table.high, high, "left")
    for at in np.flatnonzero(table.high.take(found, mode="clip") == high):
        low = int.from_bytes(bits.bytes(8), "little")
        same = table.low[table.high == high[at]]
        found[at] += int(np.count_nonzero(same <= np.uint64(low)))
    index[open_] = found
    return index


class _Coarse(NamedTuple):
    """A wide Gaussian in cells of 2^shift numbers: which cell, and up to which 64-bit number it is kept for sure."""

    table: _Table
    sure: Array
    shift: int


@lru_cache(maxsize=16)
def _coarse(sigma: float) -> _Coarse:
    shift = ceil(log2(sigma / _TABLE_MOST))
    narrow = sigma / 2.0**shift  # exact: a power of two
    weights = _weights(narrow)
    # l·(2Bh + l)/2σ² < B²(2h + 1)/2σ² for every l below the cell's width B, and exp(−x) ≥ 1 − x.
    square = Fraction(narrow) ** 2
    over, under = square.denominator << 63, square.numerator
    sure = [max((1 << 64) - 1 + -(over * (2 * h + 1)) // under, 0) for h in range(len(weights))]
    return _Coarse(_table(weights), np.array(sure, np.uint64), shift)


def _spread(sigma: float, n: int, bits: Bits) -> Array:
    """Draw from a wide Gaussian: a cell h of a narrow one, a place l in it, kept with exp(−l(2Bh + l)/2σ²), a sign."""
    coarse = _coarse(sigma)
    out = np.empty(n, np.int64)
    missing = np.arange(n)
    while len(missing):
        m = len(missing)
        cell = _invert(coarse.table, m, bits)
        word = _words(m, bits)
        place = (word & np.uint64((1 << coarse.shift) - 1)).astype(np.int64)
        minus = word >> np.uint64(63) == 1
        drawn = _words(m, bits)
        size = (cell << coarse.shift) + place
        kept = (size != 0) | ~minus  # or zero would come twice, with either sign
        for at in np.flatnonzero(drawn >= coarse.sure[cell]):
            x = _exponent(sigma, int(place[at]), int(cell[at]) << coarse.shift)
            kept[at] &= _accept(x, int(drawn[at]), bits)
        out[missing[kept]] = np.where(minus, -size, size)[kept]
        missing = missing[~kept]
    return out


def _exponent(sigma: float, place: int, start: int) -> Fraction:
    return Fraction(place * (2 * start + place)) / (2 * Fraction(sigma) ** 2)


def _accept(x: Fraction, drawn: int, bits: Bits) -> bool:
    """Return true with probability exp(−x): compare 128 bits, of which the first 64 are given."""
    full = drawn << 64 | int.from_bytes(bits.bytes(8), "little")
    chance = _EXACT.exp(_EXACT.divide(Decimal(-x.numerator), Decimal(x.denominator)))
    return full < int(_EXACT.multiply(chance, 1 << 128))


def sum_gap(sigma: float, parties: int) -> float:
    """Bound how far a sum of so many discrete Gaussians is from one of variance parties·σ².

    The bound is on the log-ratio of probabilities for each number of a vector (Kairouz, Liu, Steinke 2021, theorem 1):
    below 10^-30 from σ = 3 on, so that noise drawn in shares is accounted for as if it had been drawn at once.
    """
    return 10 * sum(exp(-2 * pi**2 * sigma**2 * k / (k + 1)) for k in range(1, parties))
