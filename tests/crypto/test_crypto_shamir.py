"""Secret sharing: any t shares give the secret, t - 1 say nothing, and a second implementation agrees."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.crypto import shamir
from atoll.crypto.shamir import PRIME, combine, combine_numbers, split, split_number


def lagrange(shares: dict[int, int], prime: int) -> int:
    """The polynomial's value at zero with exact fractions, reduced at the end."""
    total = 0
    for x, y in shares.items():
        weight = Fraction(1)
        for other in shares:
            if other != x:
                weight *= Fraction(other, other - x)
        total += y * weight.numerator * pow(weight.denominator, -1, prime)
    return total % prime


def test_the_prime_is_the_first_above_every_secret() -> None:
    gmpy2 = pytest.importorskip("gmpy2")
    assert gmpy2.next_prime(2**256) == PRIME


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
@settings(max_examples=80, deadline=None)
def test_any_t_shares_give_the_secret(secret: bytes, n: int, data: st.DataObject) -> None:
    xs = data.draw(st.lists(st.integers(1, 2**32), min_size=n, max_size=n, unique=True))
    t = data.draw(st.integers(1, n))
    shares = split(secret, xs, t)
    some = data.draw(st.permutations(xs))[: data.draw(st.integers(t, n))]
    assert combine({x: shares[x] for x in some}, t) == secret
    assert lagrange({x: int.from_bytes(shares[x], "big") for x in some[:t]}, PRIME) == int.from_bytes(secret, "big")


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, (1).to_bytes(32, "big")])
def test_boundaries(secret: bytes) -> None:
    for t in (1, 2, 5):
        shares = split(secret, range(1, 6), t)
        assert all(combine({x: shares[x] for x in some}, t) == secret for some in combinations(range(1, 6), t))


def test_fewer_than_t_shares_are_uniform() -> None:
    """t = 3 modulo 17: two shares of one secret take all 289 values evenly, whatever it is. Chi-square at 10^-9."""
    for secret in (0, 5):
        pairs = Counter((s[2], s[7]) for s in (split_number(secret, [2, 7, 11], 3, 17) for _ in range(28_900)))
        assert len(pairs) == 289
        assert sum((c - 100) ** 2 / 100 for c in pairs.values()) < 456


def test_fewer_than_t_shares_fit_every_secret() -> None:
    """Every guess at the missing share gives another secret, and all secrets come up."""
    shares = split_number(6, [1, 2, 3], 3, 31)
    assert {combine_numbers({1: shares[1], 2: shares[2], 3: guess}, 3, 31) for guess in range(31)} == set(range(31))


def test_every_polynomial_of_a_small_field() -> None:
    """All 7^3 polynomials of degree two: any three points give the value at zero."""
    for a in range(7):
        for b in range(7):
            for c in range(7):
                points = {x: (a + b * x + c * x * x) % 7 for x in range(1, 7)}
                assert all(combine_numbers({x: points[x] for x in xs}, 3, 7) == a for xs in combinations(points, 3))


def test_fresh_polynomials() -> None:
    assert split(bytes(32), [1, 2], 2) != split(bytes(32), [1, 2], 2)


def test_a_wrong_share_gives_another_secret() -> None:
    shares = split(bytes(range(32)), [1, 2, 3], 3)
    shares[2] = shares[2][:-1] + bytes([shares[2][-1] ^ 1])
    try:
        assert combine(shares, 3) != bytes(range(32))
    except ValueError as fault:
        assert "do not belong together" in str(fault)  # noqa: PT017 - a wrong value may or may not fit 32 bytes


def test_galois_agrees() -> None:
    """On the true field, where it computes with Python's integers."""
    galois = pytest.importorskip("galois")
    field = galois.GF(PRIME, primitive_element=5, verify=False)
    for t in (2, 5):
        secret = bytes(range(t, t + 32))
        shares = split(secret, range(3, 3 + t), t)
        points = {x: int.from_bytes(y, "big") for x, y in shares.items()}
        curve = galois.lagrange_poly(field(list(points)), field(list(points.values())))
        assert int(curve(field(0))).to_bytes(32, "big") == secret == combine(shares, t)


def test_shares_have_a_fixed_size() -> None:
    assert {len(s) for s in split(bytes(32), range(1, 50), 30).values()} == {shamir.SHARE}
