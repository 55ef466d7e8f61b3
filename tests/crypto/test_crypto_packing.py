"""Slots: sums of packed vectors are exact up to the last permitted addition, and no further addition is permitted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.crypto.packing import Slots


@st.composite
def sums(draw: st.DrawFn) -> tuple[Slots, np.ndarray]:
    """Any slots and any vectors for them, with a liking for the ends of the range."""
    parties = draw(st.integers(1, 40))
    slots = Slots(draw(st.integers(1, 57)), parties, draw(st.sampled_from([2048, 3072])))
    low, high = slots.range
    added, count = draw(st.integers(1, parties)), draw(st.integers(0, 300))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    vectors = generator.integers(low, high, (added, count), endpoint=True)
    at_the_ends = generator.random((added, count)) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return slots, np.where(at_the_ends, generator.choice([low, high], (added, count)), vectors)


@given(sums())
@settings(max_examples=300, deadline=None)
def test_adding_plaintexts_adds_vectors(case: tuple[Slots, np.ndarray]) -> None:
    slots, vectors = case
    packed = [slots.pack(vector) for vector in vectors]
    total = [sum(column) for column in zip(*packed, strict=True)]
    assert all(0 <= m < 1 << (slots.key_bits - 1) for m in total), "below any n of that many bits"
    found = slots.unpack_sum(total, *vectors.shape)
    assert found.dtype == np.int64
    assert (found == vectors.sum(0)).all()


@given(sums(), st.data())
@settings(max_examples=50, deadline=None)
def test_one_step_out_of_range_is_refused_before_encryption(
    case: tuple[Slots, np.ndarray], data: st.DataObject
) -> None:
    slots, vectors = case
    low, high = slots.range
    vector = np.append(vectors[0], 0)
    vector[data.draw(st.integers(0, vector.size - 1))] = data.draw(st.sampled_from([low - 1, high + 1]))
    with pytest.raises(ValueError, match=f"{slots.bits} bits hold {low} to {high}"):
        slots.pack(vector)


@pytest.mark.parametrize(
    ("bits", "slot", "per_plaintext", "bytes_a_value"), [(16, 24, 85, 6.0), (24, 32, 63, 8.1), (32, 40, 51, 10.0)]
)
def test_the_table_of_the_page(bits: int, slot: int, per_plaintext: int, bytes_a_value: float) -> None:
    slots = Slots(bits, 256)
    assert slots.slot_bits == 8 * slots.slot_bytes == slot
    assert slots.per_plaintext == per_plaintext
    assert round(512 / slots.per_plaintext, 1) == bytes_a_value


def test_one_byte_slots_by_hand() -> None:
    """Three bits hold −4 to 3, stored as 0 to 7; the first value is the lowest byte."""
    slots = Slots(bits=3, parties=32)
    assert slots.slot_bytes == 1
    assert slots.pack(np.array([-4, -3, 3])) == [0x07_01_00]
    assert slots.unpack_sum([0x07_01_00 * 2], 2, 3).tolist() == [-8, -6, 6]
    assert slots.unpack_sum([0x00_07_07], 1, 3).tolist() == [3, 3, -4]


@pytest.mark.parametrize("parties", [1, 2, 3, 4, 255, 256, 257])
def test_headroom_is_enough_for_all_parties_and_no_wider(parties: int) -> None:
    slots = Slots(8, parties)
    low, high = slots.range
    assert 2 ** (slots.slot_bits - 1) <= parties * 2**8 <= 2**slots.slot_bits
    for extreme in (low, high):
        (packed,) = slots.pack(np.full(slots.per_plaintext, extreme))
        found = slots.unpack_sum([packed * parties], parties, slots.per_plaintext)
        assert (found == parties * extreme).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_any_integer_type_is_packed(dtype: str) -> None:
    slots = Slots(16)
    assert slots.pack(np.arange(100).astype(dtype)) == slots.pack(np.arange(100))


def test_what_is_no_vector_of_integers_is_refused() -> None:
    for bad in (np.zeros(3), np.zeros((2, 2), int), np.array(3), np.array([True]), np.array([1, None])):
        with pytest.raises(ValueError, match="only a vector of integers can be packed"):
            Slots().pack(bad)
    with pytest.raises(ValueError, match="16 bits hold -32768 to 32767"):
        Slots().pack(np.array([2**64 - 1], np.uint64))


def test_nothing_packs_to_nothing() -> None:
    assert Slots().pack(np.zeros(0, int)) == []
    assert Slots().unpack_sum([], 1, 0).size == 0


def test_sums_that_cannot_be_are_refused() -> None:
    slots = Slots(3, 4)
    packed = slots.pack(np.array([3, 3]))
    for added in (0, 5, -1):
        with pytest.raises(ValueError, match=f"n_added={added}: these slots hold sums of 1 to 4 vectors"):
            slots.unpack_sum(packed, added, 2)
    with pytest.raises(ValueError, match="a slot above any sum of 1 vectors"):
        slots.unpack_sum([packed[0] * 2], 1, 2)
    with pytest.raises(ValueError, match="a slot above any sum of 1 vectors"):
        slots.unpack_sum(packed, 1, 1)  # a value where the padding is
    for count in (0, slots.per_plaintext + 1):
        with pytest.raises(ValueError, match=f"1 plaintexts for {count} values"):
            slots.unpack_sum(packed, 1, count)
    for bad in (-1, 1 << (8 * slots.per_plaintext * slots.slot_bytes)):
        with pytest.raises(ValueError, match="longer than its slots"):
            slots.unpack_sum([bad], 1, 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((0, 2), "both are at least 1"), ((4, 0), "both are at least 1"), ((63, 2), "a sum has 63 bits at most"),
        ((64, 1), "a sum has 63 bits at most"), ((16, 256, 8), "has no room for a slot"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Slots(*settings)


def test_the_widest_slots_are_exact() -> None:
    slots = Slots(62, 2)
    ends = np.array([*slots.range, 0, -1])
    assert (slots.unpack_sum([2 * m for m in slots.pack(ends)], 2, 4) == 2 * ends).all()
