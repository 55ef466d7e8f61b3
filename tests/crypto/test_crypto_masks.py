"""Masks: known answers of AES-CTR, keys that differ in all they should, streams that look like noise."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from hypothesis import given, settings
from hypothesis import strategies as st
from secagg_cohort import LIKELY, POSSIBLE, Cohort, chi_square

import atoll
from atoll.crypto.keys import Pair, agree, derive, packed
from atoll.crypto.mask import CHUNK, add_mask, pack, packed_bytes, unpack

FIELDS = {"purpose": "mask", "context": b"c" * 32, "i": 0, "j": 1}


def stream(key: bytes, size: int, dtype: str = "uint32") -> np.ndarray:
    out = np.zeros(size, dtype)
    add_mask(out, key)
    return out


def test_nist_known_answers() -> None:
    """SP 800-38A, F.5.5: AES-256 in counter mode, through the same cipher object that makes masks."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    text = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    expected = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    assert Cipher(AES256(key), CTR(counter)).encryptor().update(text) == expected


def test_the_mask_of_the_zero_key_is_the_published_block() -> None:
    """The ECB answer for an all-zero AES-256 key and block (AESAVS) is the first block of the stream."""
    assert stream(bytes(32), 4).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("extra", [-1, 0, 1, 5])
def test_masks_equal_encrypted_counters(dtype: str, extra: int) -> None:
    """Across the border of a chunk, against counters encrypted one block at a time."""
    key = bytes(range(32))
    size = CHUNK // np.dtype(dtype).itemsize + extra
    blocks = -(-size * np.dtype(dtype).itemsize // 16)
    counters = b"".join(i.to_bytes(16, "big") for i in range(blocks))
    expected = Cipher(AES256(key), ECB()).encryptor().update(counters)
    assert (stream(key, size, dtype) == np.frombuffer(expected, np.dtype(dtype))[:size]).all()


@given(st.integers(0, 40_000), st.sampled_from(["uint32", "uint64"]), st.binary(min_size=32, max_size=32))
@settings(max_examples=40, deadline=None)
def test_masks_cancel_and_wrap(size: int, dtype: str, key: bytes) -> None:
    x = np.full(size, np.iinfo(dtype).max, dtype)
    y = x.copy()
    add_mask(y, key)
    assert (y == stream(key, size, dtype) - np.array(1, dtype)).all()
    add_mask(y, key, sign=-1)
    assert (x == y).all()


def test_every_bit_of_derived_keys_lives() -> None:
    """Each of 256 bits is 1 in some and 0 in some of 20,000 keys, and near half of them."""
    keys = np.stack([np.frombuffer(derive(b"secret" * 6, **FIELDS | {"j": j}), np.uint8) for j in range(20_000)])
    assert np.bitwise_or.reduce(keys, 0).tobytes() == b"\xff" * 32
    assert not np.bitwise_and.reduce(keys, 0).any()
    ones = np.unpackbits(keys, axis=1).mean(0)
    assert abs(ones - 0.5).max() < 0.02


def test_keys_differ_with_everything_they_are_for() -> None:
    others = [{"purpose": "share"}, {"context": b"d" * 32}, {"i": 2}, {"j": 2}, {"i": 1, "j": 0},
              {"purpose": "maskc", "context": b"c" * 31}]  # fmt: skip
    keys = [derive(b"k" * 32, **FIELDS | other) for other in [{}, *others]] + [derive(b"l" * 32, **FIELDS)]
    masks = [stream(key, 1000) for key in keys]
    assert len(set(keys)) == len(keys)
    for i, a in enumerate(masks):
        assert all((a == b).sum() < 5 for b in masks[i + 1 :])


@given(st.lists(st.one_of(st.binary(max_size=5), st.text(max_size=3)), max_size=4), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_fields_cannot_be_moved_into_each_other(fields: list[bytes | str], cut: int) -> None:
    plain = [f.encode() if isinstance(f, str) else f for f in fields]
    joined = b"".join(plain)
    other = [joined[:cut], joined[cut:]]
    assert (packed(*fields) == packed(*other)) == (plain == other)


def test_agreement_is_mutual_and_bound_to_both_keys() -> None:
    """RFC 7748, 6.1: Bob's pair and Alice's public key give their published secret."""
    b = Pair.of(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    alice = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert b.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert b.exchange(alice).hex() == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    a = Pair.new()
    assert agree(a, b.public) == agree(b, a.public) != agree(b, alice)
    # A public key with its unused top bit set gives the same point, but is another key.
    twin = a.public[:-1] + bytes([a.public[-1] | 0x80])
    assert b.exchange(twin) == b.exchange(a.public)
    assert agree(b, twin) != agree(b, a.public)


def test_streams_look_like_noise() -> None:
    for i in range(5):
        x = stream(derive(b"fixed" * 7, **FIELDS | {"i": i}), 100_000)
        low, high = x.view(np.uint8)[::4], x.view(np.uint8)[3::4]
        assert max(chi_square(low), chi_square(high)) < LIKELY


def test_masked_zeros_look_like_noise() -> None:
    """What the server sees of a party whose vector is zero."""
    cohort = Cohort(4, size=50_000)
    cohort.rows[:] = 0
    inbox = cohort.until("masked")
    for i in range(4):
        y = np.frombuffer(cohort.answer("masked", i, inbox[i])[-4 * 50_000 :], np.uint8)
        assert max(chi_square(y[::4]), chi_square(y[3::4])) < POSSIBLE


@given(st.integers(1, 64), st.integers(0, 70), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_packing_keeps_the_low_bits(bits: int, size: int, seed: int) -> None:
    for width in {32, 64} if bits <= 32 else {64}:
        x = np.random.default_rng(seed).integers(0, 2**width, size, dtype=f"uint{width}")
        data = pack(x, bits)
        assert len(data) == packed_bytes(size, bits)
        mask = x.dtype.type(2**bits - 1)
        assert (unpack(data, size, bits, width) == x & mask).all()


def test_packing_across_chunks_and_by_hand() -> None:
    x = np.arange(CHUNK + 13, dtype=np.uint32)
    assert (unpack(pack(x, 17), len(x), 17, 32) == x).all()
    assert pack(np.array([1, 2, 3, 7], np.uint32), 3) == bytes([0b11010001, 0b1110])


def test_no_ordinary_randomness_in_cryptography() -> None:
    banned = {"random", "numpy.random", "jax", "jax.random", "torch"}
    for path in (Path(atoll.__file__).parent / "crypto").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            assert not banned & {*names, *(n.split(".")[0] for n in names)}, path
            is_random = isinstance(node, ast.Attribute) and node.attr in ("random", "rand", "randn", "default_rng")
            assert not is_random, f"{path}:{getattr(node, 'lineno', 0)}"


def test_consecutive_counters_never_repeat() -> None:
    blocks = stream(bytes(32), 40_000).tobytes()
    every = sorted(blocks[i : i + 16] for i in range(0, len(blocks), 16))
    assert all(a != b for a, b in pairwise(every))
