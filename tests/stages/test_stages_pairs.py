"""What may stand next to what: a pair of stages is refused in a sentence, or gives the mean within its own error."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import atoll
from atoll.core.wire import DecodeContext, EncodeContext, Mismatch, Stage, Wire, chain
from atoll.core.world import World
from atoll.stages.low_rank import LowRank
from atoll.stages.noise import Gaussian
from atoll.stages.quantise import Quantise, Sign
from atoll.stages.ring import Ring
from atoll.stages.rotate import Rotate
from atoll.stages.sparsify import RandomK, TopK

PARTS: dict[str, Stage] = {
    "Weigh": atoll.Weigh(max_weight=50), "Average": atoll.Average(by="expected"), "Clip": atoll.Clip(10.0),
    "Ring": Ring(),
    "local": Gaussian(1e-3, "local"), "central": Gaussian(1e-3), "distributed": Gaussian(1e-3, "distributed"),
    "TopK": TopK(0.5, feedback=False), "RandomK": RandomK(0.9, feedback=False), "Quantise": Quantise(8),
    "Sign": Sign(feedback=False), "Rotate": Rotate(), "LowRank": LowRank(5, feedback=False),
    "TopK+": TopK(0.5), "RandomK+": RandomK(0.9), "Sign+": Sign(), "LowRank+": LowRank(5),
}  # fmt: skip

# First stage by row, second by column, in the order above; + has feedback, x is accepted.
TABLE = """
Weigh       ...xxx.xxxxxxxxxx
Average     ..xxxx.xxxxxxxxxx
Clip        xxxxxx.xxxxxxxxxx
Ring        ....xxx..........
local       xxx....xxxxxxxxxx
central     .................
distributed .................
TopK        .x.......x.......
RandomK     xxxxxx.xxxxx.....
Quantise    .x...............
Sign        .x...............
Rotate      xxxxxx.xxxxx.....
LowRank     xxxxxx.xxxxx.....
TopK+       .x.......x.......
RandomK+    xxx....xxxxx.....
Sign+       .x...............
LowRank+    xxx....xxxxx.....
"""


def accepted() -> set[tuple[str, str]]:
    rows = TABLE.strip().splitlines()
    marks = {name: row.split()[1] for name, row in zip(PARTS, rows, strict=True)}
    return {(a, b) for a in PARTS for b, mark in zip(PARTS, marks[a], strict=True) if mark == "x"}


WIRE = replace(Wire.of(29, 7, shapes=((6, 4), (5,))), l2=10.0)


@pytest.mark.parametrize("pair", [*product(PARTS, PARTS)], ids="-".join)
def test_pair(pair: tuple[str, str]) -> None:
    if pair in accepted():
        gives_the_mean(pair)
        return
    with pytest.raises(Mismatch, match=": ") as refusal:  # what is wrong, and a remedy
        chain(*(PARTS[name] for name in pair))(WIRE)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("names", [
    ("Clip", "RandomK", "Average", "Ring", "distributed"), ("Clip", "Rotate", "Average", "Ring", "distributed"),
    ("LowRank+", "Clip", "Weigh", "Ring", "distributed"), ("Clip", "Weigh", "Rotate", "Ring", "central"),
    ("RandomK+", "Clip", "Average", "central"), ("Clip", "local", "Average", "TopK+", "Quantise"),
    ("Weigh", "LowRank+", "Rotate", "Sign"), ("Weigh", "Rotate", "RandomK", "Quantise"), ("Weigh", "TopK+", "Quantise"),
], ids="-".join)  # fmt: skip
def test_longer_chains(names: tuple[str, ...]) -> None:
    gives_the_mean(names)


def gives_the_mean(names: tuple[str, ...]) -> None:
    wire, codec = chain(*(PARTS[name] for name in names))(WIRE)
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(7, 29)).astype(np.float32)
    weight = draw.integers(1, 50, 7).astype(np.float32)
    context = EncodeContext(weight, World(0), 1, np.arange(7))
    out, _, _ = codec.encode(rows, {}, context)
    got, _, _ = codec.decode(out.sum(0, dtype=out.dtype), codec.start, DecodeContext(7, World(0), 1))
    assert got.shape == (29,)

    share = (weight if wire.weighted else np.ones(7))[:, None]
    whole = share.sum() if wire.mean else 1.0
    expect = (share * rows).sum(0) / whole
    worst = (share[:, 0] * error_of(names, rows, context) * np.linalg.norm(rows, axis=1)).sum() / whole
    noise = 0.6 * share.max() / whole if wire.noise else 0.0
    off = np.linalg.norm(got - expect)
    assert off <= worst + noise + 2e-3 * np.linalg.norm(expect), "the mean is further off than the stages say"


def error_of(names: tuple[str, ...], rows: np.ndarray, context: EncodeContext) -> np.ndarray:
    """Bound each row's relative error by what the stages noted of theirs, one after the other."""
    wire, error = WIRE, np.zeros(7)
    for name in names:
        wire, codec = PARTS[name](wire)
        rows, _, facts = codec.encode(rows, {}, context._replace(stage_state=codec.start))
        mine = facts.get("error_share", np.zeros(7))
        if name == "RandomK":  # 29 / 26 times what was sent
            mine = np.hypot(mine, 29 / 26 - 1)
        error = error + mine * (1 + error)
    return error


def test_the_table_is_about_something() -> None:
    assert 60 < len(accepted()) < len(PARTS) ** 2 / 2
