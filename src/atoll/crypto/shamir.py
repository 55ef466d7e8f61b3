"""Shamir's secret sharing: t points of a random polynomial give its value at zero, t - 1 say nothing about it.

Shares carry no proof of their own: whoever combines compares the secret with a commitment its owner has signed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from gmpy2 import invert, mpz

from atoll.crypto.keys import refuse_if

PRIME = 2**256 + 297  # the first prime above 2^256: any 32 bytes are a secret
SHARE = 33  # bytes of a share


def split_number(secret: int, xs: Sequence[int], t: int, prime: int = PRIME) -> dict[int, int]:
    """Shares of a number below the prime, one for each x; any t of them give it back."""
    refuse_if(not 1 <= t <= len(xs), f"t={t} of {len(xs)}: the threshold is from 1 to the number of shares")
    refuse_if(len(set(xs)) != len(xs), "two shares at one x: every holder has its own")
    refuse_if(any(not 0 < x < prime for x in xs), "a share at x=0 or beyond the prime: x=0 is the secret itself")
    refuse_if(not 0 <= secret < prime, "a secret beyond the prime")
    p = mpz(prime)
    coefficients = [mpz(secrets.randbelow(prime)) for _ in range(t - 1)]
    out = {}
    for x in xs:
        y = mpz(0)
        for a in coefficients:
            y = (y + a) * x % p
        out[x] = int((y + secret) % p)
    return out


def combine_numbers(shares: Mapping[int, int], t: int, prime: int = PRIME) -> int:
    """The number that any t shares determine; more than t are not looked at."""
    refuse_if(len(shares) < t, f"{len(shares)} shares: {t} are needed")
    refuse_if(any(not 0 < x < prime for x in shares), "a share at x=0 or beyond the prime: x=0 is the secret itself")
    refuse_if(any(not 0 <= y < prime for y in shares.values()), "a share beyond the prime")
    xs = tuple(sorted(shares))[:t]
    total = sum((w * shares[x] for w, x in zip(_weights(xs, prime), xs, strict=True)), mpz(0))
    return int(total % prime)


@lru_cache(maxsize=64)
def _weights(xs: tuple[int, ...], prime: int) -> tuple[mpz, ...]:
    # Lagrange at zero. Cached, because the same holders answer for all parties of a round.
    p, out = mpz(prime), []
    for x in xs:
        above, below = mpz(1), mpz(1)
        for other in xs:
            if other != x:
                above = above * other % p
                below = below * (other - x) % p
        out.append(above * invert(below, p) % p)
    return tuple(out)


def split(secret: bytes, xs: Sequence[int], t: int) -> dict[int, bytes]:
    """Shares of 32 bytes."""
    refuse_if(len(secret) != SHARE - 1, f"a secret of {len(secret)} bytes: it has {SHARE - 1}")
    shares = split_number(int.from_bytes(secret, "big"), xs, t)
    return {x: y.to_bytes(SHARE, "big") for x, y in shares.items()}


def combine(shares: Mapping[int, bytes] | Iterable[tuple[int, bytes]], t: int) -> bytes:
    """The 32 bytes that any t shares determine."""
    pairs = list(shares.items() if isinstance(shares, Mapping) else shares)
    numbers = {x: int.from_bytes(y, "big") for x, y in pairs}
    refuse_if(len(numbers) != len(pairs), "two shares at one x: every holder has its own")
    refuse_if(any(len(y) != SHARE for _, y in pairs), f"a share that has not {SHARE} bytes")
    secret = combine_numbers(numbers, t)
    refuse_if(secret >> 256 > 0, "the shares do not belong together: they give no 32 bytes")
    return secret.to_bytes(SHARE - 1, "big")
