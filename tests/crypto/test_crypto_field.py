"""The field is exact to the last number, its draws are even, and the code on it gives parts back and hides them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.crypto import field
from atoll.crypto.field import Elements, P

PRIMES = [2, 3, 7, 11, 65_521, P]
EDGES = [0, 1, 2, P // 2 - 1, P // 2, P // 2 + 1, P - 2, P - 1]


def elements(*numbers: int) -> Elements:
    return np.array(numbers, np.uint32)


def drawn(seed: int, shape: tuple[int, ...], p: int) -> Elements:
    """Uniform numbers with the edges of the field mixed in."""
    random = np.random.default_rng(seed)
    edges = np.array(EDGES) % p
    return np.where(random.random(shape) < 0.3, random.choice(edges, shape), random.integers(0, p, shape)).astype(
        np.uint32
    )


@pytest.mark.parametrize("p", [2, 3, 7, 11])
def test_small_fields_are_right_for_every_pair(p: int) -> None:
    a, b = (x.ravel().astype(np.uint32) for x in np.meshgrid(np.arange(p), np.arange(p)))
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert field.add(a, b, p).tolist() == [(x + y) % p for x, y in pairs]
    assert field.subtract(a, b, p).tolist() == [(x - y) % p for x, y in pairs]
    assert field.multiply(a, b, p).tolist() == [x * y % p for x, y in pairs]
    units = np.arange(1, p, dtype=np.uint32)
    assert field.invert(units, p).tolist() == [pow(x, -1, p) for x in range(1, p)]


def test_the_large_field_is_right_at_every_pair_of_edges() -> None:
    a, b = (elements(*x) for x in zip(*product(EDGES, EDGES), strict=True))
    pairs = list(product(EDGES, EDGES))
    assert field.add(a, b).tolist() == [(x + y) % P for x, y in pairs]
    assert field.subtract(a, b).tolist() == [(x - y) % P for x, y in pairs]
    assert field.multiply(a, b).tolist() == [x * y % P for x, y in pairs]
    assert field.invert(elements(*EDGES[1:])).tolist() == [pow(x, -1, P) for x in EDGES[1:]]


@given(st.lists(st.tuples(st.integers(0, P - 1), st.integers(0, P - 1)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_large_field_equals_the_integers(pairs: list[tuple[int, int]]) -> None:
    a, b = (elements(*x) for x in zip(*pairs, strict=True))
    assert field.add(a, b).tolist() == [(x + y) % P for x, y in pairs]
    assert field.subtract(field.add(a, b), b).tolist() == a.tolist()
    assert field.multiply(a, b).tolist() == [x * y % P for x, y in pairs]
    assert field.add_up([a, b, a]).tolist() == [(2 * x + y) % P for x, y in pairs]


@given(st.integers(1, 6), st.integers(1, 300), st.integers(1, 6), st.integers(0, 2**31), st.sampled_from(PRIMES))
@settings(max_examples=60, deadline=None)
def test_products_of_matrices_equal_the_integers(n: int, k: int, m: int, seed: int, p: int) -> None:
    a, b = drawn(seed, (n, k), p), drawn(seed + 1, (k, m), p)
    exact = a.astype(object) @ b.astype(object) % p
    assert field.matmul(a, b, p).tolist() == exact.tolist()


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("terms", [127, 128, 129, 1000])
def test_products_are_exact_where_sums_are_largest(edge: int, terms: int) -> None:
    a, b = np.full((2, terms), edge, np.uint32), np.full((terms, 3), P - 1, np.uint32)
    assert (field.matmul(a, b) == edge * (P - 1) * terms % P).all()


def test_products_do_not_depend_on_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(0, (5, 150), P), drawn(1, (150, 2 * 128 + 3), P)
    whole = field.matmul(a, b)
    monkeypatch.setattr(field, "_COLUMNS", 1000)
    assert (field.matmul(a, b) == whole).all()
    assert field.matmul(a, b[:, :0]).shape == (5, 0)


def test_zero_has_no_inverse() -> None:
    with pytest.raises(ZeroDivisionError, match="zero has no inverse"):
        field.invert(elements(1, 0))


@pytest.mark.parametrize("p", [3, 7, P])
def test_signed_integers_come_back(p: int) -> None:
    half = p // 2
    x = np.array([-half, -1, 0, 1, half])
    assert field.to_signed(field.from_signed(x, p), p).tolist() == x.tolist()
    for far in (half + 1, -half - 1, -(2**63)):
        with pytest.raises(ValueError, match="scale them down"):
            field.from_signed(np.array([0, far]), p)


def test_bytes_are_read_only_if_every_one_is_right() -> None:
    a = elements(0, 1, 256, P - 1)
    data = field.to_bytes(a)
    assert data == bytes([0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0xFE, 0xFF, 0xFF, 0x7F])
    assert field.from_bytes(data, 4).tolist() == a.tolist()
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(ValueError, match="4 elements of a field take 16"):
            field.from_bytes(wrong, 4)
    for beyond in (P, P + 1, 2**32 - 1):
        with pytest.raises(ValueError, match=f"element {beyond}"):
            field.from_bytes(beyond.to_bytes(4, "little"), 1)


def stream(key: bytes, words: int) -> Elements:
    made = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(4 * words))
    return np.frombuffer(made, "<u4")


@pytest.mark.parametrize("p", PRIMES)
def test_draws_are_the_key_stream_without_what_is_too_large(p: int) -> None:
    bits = (1 << (p - 1).bit_length()) - 1
    key = bytes(range(32))
    kept = [w for w in (stream(key, 100_000) & bits).tolist() if w < p]
    assert field.uniform(key, 40_000, p).tolist() == kept[:40_000]
    assert field.uniform(key, 7, p).tolist() == kept[:7]
    assert field.uniform(bytes(32), 40, P).tolist() != field.uniform(key, 40, P).tolist()


def test_the_first_draws_are_those_of_a_published_key_stream() -> None:
    """AES-256 of the zero block under the zero key (NIST AESAVS): dc95c078a2408989ad48a21492842087."""
    block = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    words = [int.from_bytes(block[i : i + 4], "little") % 2**31 for i in range(0, 16, 4)]
    assert field.uniform(bytes(32), 4).tolist() == words


def chi_square(counts: np.ndarray) -> float:
    from scipy.stats import chisquare

    return float(chisquare(counts).pvalue)


@pytest.mark.parametrize("p", [3, 7, 11])
def test_draws_are_even(p: int) -> None:
    counts = np.bincount(field.uniform(b"k" * 32, 200_000, p), minlength=p)
    assert len(counts) == p
    assert chi_square(counts) > 1e-4


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="AES-256 takes 32"):
        field.uniform(bytes(16), 4)


def polynomial_at(values: dict[int, int], t: int, p: int) -> int:
    """Evaluate by Lagrange's sum over exact fractions: slow, and nothing in common with the code under test."""
    total = Fraction(0)
    for i, y in values.items():
        term = Fraction(y)
        for j in values:
            term *= Fraction(t - j, i - j) if j != i else 1
        total += term
    return total.numerator * pow(total.denominator, -1, p) % p


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31), st.sampled_from([13, 65_521, P]))
@settings(max_examples=60, deadline=None)
def test_shares_are_values_of_the_polynomial_through_the_parts(u: int, n: int, seed: int, p: int) -> None:
    parts = drawn(seed, (u, 3), p)
    shares = field.encode(parts, n, p)
    for column in range(3):
        known = dict(enumerate(parts[:, column].tolist()))
        assert shares[:, column].tolist() == [polynomial_at(known, u + j, p) for j in range(n)]


def test_a_share_by_hand() -> None:
    """Parts 1 and 2 at 0 and 1 are the line 1 + x: shares at 2, 3, 4 are 3, 4, 5."""
    assert field.encode(elements(1, 2)[:, None], 3, 7).tolist() == [[3], [4], [5]]
    assert field.lagrange([0, 1], [2], 7).tolist() == [[6, 2]]  # f(2) = -f(0) + 2 f(1)


@pytest.mark.parametrize(("n", "u", "p"), [(4, 3, 7), (6, 4, 11), (7, 5, P), (6, 6, P), (5, 1, P)])
def test_any_u_shares_give_the_parts_in_any_order(n: int, u: int, p: int) -> None:
    parts = drawn(n, (u, 5), p)
    shares = field.encode(parts, n, p)
    for who in combinations(range(n), u):
        backwards = list(reversed(who))
        assert (field.decode(shares[list(who)], who, u, p) == parts).all()
        assert (field.decode(shares[backwards], backwards, u - 1, p) == parts[: u - 1]).all()


def test_the_code_adds_up() -> None:
    a, b = drawn(1, (4, 9), P), drawn(2, (4, 9), P)
    total = field.add(field.encode(a, 6), field.encode(b, 6))
    assert (total == field.encode(field.add(a, b), 6)).all()


@pytest.mark.parametrize(("n", "u", "t", "p"), [(4, 3, 1, 7), (4, 3, 2, 7), (6, 4, 2, 11), (3, 2, 1, 5)])
def test_t_shares_reveal_nothing(n: int, u: int, t: int, p: int) -> None:
    """Whatever the secret parts are, every value of any t shares comes from exactly one draw of the t random parts."""
    draws = np.array(list(product(range(p), repeat=t)), np.uint32).T  # (t, p^t): one draw a column
    secrets = product(range(p), repeat=u - t)
    for secret in secrets:
        fixed = np.repeat(elements(*secret)[:, None], draws.shape[1], axis=1)
        shares = field.encode(np.concatenate([fixed, draws]), n, p)
        for seen in combinations(range(n), t):
            assert len(set(zip(*shares[list(seen)].tolist(), strict=True))) == p**t


def test_one_share_more_reveals_something() -> None:
    """The law above can fail: t + 1 shares are not even for a fixed secret."""
    draws = np.arange(7, dtype=np.uint32)[None, :]
    shares = field.encode(np.concatenate([np.zeros((2, 7), np.uint32), draws]), 4, 7)
    assert len(set(zip(*shares[:2].tolist(), strict=True))) < 49


def test_a_server_with_t_users_learns_the_sum_and_nothing_else() -> None:
    """n=3, U=2, T=1, every draw of two masks counted: the view depends on x and y by x + y only."""
    p = 5
    z, r, w, s = (a.ravel().astype(np.uint32) for a in np.meshgrid(*[np.arange(p)] * 4))
    first, second = field.encode(np.stack([z, r]), 3, p), field.encode(np.stack([w, s]), 3, p)
    replies = field.add(first, second, p)
    views: dict[int, Counter[tuple[int, ...]]] = {}
    for x, y in product(range(p), repeat=2):
        masked = field.add(np.uint32(x), z, p), field.add(np.uint32(y), w, p)  # type: ignore[arg-type]
        for colluder in range(3):
            seen = np.stack([*masked, first[colluder], second[colluder], *replies])
            view = Counter(zip(*seen.tolist(), strict=True))
            assert views.setdefault((x + y) % p * 3 + colluder, view) == view
    sums = [set(views[total * 3]) for total in range(p)]
    assert all(not a & b for a, b in combinations(sums, 2))  # and the sum it does learn


@pytest.mark.parametrize(("points", "targets", "p"), [([0, 0], [1], 7), ([0, 1], [1], 7), ([0, 7], [1], 7)])
def test_points_of_a_polynomial_differ(points: list[int], targets: list[int], p: int) -> None:
    with pytest.raises(ValueError, match="they differ"):
        field.lagrange(points, targets, p)
