"""Compressed rows travel in their encoding; whatever else comes in its place is refused before it is used."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.combine.layouts import contribute
from atoll.core.question import Fault, Layout, Question
from atoll.core.wire import EncodeContext, Setting, Stage, Wire, chain
from atoll.core.world import World
from atoll.runtimes.network.messages.answers import read_answer, travels, write_answer
from atoll.runtimes.network.messages.trees import write_tree

STAGES: dict[str, tuple[Stage, ...]] = {
    "top k": (atoll.Weigh(), atoll.TopK(0.1)),
    "top k as a map": (atoll.Average(), atoll.TopK(0.6)),
    "top k, quantised": (atoll.Weigh(), atoll.TopK(0.1), atoll.Quantise(5)),
    "levels": (atoll.Weigh(), atoll.Quantise(7)),
    "one bit": (atoll.Average(), atoll.Quantise(1)),
    "signs": (atoll.Clip(1.0), atoll.Average(), atoll.Sign(feedback=False)),
    "rotated signs": (atoll.Weigh(), atoll.Rotate(), atoll.Sign(False, "drive")),
    "random k, quantised": (atoll.Weigh(), atoll.RandomK(0.5, feedback=False), atoll.Quantise(8)),
}
SIZE = 300


def made(stages: tuple[Stage, ...], size: int = SIZE) -> tuple[Question, dict[str, Any]]:
    """A question for a vector, and an honest answer to it."""
    wire, codec = chain(*stages)(Wire.of(size, 3, shapes=((size,),)))
    row = np.random.default_rng(0).normal(size=(1, size)).astype(np.float32)
    out = codec.encode(row, {}, EncodeContext(np.full(1, 7.0, np.float32), World(0), 0, np.arange(1))).x
    question = contribute(wire, Setting("train", World(0)), Layout({}), "a vector")
    return question, {"vector": out, "finite": np.ones(1, bool)}


MADE = {name: made(stages) for name, stages in STAGES.items()}


@pytest.mark.parametrize("name", STAGES)
def test_an_answer_is_read_to_the_same_bits_and_takes_the_bytes_of_its_encoding(name: str) -> None:
    question, answer = MADE[name]
    data = write_answer(question, answer)
    read = read_answer(question, data)
    assert read["vector"].dtype == answer["vector"].dtype
    assert read["vector"].tobytes() == answer["vector"].tobytes()
    assert len(data) == travels(question).max_bytes
    rest = len(write_tree({"vector": np.zeros((1, 0), np.uint8), "finite": np.ones(1, bool)}))
    encoded = question.encodings["vector"].bytes(answer["vector"].shape[1])
    assert encoded <= len(data) <= encoded + rest + 16  # of which names and shapes are some more
    assert len(data) < len(write_tree(answer))


def told(question: Question, data: bytes) -> Any:
    try:
        return read_answer(question, data)
    except Fault as fault:
        return fault


@pytest.mark.parametrize("name", STAGES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_encoding_is_refused_in_a_sentence_or_is_a_vector_of_the_job(name: str, data: st.DataObject) -> None:
    question, answer = MADE[name]
    whole = bytearray(write_answer(question, answer))
    start = len(whole) - question.encodings["vector"].bytes(answer["vector"].shape[1]) - 2
    at = st.integers(data.draw(st.sampled_from([0, start])), len(whole) - 1)
    for place, value in data.draw(st.lists(st.tuples(at, st.integers(0, 255)), min_size=1, max_size=6)):
        whole[place] = value
    cut = data.draw(st.integers(-2, 2))
    read = told(question, bytes(whole[:cut] if cut < 0 else whole + bytes(cut)))
    if isinstance(read, Fault):
        assert str(read).isprintable()
        assert len(str(read)) <= 1000
        return
    assert cut == 0
    question.answers.check(read)
    assert read_answer(question, write_answer(question, read))["vector"].tobytes() == read["vector"].tobytes()


@pytest.mark.parametrize("name", STAGES)
def test_plain_numbers_in_the_place_of_an_encoding_are_refused(name: str) -> None:
    question, answer = MADE[name]
    with pytest.raises(Fault):
        read_answer(question, write_tree(answer))


@pytest.mark.parametrize("name", STAGES)
def test_reading_takes_memory_by_the_size_of_the_job_s_vector(name: str) -> None:
    """A block of numbers is spread into bits at a time: as a whole they would take 64 bytes and more a number."""
    question, answer = made(STAGES[name], size=400_000)
    data = write_answer(question, answer)
    tracemalloc.start()
    read_answer(question, data)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 * answer["vector"].nbytes + 2**21


def test_a_row_that_its_stage_did_not_encode_is_not_sent() -> None:
    question, answer = MADE["levels"]
    with pytest.raises(Fault, match="encode it first"):
        write_answer(question, answer | {"vector": np.sqrt(np.arange(SIZE + 1, dtype=np.float32))[None]})
