"""What travels between a server and a party of a sum: the questions of the plain sums, and messages of protocols."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.core.question import Exposure, Layout, Leaf, Question, Range
from atoll.core.wire import Setting, Wire

MAX_WEIGHT = 1e12
MAX_NUMBER = 1e30  # of a vector: a sum of millions stays finite


def answer_layout(wire: Wire) -> Layout:
    """What one party's answer to "contribute" looks like where this is its wire."""
    real = wire.ring is None
    # In a ring any integer may be a masked one, and noise of a party's own may carry its weight anywhere.
    visible = wire.weighted and real and not wire.noised("local")
    weight = Range(0.0, MAX_WEIGHT, strict=True) if visible else None
    span = Range(-MAX_NUMBER, MAX_NUMBER) if real else None
    # A wire says how long a vector is at most: who sends a longer one has not clipped it.
    length = wire.l2 if real else None
    vector = Leaf(wire.row.dtype, (1, wire.row.size), finite=real, range=span, weight=weight, length=length)
    return Layout({"finite": Leaf("bool", (1,)), "vector": vector})


def contribute(wire: Wire, setting: Setting, body: Layout, learns: str) -> Question:
    """Declare the question for a vector as it is; `learns` says what the server learns by the answer."""
    exposure: Exposure = "noised" if wire.noised("local") else "plain"
    written = {"vector": wire.row.encoding} if wire.row.encoding is not None else {}
    return Question(
        f"{setting.phase}/contribute", body, answer_layout(wire), reveals={"server": learns}, exposure=exposure,
        contributes=True, encodings=written,
    )  # fmt: skip


def step(
    setting: Setting,
    name: str,
    asks: Layout | None,
    sizes: tuple[int, int],
    reveals: Mapping[str, str],
    exposure: Exposure = "nothing",
) -> Question:
    """Declare one step of a protocol.

    Args:
        setting: the phase and world that the protocol is part of.
        name: kind of the protocol and step, such as "secure.masked".
        asks: what is asked beside the message; None for the number of the round only.
        sizes: bytes at most, of the answer and of the message it answers.
        reveals: who learns what by the answer.
        exposure: how a party's data leaves it with the answer.
    """
    up, down = sizes
    leaves = {"t": Leaf("int")} if asks is None else asks.leaves
    given = Layout({**leaves, "message": Leaf("uint8", (down,), upto=True)})
    answer = Layout({"message": Leaf("uint8", (up,), upto=True)})
    gives = exposure != "nothing"
    full = f"{setting.phase}/{name}"
    return Question(full, given, answer, reveals=reveals, exposure=exposure, contributes=gives)
