"""Paillier: sums are exact, two other libraries agree, and nothing malformed is accepted."""

from __future__ import annotations

import ast
import inspect
import secrets
from itertools import combinations
from typing import NamedTuple

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.crypto import paillier
from atoll.crypto.packing import Slots
from atoll.crypto.paillier import KeyShare, PublicKey, SecretKey, keypair

VECTORS = 10_000
SLOTS = Slots(16, 256)
PER = SLOTS.per_plaintext // 2  # vectors of two values in a plaintext


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return keypair()


@pytest.fixture(scope="module")
def other() -> SecretKey:
    return keypair()


def decrypted(key: SecretKey, ciphertext: mpz) -> int:
    return int(key.decrypt_many([ciphertext])[0])


class Packed(NamedTuple):
    vectors: list[list[int]]
    plaintexts: list[int]
    ciphertexts: list[mpz]


@pytest.fixture(scope="module")
def packed(key: SecretKey) -> Packed:
    """Ten thousand vectors of two signed values, every seventh at the edges of a slot, 42 vectors to a plaintext."""
    generator = np.random.default_rng(11)
    low, high = SLOTS.range
    vectors = generator.integers(low, high, (VECTORS, 2), endpoint=True)
    vectors[::7] = generator.choice([low, low + 1, -1, 0, 1, high - 1, high], (len(vectors[::7]), 2))
    plaintexts = [SLOTS.pack(vectors[i : i + PER].reshape(-1))[0] for i in range(0, VECTORS, PER)]
    return Packed(vectors.tolist(), plaintexts, key.public.encrypt_many(plaintexts))


def unpacked(plaintexts: list[mpz]) -> list[list[int]]:
    counts = [2 * min(PER, VECTORS - i) for i in range(0, VECTORS, PER)]
    rows = [SLOTS.unpack_sum([m], 1, count) for m, count in zip(plaintexts, counts, strict=True)]
    return np.concatenate(rows).reshape(-1, 2).tolist()


def test_ten_thousand_vectors_equal_phe(key: SecretKey, packed: Packed) -> None:
    """The same key, both directions: it decrypts ours, we decrypt its, and both the sums of a mixture."""
    phe = pytest.importorskip("phe")
    vectors, plaintexts, ours = packed
    their_public = phe.PaillierPublicKey(int(key.public.n))
    their_key = phe.PaillierPrivateKey(their_public, int(key.p), int(key.q))
    assert [their_key.raw_decrypt(int(c)) for c in ours] == plaintexts
    assert unpacked(key.decrypt_many(ours)) == vectors
    theirs = [mpz(their_public.raw_encrypt(m)) for m in plaintexts[:40]]
    assert key.decrypt_many(theirs) == plaintexts[:40]
    mixed = key.public.add_many([*theirs, *ours[40:]])
    assert decrypted(key, mixed) == their_key.raw_decrypt(int(mixed)) == sum(plaintexts)


def test_ten_thousand_vectors_equal_pypaillier(key: SecretKey, packed: Packed) -> None:
    """It encrypts to our key from the modulus alone."""
    oracle = pytest.importorskip("paillier")
    blobs = oracle.encrypt_integers(oracle.PublicKey.from_n(key.public.to_bytes()), packed.plaintexts, 0)
    theirs = [mpz.from_bytes(bytes(blob[1:]), "big") for blob in blobs]  # the first byte is a decimal scale
    assert key.decrypt_many(theirs) == packed.plaintexts
    assert unpacked(key.decrypt_many(theirs)) == packed.vectors
    mixed = key.public.add_many([*theirs[:100], *packed.ciphertexts[100:]])
    assert decrypted(key, mixed) == sum(packed.plaintexts)


@pytest.mark.slow
def test_pypaillier_decrypts_what_we_encrypt_to_its_key(packed: Packed) -> None:
    """It gives no secret away and takes none, so this needs a key of its own, whose safe primes take it seconds."""
    oracle = pytest.importorskip("paillier")
    raw = b""
    while not raw or raw[0] < 128:  # about every second of its keys has 2047 bits, which we refuse
        secret, its_public = sorted(oracle.generate_keypair(2048), key=lambda k: isinstance(k, oracle.PublicKey))
        raw = bytes(its_public.modulus_bytes())
    public = PublicKey.from_bytes(raw)
    ours = public.encrypt_many(packed.plaintexts)
    total = public.rerandomise([public.add_many(ours)])
    found = [int(m) for m in oracle.decrypt_many(secret, blobs([*ours, *total]))]
    assert found == [*packed.plaintexts, sum(packed.plaintexts)]


def blobs(ciphertexts: list[mpz]) -> list[bytes]:
    return [b"\0" + c.to_bytes((c.bit_length() + 7) // 8, "big") for c in ciphertexts]


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=60, max_size=60), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_encrypted_sum_is_the_sum(key: SecretKey, vectors: list[list[int]]) -> None:
    slots = Slots(32, 5)
    encrypted = [key.public.encrypt_many(slots.pack(np.array(v))) for v in vectors]
    total = [key.public.add_many(column) for column in zip(*encrypted, strict=True)]
    assert (slots.unpack_sum(key.decrypt_many(total), len(vectors), 60) == np.sum(vectors, 0)).all()


@given(st.integers(0, 2**2040), st.integers(-(2**64), 2**64))
@settings(max_examples=30, deadline=None)
def test_sums_and_multiples_are_modulo_n(key: SecretKey, m: int, scalar: int) -> None:
    public, n = key.public, int(key.public.n)
    (a,) = public.encrypt_many([m])
    (b,) = public.encrypt_many([n - 1])
    assert decrypted(key, public.add(a, b)) == (m - 1) % n
    assert decrypted(key, public.multiply(a, scalar)) == m * scalar % n


def test_edges_of_the_plaintexts(key: SecretKey) -> None:
    n = int(key.public.n)
    assert key.decrypt_many(key.public.encrypt_many([0, 1, n - 1])) == [0, 1, n - 1]
    assert key.decrypt_many(key.public.encrypt_many(np.array([7, 2**62]).tolist())) == [7, 2**62]
    for m in (-1, n, n + 1):
        with pytest.raises(ValueError, match="a plaintext below 0 or not below n"):
            key.public.encrypt_many([1, m])


def test_ciphertexts_are_never_the_same_twice(key: SecretKey) -> None:
    ciphertexts = key.public.encrypt_many([5] * 20)
    again = key.public.rerandomise(ciphertexts)
    assert len({*ciphertexts, *again}) == 40
    assert key.decrypt_many(again) == [5] * 20


def test_two_holders_of_a_public_key_draw_their_own_bases(key: SecretKey) -> None:
    one, two = (PublicKey(key.public.n) for _ in range(2))
    assert one == two
    assert one._powers[0][1] != two._powers[0][1]


def test_noise_has_an_exponent_of_half_the_key(key: SecretKey) -> None:
    """Row i, byte d, is base^(d·256^i); the base is an n-th power, so that all of its powers encrypt zero."""
    powers, square = key.public._powers, key.public.n**2
    assert len(powers) * 8 == key.public.bits // 2
    for i, d in [(0, 0), (0, 255), (1, 1), (77, 200), (127, 255)]:
        assert powers[i][d] == gmpy2.powmod(powers[0][1], d * 256**i, square)
    assert key.decrypt_many([powers[0][1], powers[127][255]]) == [0, 0]
    # −y² is no square modulo p or q, for p ≡ q ≡ 3 (mod 4); its n-th power, n odd, is none either.
    assert gmpy2.legendre(powers[0][1] % key.p, key.p) == gmpy2.legendre(powers[0][1] % key.q, key.q) == -1


@pytest.mark.parametrize("bits", [0, 512, 1024, 2047, 2049, 4096])
def test_other_key_sizes_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits={bits}: a Paillier key has 2048 bits, or 3072"):
        keypair(bits)


def test_keys_have_exactly_their_size() -> None:
    for bits in [512] * 200 + [768] * 20:
        p, q = paillier._primes(bits)
        assert (p * q).bit_length() == bits
        assert p.bit_length() == q.bit_length() == bits // 2
        assert p % 4 == q % 4 == 3
        assert gmpy2.gcd(p - 1, q - 1) == 2
        assert gmpy2.gcd(p * q, (p - 1) * (q - 1)) == 1
        assert abs(p - q) > 2 ** (bits // 2 - 100)
        assert gmpy2.is_prime(p)
        assert gmpy2.is_prime(q)
    assert keypair(3072).public.bits == 3072


def test_small_keys_are_refused_however_they_come() -> None:
    p, q = paillier._primes(1024)
    with pytest.raises(ValueError, match="a public key of 1024 bits"):
        SecretKey(p, q)
    with pytest.raises(ValueError, match="a public key of 1024 bits"):
        PublicKey(p * q)
    with pytest.raises(ValueError, match="a public key of 128 bytes"):
        PublicKey.from_bytes(int(p * q).to_bytes(128, "big"))
    with pytest.raises(ValueError, match="a public key of 2047 bits"):
        PublicKey.from_bytes(b"\x7f" + b"\xff" * 255)


def test_public_keys_that_protect_nothing_are_refused() -> None:
    half = gmpy2.next_prime(3 << 1022)
    small = gmpy2.next_prime(3 << 2030)
    bad = {
        "is even": mpz(1) << 2047,
        "is a power": half**2,
        "has a small factor": small * 65521,
        "is prime": gmpy2.next_prime(3 << 2046),
    }
    for flaw, n in bad.items():
        assert n.bit_length() == 2048
        with pytest.raises(ValueError, match=f"a public key whose modulus {flaw}"):
            PublicKey(n)


def test_secret_keys_that_are_none_are_refused(key: SecretKey) -> None:
    for p, q in [(key.p, key.p), (key.p, key.q + 2), (key.p - 1, key.q), (key.p, mpz(3))]:
        with pytest.raises(ValueError, match="these are not the primes of a Paillier key"):
            SecretKey(p, q)


def test_broken_ciphertexts_are_refused_everywhere(key: SecretKey) -> None:
    public = key.public
    good = public.encrypt_many([3])[0]
    share = key.share(2)[0]
    uses = [
        key.decrypt_many,
        share.decrypt_many,
        public.rerandomise,
        public.add_many,
        public.ciphertexts_to_bytes,
        lambda cs: public.add(cs[0], cs[1]),
        lambda cs: public.multiply(cs[1], 2),
        lambda cs: public.combine([[c] for c in cs]),
    ]
    out_of_range = [mpz(0), mpz(-5), public.n**2, public.n**2 + good]
    common_factor = [public.n, key.p, key.q * 12345, public.n * 7]
    for use in uses:
        for bad in out_of_range:
            with pytest.raises(ValueError, match="not between 0 and n²"):
                use([good, bad])
        for bad in common_factor:
            with pytest.raises(ValueError, match="shares a factor with n"):
                use([good, bad])


def test_nothing_is_no_sum(key: SecretKey) -> None:
    with pytest.raises(ValueError, match="no ciphertexts"):
        key.public.add_many([])
    assert key.public.encrypt_many([]) == key.decrypt_many([]) == []


def test_another_key_decrypts_to_something_else(key: SecretKey, other: SecretKey) -> None:
    smaller, larger = sorted([key, other], key=lambda k: k.public.n)
    ciphertext = smaller.public.encrypt_many([42])
    assert larger.decrypt_many(ciphertext) != [42]


def test_bytes_there_and_back(key: SecretKey) -> None:
    public = key.public
    ciphertexts = public.encrypt_many([0, 1, 2])
    raw = public.ciphertexts_to_bytes(ciphertexts)
    assert len(raw) == 3 * 512 == 3 * public.width
    assert public.ciphertexts_from_bytes(raw, 3) == ciphertexts
    assert public.ciphertexts_to_bytes([mpz(1)]) == b"\0" * 511 + b"\1"
    assert PublicKey.from_bytes(public.to_bytes()) == public
    assert SecretKey.from_bytes(key.to_bytes()) == key
    assert [len(public.to_bytes()), len(key.to_bytes())] == [256, 256]
    for share in key.share(2):
        assert KeyShare.from_bytes(share.to_bytes()) == share


def test_bytes_of_the_wrong_length_are_refused(key: SecretKey) -> None:
    raw = key.public.ciphertexts_to_bytes(key.public.encrypt_many([1, 2]))
    for bad, count in [(raw, 1), (raw, 3), (raw[:-1], 2), (raw + b"\0", 2), (b"", 1)]:
        with pytest.raises(ValueError, match=f"{len(bad)} bytes for {count} ciphertexts"):
            key.public.ciphertexts_from_bytes(bad, count)
    with pytest.raises(ValueError, match="not between 0 and n²"):
        key.public.ciphertexts_from_bytes(b"\xff" * 512, 1)
    for kind, good in [(PublicKey, key.public), (SecretKey, key), (KeyShare, key.share(2)[0])]:
        for bad in (b"", good.to_bytes()[:-1], good.to_bytes() + b"\0"):
            with pytest.raises(ValueError, match=f"key of {len(bad)} bytes|key share of {len(bad)} bytes"):
                kind.from_bytes(bad)


@pytest.mark.parametrize("holders", [2, 3, 5])
def test_all_holders_together_decrypt_and_fewer_do_not(key: SecretKey, holders: int) -> None:
    plaintexts = [0, 1, int(key.public.n) - 1]
    ciphertexts = key.public.encrypt_many(plaintexts)
    partials = [share.decrypt_many(ciphertexts) for share in key.share(holders)]
    assert key.public.combine(partials) == plaintexts
    assert key.public.combine(partials[::-1]) == plaintexts
    for some in combinations(partials, holders - 1):
        with pytest.raises(ValueError, match="do not fit together"):
            key.public.combine(some)
        # Not even without the check: what they make of a ciphertext has nothing to do with its plaintext.
        products = [key.public.add_many(column) for column in zip(*some, strict=True)]
        assert not {(x - 1) // key.public.n for x in products} & set(plaintexts)


def test_shares_are_drawn_anew_and_add_up_to_the_exponent(key: SecretKey) -> None:
    order = (key.p - 1) * (key.q - 1) // 2
    first, second = key.share(3), key.share(3)
    assert len({share.exponent for share in [*first, *second]}) == 6
    for shares in (first, second):
        d = sum(share.exponent for share in shares)
        assert d % order == 0
        assert d % key.public.n == 1
    ciphertexts = key.public.encrypt_many([1])
    mixed = [share.decrypt_many(ciphertexts) for share in [*first[:2], second[2]]]
    with pytest.raises(ValueError, match="do not fit together"):
        key.public.combine(mixed)


def test_refusals_of_sharing(key: SecretKey) -> None:
    for holders in (-1, 0, 1):
        with pytest.raises(ValueError, match=f"holders={holders}: a key is shared among two or more"):
            key.share(holders)
    for partials in ([], [[mpz(1)], []]):
        with pytest.raises(ValueError, match="of different lengths, or none"):
            key.public.combine(partials)
    for exponent in (mpz(0), key.public.n**2):
        with pytest.raises(ValueError, match="a key share that does not fit"):
            KeyShare(key.public, exponent)


def test_secrets_are_not_shown(key: SecretKey) -> None:
    share = key.share(2)[0]
    for thing in (key, share, key.public):
        assert str(thing) == repr(thing) == f"{type(thing).__name__}(2048 bits, {key.public.fingerprint})"
    assert len(key.public.fingerprint) == 16
    with pytest.raises(ValueError, match="not the primes") as caught:
        SecretKey(key.p, key.q + 2)
    assert str(key.p)[:12] not in str(caught.value)


def test_all_randomness_is_the_operating_systems(monkeypatch: pytest.MonkeyPatch, key: SecretKey) -> None:
    imported = {
        alias.name for node in ast.walk(ast.parse(inspect.getsource(paillier))) if isinstance(node, ast.Import)
        for alias in node.names
    }  # fmt: skip
    assert imported == {"hashlib", "secrets", "gmpy2"}
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\0" * size)
    # Without the noise that `secrets` gives, a ciphertext is the bare 1 + mn: no other source is mixed in.
    assert key.public.encrypt_many([5]) == [1 + 5 * key.public.n]
