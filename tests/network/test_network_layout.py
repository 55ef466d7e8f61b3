"""What parties send is held against a layout: every fault is refused with the right word, in every place of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import atoll
from atoll.combine.layouts import answer_layout
from atoll.core.question import Fault, Layout, Leaf, Range
from atoll.core.wire import Wire, chain
from atoll.data import build
from atoll.job.assemble import assemble
from atoll.runtimes.network.messages.trees import read_tree, write_tree

MB = 2**20
DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "complex64",
]  # fmt: skip
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def refused(reason: str, tree: Any, schema: Layout) -> str:
    with pytest.raises(Fault) as caught:
        read_tree(write_tree(tree), MB, schema=schema)
    assert caught.value.reason == reason, str(caught.value)
    return str(caught.value)


@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), shapes, shapes)
@settings(max_examples=200, deadline=None)
def test_only_the_exact_type_and_shape_passes(a: str, b: str, one: Any, other: Any) -> None:
    layout, tree = Layout({"x": Leaf(a, one)}), {"x": np.zeros(other, b)}
    if (a, one) == (b, other):
        read_tree(write_tree(tree), MB, schema=layout)
    else:
        refused("dtype" if a != b else "shape", tree, layout)


# What parties send: the faults of F4

WEIGHED = chain(atoll.Weigh())(Wire.of(64, 10))[0]
RING = chain(atoll.Clip(1.0), atoll.Average(by="expected"), atoll.Ring())(Wire.of(64, 10))[0]


def answer(wire: Wire, **other: Any) -> dict[str, Any]:
    vector = np.ones((1, wire.row.size), wire.row.dtype)
    return {"vector": vector, "finite": np.ones(1, bool), **other}


def vector(wire: Wire, at: int, value: float) -> dict[str, Any]:
    tree = answer(wire)
    tree["vector"][0, at] = value
    return tree


@pytest.mark.parametrize("wire", [Wire.of(64, 10), Wire.of(64, 10, "float64"), WEIGHED, RING])
def test_a_right_answer_is_read(wire: Wire) -> None:
    layout = answer_layout(wire)
    data = write_tree(answer(wire))
    assert layout.max_bytes == len(data)
    found = read_tree(data, layout.max_bytes, schema=layout)
    assert np.array_equal(found["vector"], answer(wire)["vector"])
    assert found["finite"].all()


F4 = {
    "NaN": ("not finite", vector(WEIGHED, 3, np.nan)),
    "Inf": ("not finite", vector(WEIGHED, 0, np.inf)),
    "-Inf": ("not finite", vector(WEIGHED, 63, -np.inf)),
    "shorter": ("shape", answer(WEIGHED, vector=np.ones((1, 64), np.float32))),
    "broadcastable (1, 1)": ("shape", answer(WEIGHED, vector=np.ones((1, 1), np.float32))),
    "broadcastable (65,)": ("shape", answer(WEIGHED, vector=np.ones(65, np.float32))),
    "broadcastable ()": ("shape", answer(WEIGHED, vector=np.ones((), np.float32))),
    "turned": ("shape", answer(WEIGHED, vector=np.ones((65, 1), np.float32))),
    "two rows": ("shape", answer(WEIGHED, vector=np.ones((2, 65), np.float32))),
    "no row": ("shape", answer(WEIGHED, vector=np.ones((0, 65), np.float32))),
    "another type": ("dtype", answer(WEIGHED, vector=np.ones((1, 65), np.float64))),
    "whole numbers": ("dtype", answer(WEIGHED, vector=np.ones((1, 65), np.int32))),
    "a plain number": ("dtype", answer(WEIGHED, vector=1.0)),
    "a text": ("dtype", answer(WEIGHED, vector="nan")),
    "an empty branch": ("dtype", answer(WEIGHED, vector={})),
    "finite as a number": ("dtype", answer(WEIGHED, finite=np.ones(1, np.uint8))),
    "a plain finite": ("dtype", answer(WEIGHED, finite=True)),
    "another name": ("name", {"vectors": np.ones((1, 65), np.float32), "finite": np.ones(1, bool)}),
    "no vector": ("name", {"finite": np.ones(1, bool)}),
    "no finite": ("name", {"vector": np.ones((1, 65), np.float32)}),
    "nothing": ("name", {}),
    "a fact": ("name", answer(WEIGHED, **{"fact.clipped": np.ones(1)})),
    "a branch": ("name", answer(WEIGHED, more={"vector": np.ones((1, 65), np.float32)})),
    "weight -5": ("weight", vector(WEIGHED, -1, -5)),
    "weight 0": ("weight", vector(WEIGHED, -1, 0)),
    "weight -0": ("weight", vector(WEIGHED, -1, -0.0)),
    "weight NaN": ("weight", vector(WEIGHED, -1, np.nan)),
    "weight Inf": ("weight", vector(WEIGHED, -1, np.inf)),
    "weight 1e18": ("weight", vector(WEIGHED, -1, 1e18)),
}


@pytest.mark.parametrize("case", F4)
def test_wrong_answers_are_refused_with_the_right_word(case: str) -> None:
    reason, tree = F4[case]
    refused(reason, tree, answer_layout(WEIGHED))


def test_sentences_say_what_was_sent() -> None:
    layout = answer_layout(WEIGHED)
    said = refused("weight", F4["weight -5"][1], layout)
    assert said == "leaf 'vector' has weights [-5.0]: one is above 0 and at most 1e+12"
    said = refused("shape", F4["broadcastable (1, 1)"][1], layout)
    assert said == "leaf 'vector' has shape (1, 1), not (1, 65)"


@pytest.mark.parametrize("weight", [1e-30, 1.0, 1e12])
def test_weights_in_range_pass(weight: float) -> None:
    wire = replace(WEIGHED, row=replace(WEIGHED.row, dtype="float64"))
    read_tree(write_tree(vector(wire, -1, weight)), MB, schema=answer_layout(wire))


def test_the_last_number_is_a_weight_only_where_the_wire_says_so() -> None:
    read_tree(write_tree(vector(Wire.of(64, 10), -1, -5)), MB, schema=answer_layout(Wire.of(64, 10)))
    noisy = chain(atoll.Clip(1.0), atoll.Weigh(max_weight=100), atoll.Gaussian(1.0, where="local"))(Wire.of(64, 10))[0]
    assert noisy.weighted
    read_tree(write_tree(vector(noisy, -1, -5)), MB, schema=answer_layout(noisy))
    refused("not finite", vector(noisy, -1, np.nan), answer_layout(noisy))


CLIPPED = [
    chain(atoll.Clip(2.0), atoll.Average())(Wire.of(64, 10))[0],
    chain(atoll.Clip(2.0), atoll.Average(by="expected"), atoll.Gaussian(1.0))(Wire.of(64, 10))[0],
]


@pytest.mark.parametrize("wire", CLIPPED)
def test_who_has_not_clipped_is_refused(wire: Wire) -> None:
    layout, row = answer_layout(wire), np.full((1, wire.row.size), 2 / np.sqrt(wire.row.size), np.float32)
    read_tree(write_tree(answer(wire, vector=row)), MB, schema=layout)
    said = refused("length", answer(wire, vector=row * np.float32(1.001)), layout)
    assert "2.002 long, and at most 2 by the job" in said


def test_noise_of_a_party_may_carry_its_vector_anywhere() -> None:
    wire = chain(atoll.Clip(2.0), atoll.Average(), atoll.Gaussian(1.0, where="local"))(Wire.of(64, 10))[0]
    read_tree(write_tree(answer(wire, vector=np.full((1, 64), 9, np.float32))), MB, schema=answer_layout(wire))


def test_numbers_whose_sum_would_not_be_finite_are_refused() -> None:
    read_tree(write_tree(vector(WEIGHED, 3, -1e29)), MB, schema=answer_layout(WEIGHED))
    refused("range", vector(WEIGHED, 3, -3e38), answer_layout(WEIGHED))


FIGURES = {"n": np.array([4.0]), "loss": np.array([2.5]), "correct": np.array([3.0])}


def test_figures_of_an_evaluation_are_counts() -> None:
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()))
    question = assemble(job, build({"use": "digits", "clients": 3, "test": 0.2})).questions(3)["evaluate/local"]
    layout = question.answers
    assert not question.contributes
    for right in ({}, {"correct": np.array([4.0])}, {"correct": np.array([0.0])}, {"loss": np.array([-9.0])}):
        read_tree(write_tree(FIGURES | right), MB, schema=layout)
    for wrong in ({"n": np.array([-5.0])}, {"correct": np.array([1e18])}, {"n": np.array([1e18])}):
        refused("range", FIGURES | wrong, layout)
    assert "above those of 'n'" in refused("range", FIGURES | {"correct": np.array([4.5])}, layout)
    refused("not finite", FIGURES | {"loss": np.array([np.nan])}, layout)


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        ({"x": Leaf("float32", (2,), within="y")}, "no leaf of its shape"),
        ({"x": Leaf("float32", (2,), within="y"), "y": Leaf("float32", (3,))}, "no leaf of its shape"),
        ({"x": Leaf("float", within="y"), "y": Leaf("str")}, "no leaf of its shape"),
    ],
)
def test_a_leaf_is_held_against_one_like_it(leaves: dict[str, Leaf], words: str) -> None:
    with pytest.raises(Fault, match=words):
        Layout(leaves)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", ()), ("float32", (3, 0)), ("uint32", (3,)), ("complex64", (3,))]
)
def test_only_rows_of_real_numbers_have_a_length(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(Fault):
        Leaf(dtype, shape, length=1.0)


@pytest.mark.parametrize("width", [32, 64])
def test_in_a_ring_any_number_passes_but_no_other_type(width: int) -> None:
    wire = chain(atoll.Clip(1.0), atoll.Weigh(max_weight=100), atoll.Ring(width=width))(Wire.of(64, 10))[0]
    assert wire.row.dtype == f"uint{width}"
    assert wire.weighted
    layout = answer_layout(wire)
    for value in (0, 1, 2**31, 2**width - 1):
        row = np.full((1, wire.row.size), value, wire.row.dtype)
        read_tree(write_tree(answer(wire, vector=row)), MB, schema=layout)
    for dtype in (f"int{width}", f"float{width}", "uint32" if width == 64 else "uint64"):
        refused("dtype", answer(wire, vector=np.zeros((1, wire.row.size), dtype)), layout)


# Layouts


def test_ranges_hold_what_they_say() -> None:
    closed, strict = Range(0, 2), Range(0, 2, strict=True)
    assert closed.holds(np.array([0, 1, 2]))
    assert not strict.holds(np.array([0, 1, 2]))
    assert strict.holds(np.array([1e-300, 2]))
    for r in (closed, strict):
        assert r.holds(np.array([]))
        for bad in (-1.0, 2.1, np.nan, np.inf, -np.inf):
            assert not r.holds(np.array([1.0, bad]))
    assert not Range(0, np.nan).holds(np.array([0.0]))
    assert not Range(np.nan, 1).holds(np.array([0.0]))


@pytest.mark.parametrize(
    ("leaf", "value", "reason"),
    [
        (Leaf("int", range=Range(0, 10)), 11, "range"),
        (Leaf("int", range=Range(0, 10)), -1, "range"),
        (Leaf("int"), True, "dtype"),
        (Leaf("int"), 1.0, "dtype"),
        (Leaf("float"), 1, "dtype"),
        (Leaf("float"), float("nan"), "not finite"),
        (Leaf("float"), float("-inf"), "not finite"),
        (Leaf("float", finite=False, range=Range(0, 1)), float("nan"), "range"),
        (Leaf("str"), None, "dtype"),
        (Leaf("none"), "", "dtype"),
        (Leaf("bool"), np.zeros((), bool), "dtype"),
        (Leaf("bool", ()), True, "dtype"),
        (Leaf("int64", (2,), range=Range(0, 10)), np.array([0, 11]), "range"),
        (Leaf("complex64", (2,)), np.array([0, complex(0, np.nan)], np.complex64), "not finite"),
        (Leaf("complex64", (2,)), np.array([complex(np.inf, 0), 0], np.complex64), "not finite"),
        (Leaf("float16", (2,)), np.array([0, np.inf], np.float16), "not finite"),
        (Leaf("float32", (2, 2), weight=Range(0, 1, strict=True)), np.array([[9, 1], [9, 0]], np.float32), "weight"),
    ],
)
def test_layouts_refuse_other_values(leaf: Leaf, value: Any, reason: str) -> None:
    refused(reason, {"x": value}, Layout({"x": leaf}))
    with pytest.raises(Fault) as caught:
        Layout({"x": leaf}).check({"x": value})
    assert caught.value.reason == reason


def test_layouts_let_pass_what_they_ask_for() -> None:
    layout = Layout({"nan": Leaf("float32", (2,), finite=False), "t": Leaf("int", range=Range(0, 5)), "s": Leaf("str")})
    layout.check({"nan": np.array([np.nan, np.inf], np.float32), "t": 5, "s": ""})
    assert layout.max_bytes > 2**21
    Layout({"x": Leaf("float32", (0, 3), range=Range(0, 1))}).check({"x": np.zeros((0, 3), np.float32)})
    Layout({}).check({})


@pytest.mark.parametrize("leaf", [("float128", (1,)), ("object", (1,)), ("int", (1,)), ("float32", None), ("", None)])
def test_layouts_know_their_types(leaf: Any) -> None:
    with pytest.raises(Fault, match="such a leaf is one of"):
        Leaf(*leaf)
    raw = msgspec.msgpack.encode({"leaves": {"x": {"dtype": leaf[0], "shape": leaf[1]}}})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(raw, type=Layout)


@pytest.mark.parametrize("shape", [None, (), (3, 0)])
def test_a_weight_needs_a_last_number(shape: Any) -> None:
    with pytest.raises(Fault, match="no last number"):
        Leaf("float" if shape is None else "float32", shape, weight=Range(0, 1))
