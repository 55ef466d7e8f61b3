"""Sums of ciphertexts weighted with known whole numbers: what a party computes on somebody else's encrypted column."""

from __future__ import annotations

from collections.abc import Sequence

import gmpy2
from gmpy2 import mpz

from atoll.crypto.paillier import PublicKey


def weighted_sums(public: PublicKey, ciphertexts: Sequence[mpz], columns: Sequence[Sequence[int]]) -> list[mpz]:
    """Encrypt Σ column[i] × plaintext[i], modulo n, for each column of signed whole numbers.

    Nothing random is added, and the time taken depends on the columns: add a fresh ciphertext to a result before
    somebody else gets it. The method is Pippenger's: the bits of all exponents are taken in windows, and ciphertexts
    with the same window are multiplied first.

    Args:
        public: the key that the ciphertexts are under.
        ciphertexts: n of them.
        columns: each of n whole numbers.
    """
    public.check(ciphertexts)
    square = public.n * public.n
    found = []
    for column in columns:
        if len(column) != len(ciphertexts):
            raise ValueError(f"{len(column)} numbers for {len(ciphertexts)} ciphertexts: give one for each")
        up = _power_product([(c, e) for c, e in zip(ciphertexts, column, strict=True) if e > 0], square)
        down = _power_product([(c, -e) for c, e in zip(ciphertexts, column, strict=True) if e < 0], square)
        found.append(up * gmpy2.invert(down, square) % square)
    return found


def _power_product(terms: Sequence[tuple[mpz, int]], modulus: mpz) -> mpz:
    """Return the product of c^e over all (c, e)."""
    bits = max((int(e).bit_length() for _, e in terms), default=0)
    width = max(1, min(12, len(terms).bit_length() - 2))
    mask, total = (1 << width) - 1, mpz(1)
    for shift in reversed(range(0, bits, width)):
        for _ in range(width):
            total = total * total % modulus
        buckets: dict[int, mpz] = {}
        for c, e in terms:
            digit = (e >> shift) & mask
            if digit:
                buckets[digit] = buckets[digit] * c % modulus if digit in buckets else c
        running = window = mpz(1)
        for digit in range(max(buckets, default=0), 0, -1):  # bucket d is in the running product d times
            if digit in buckets:
                running = running * buckets[digit] % modulus
            window = window * running % modulus
        total = total * window % modulus
    return total
