"""What is written is read back bit for bit in exactly the bytes that were said; what is damaged is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.core.question import Encoding
from atoll.core.wire import EncodeContext, Wire
from atoll.core.world import World
from atoll.stages.encodings import Levels, Plain, Signs, SparseEncoding, WithTail, _pack_positions, _unpack_positions
from atoll.stages.quantise import Quantise, Sign
from atoll.stages.sparsify import TopK

KINDS = st.sampled_from(["float32", "float64"])


def rows_of(dtype: str) -> st.SearchStrategy[np.ndarray]:
    width = 32 if dtype == "float32" else 64
    numbers = st.floats(allow_nan=True, allow_infinity=True, width=width)
    return hnp.arrays(dtype, st.integers(1, 60), elements=numbers)


def same_bits(encoding: Encoding, row: np.ndarray) -> bytes:
    packed = encoding.pack(row)
    assert len(packed) == encoding.bytes(len(row))
    again = encoding.unpack(packed, len(row))
    assert again.dtype == row.dtype
    assert again.tobytes() == row.tobytes()
    return packed


def encoded(stage: object, row: np.ndarray, *, weighted: bool = False) -> tuple[Encoding, np.ndarray]:
    wire = Wire.of(len(row), 1, row.dtype.name, divisor="weights" if weighted else None)
    after, codec = stage(wire)  # type: ignore[operator]
    out, _, _ = codec.encode(row[None], {}, EncodeContext(np.ones(1), World(0), 0, np.arange(1)))
    assert after.row.encoding is not None
    return after.row.encoding, out[0]


@given(st.data(), KINDS, st.floats(0.01, 1))
@settings(max_examples=150, deadline=None)
def test_whatever_top_k_gives_is_read_as_it_was_written(data: st.DataObject, dtype: str, fraction: float) -> None:
    encoding, row = encoded(TopK(fraction, feedback=False), data.draw(rows_of(dtype)))
    same_bits(encoding, row)


@given(st.data(), KINDS, st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_whatever_quantise_gives_is_read_as_it_was_written(data: st.DataObject, dtype: str, bits: int) -> None:
    encoding, row = encoded(Quantise(bits), data.draw(rows_of(dtype)))
    assert np.isfinite(row).all()
    same_bits(encoding, row)


@given(st.data(), KINDS, st.sampled_from(["mean", "drive"]))
@settings(max_examples=100, deadline=None)
def test_whatever_sign_gives_is_read_as_it_was_written(data: st.DataObject, dtype: str, scale: str) -> None:
    encoding, row = encoded(Sign(False, scale), data.draw(rows_of(dtype)))
    assert np.isfinite(row).all()
    same_bits(encoding, row)


@given(st.data(), st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_positions_are_read_as_they_were_written(data: st.DataObject, size: int) -> None:
    at = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))))
    packed = _pack_positions(at, size)
    assert np.array_equal(_unpack_positions(packed, len(at), size), at)
    assert len(packed) * 8 < min(size, len(at) * (3 + np.log2(size / len(at)))) + 8, "more than the page says"


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_every_size_of_a_sparse_row_is_exact(size: int, k: int) -> None:
    k = min(k, size)
    for count in range(k + 1):  # also with fewer numbers than there is room for
        row = np.zeros(size, np.float32)
        row[np.random.default_rng(count).choice(size, count, replace=False)] = 1.5
        same_bits(SparseEncoding(k, Plain("float32")), row)


def test_bytes_by_hand() -> None:
    two = np.array([2, -1], "<f4").tobytes()
    # positions 0 and 3 of 4: a map of four bits is shortest
    near = np.array([2, 0, 0, -1], np.float32)
    assert same_bits(SparseEncoding(2, Plain("float32")), near) == two + bytes([0b10010000])
    # 2 and 7 of 8: without their lowest bit 1 and 3, written as the steps 01 001; then the lowest bits 0 and 1
    far = np.array([0, 0, 2, 0, 0, 0, 0, -1], np.float32)
    assert same_bits(SparseEncoding(2, Plain("float32")), far) == two + bytes([0b01001010])
    # a step of 0.5 and levels −3, 0, 3 as 0, 3, 6 in three bits, lowest first: 000 110 011
    levels = np.array([-1.5, 0, 1.0], np.float32)
    assert same_bits(Levels(3, "float32"), levels) == np.array([0.5], "<f4").tobytes() + bytes([0b00011010, 0b10000000])
    signs = np.array([0.25, -0.25, -0.25], np.float32)
    assert same_bits(Signs("float32"), signs) == np.array([0.25], "<f4").tobytes() + bytes([0b01100000])
    with_weight = np.array([0.25, -0.25, 7], np.float32)
    assert same_bits(WithTail(Signs("float32"), "float32"), with_weight)[-4:] == np.array([7], "<f4").tobytes()


def test_the_two_layer_net_in_bytes() -> None:
    """199,210 numbers, 796,840 bytes plain: what the page of compression says."""
    n = 199_210
    assert SparseEncoding(1992, Plain("float32")).bytes(n) == 10_100
    assert SparseEncoding(1992, Levels(8, "float32")).bytes(n) == 4_128
    assert [Levels(bits, "float32").bytes(n) for bits in (8, 4, 2)] == [199_214, 99_609, 49_807]
    assert Signs("float32").bytes(n) == 24_906


FORMS = {
    "sparse": (TopK(0.1, feedback=False), False), "map": (TopK(0.5, feedback=False), True),
    "levels": (Quantise(5), False), "bits": (Quantise(1), True), "signs": (Sign(False), True),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_bytes_are_refused_or_harmless(name: str, data: st.DataObject) -> None:
    stage, weighted = FORMS[name]
    row = np.random.default_rng(3).normal(size=41).astype(np.float32)
    encoding, out = encoded(stage, row, weighted=weighted)
    packed = bytearray(encoding.pack(out))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(packed) - 1), st.integers(0, 255)), max_size=4)):
        packed[at] = value
    cut = data.draw(st.integers(-3, 3))
    damaged = bytes(packed)[:cut] if cut < 0 else bytes(packed) + bytes(cut)
    try:
        read = encoding.unpack(damaged, 41)
    except ValueError:
        return
    assert cut == 0, "bytes of another length were read"
    assert read.shape == (41,)
    assert read.dtype == np.float32
    assert np.isfinite(read).all()


@pytest.mark.parametrize(("encoding", "packed", "size", "words"), [
    (Plain("float32"), b"123", 1, "3 bytes were sent where 4"),
    (Plain("float32"), np.array([np.nan], "<f4").tobytes(), 1, "not finite"),
    (Signs("float32"), np.array([np.inf], "<f4").tobytes() + b"\0", 3, "not finite"),
    (Signs("float32"), np.array([-1], "<f4").tobytes() + b"\0", 3, "zero or above"),
    (Signs("float32"), np.array([1], "<f4").tobytes() + b"\1", 3, "behind the last"),
    (Levels(8, "float32"), np.array([3e38], "<f4").tobytes() + b"\0", 1, "multiples are not finite"),
    (Levels(2, "float32"), np.array([1], "<f4").tobytes() + b"\xc0", 1, "a level beyond 1"),
    (SparseEncoding(2, Plain("float32")), bytes(8) + bytes([0b10000000]), 8, "1 positions"),
    (SparseEncoding(2, Plain("float32")), bytes(8) + bytes([0b11000000, 0]), 32, "do not rise"),
    (SparseEncoding(1, Plain("float32")), bytes(4) + bytes([0b00111000]), 9, "reach beyond 9"),
])  # fmt: skip
def test_what_is_wrong_is_said(encoding: Encoding, packed: bytes, size: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encoding.unpack(packed, size)


@pytest.mark.parametrize("encoding", [SparseEncoding(1, Plain("float32")), Levels(3, "float32"), Signs("float32")])
def test_a_row_that_was_not_encoded_is_not_written(encoding: Encoding) -> None:
    with pytest.raises(ValueError, match="encode"):
        encoding.pack(np.array([1.0, 2.5, 1e-7], np.float32))
