"""Every channel in two rounds of a real job: the sum that a simulation adds up equals its protocol, bit for bit.

The served runs of tests/network/test_network_equal.py are the third side of this law.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.tree import Array, Tree
from atoll.core.wire import ClientSide, Combine, Stage, Train
from atoll.crypto.keys import Abort
from atoll.data.federated import Federated
from atoll.runtimes.run import Peers

CLIP, MEAN, NOISE = atoll.Clip(0.5), atoll.Average("expected"), atoll.Gaussian(0.3, "distributed", honest=0.5)
HIDDEN: dict[str, Combine] = {
    "secure": atoll.SecureSum(),
    "sparse": atoll.SecureSum(sparse=True),
    "light": atoll.LightSum(),
    "encrypted": atoll.EncryptedSum(),
    "two holders": atoll.EncryptedSum(key_holders=2),
    "ckks": atoll.EncryptedSum("ckks"),
}
RINGS: dict[str, tuple[Stage, ...]] = {
    "average": (CLIP, atoll.Average(), atoll.Ring()),
    "weighing": (CLIP, atoll.Weigh(max_weight=40), atoll.Ring()),
    "noise": (CLIP, MEAN, atoll.Ring(), NOISE),
    "adaptive clip": (atoll.Clip(0.5, quantile=0.5), MEAN, atoll.Ring()),
    "rotate": (CLIP, MEAN, atoll.Rotate(), atoll.Ring()),
    "random k": (CLIP, MEAN, atoll.RandomK(0.25, feedback=False), atoll.Ring()),
    "low rank": (atoll.LowRank(2), CLIP, MEAN, atoll.Ring()),
    "compression and noise": (CLIP, MEAN, atoll.RandomK(0.25, feedback=False), atoll.Ring(), NOISE),
}
OTHERS: dict[str, tuple[tuple[Stage, ...], Combine]] = {
    "fedavg": ((atoll.Weigh(),), atoll.Sum()),
    "ring": ((CLIP, MEAN, atoll.Ring()), atoll.Sum()),
    "central noise": ((CLIP, MEAN, atoll.Gaussian(0.3)), atoll.Sum()),
    "local noise": ((CLIP, MEAN, atoll.Gaussian(0.3, "local")), atoll.Sum()),
    "top k": ((atoll.Weigh(), atoll.TopK(0.1)), atoll.Sum()),
    "sign": ((atoll.Average(), atoll.Sign()), atoll.Sum()),
    "quantise": ((atoll.Weigh(), atoll.Rotate(), atoll.Quantise(4)), atoll.Sum()),
    "low rank": ((atoll.Weigh(), atoll.LowRank(2)), atoll.Sum()),
    "mean": ((atoll.Average(),), atoll.Each(atoll.Mean())),
    "median": ((atoll.Average(),), atoll.Each(atoll.Median())),
    "trimmed mean": ((atoll.Average(),), atoll.Each(atoll.TrimmedMean(2))),
    "buffered": ((atoll.Weigh(),), atoll.Buffered(5)),
}


@pytest.fixture(scope="module")
def ten() -> Federated:
    """Ten parties of 3 to 30 samples."""
    generator = np.random.default_rng(3)
    parts = []
    for n in range(3, 33, 3):
        x = generator.normal(size=(n, 6)).astype(np.float32)
        parts.append((x, (x.sum(1) > 0).astype(np.int32)))
    return atoll.data.federate(parts, classes=2)


def job(stages: tuple[Stage, ...], combine: Combine, **more: Any) -> atoll.Job:
    method = atoll.FedAvg(atoll.models.mlp((16,)), batch=5, lr=0.1)
    return atoll.Job(method, atoll.All(), atoll.Channel(stages, combine), rounds=2, eval_every=2, **more)


def pairs() -> list[Any]:
    """All pairs; encryption is slow, so that of its pairs one a day is run, and the rest at night."""
    slow = {"encrypted", "two holders", "ckks"}
    often = [(channel, name) for name in HIDDEN for channel in RINGS if name not in slow or channel == "weighing"]
    rest = [(channel, name) for name in HIDDEN for channel in RINGS if (channel, name) not in often]
    return [*often, *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in rest)]


@pytest.mark.parametrize(("channel", "name"), pairs())
def test_a_hidden_sum_equals_its_protocol(channel: str, name: str, ten: Federated) -> None:
    if name == "ckks":
        pytest.importorskip("tenseal")
    # A sparse sum with dropouts is not equal: see below.
    for drop in (0.0,) if name == "sparse" else (0.0, 0.1):
        made = job(RINGS[channel], HIDDEN[name], availability=atoll.Always(drop))
        fast = atoll.simulate(made, ten, seed=1, workers=0)
        protocol = atoll.simulate(made, ten, seed=1, workers=0, protocols=True)
        assert fast.vector.tobytes() == protocol.vector.tobytes()
        assert answered(fast) == answered(protocol)
        assert (sum(answered(fast)) < 20) == (drop > 0), "parties are lost where they should be"


@pytest.mark.parametrize("name", OTHERS)
def test_a_plain_sum_or_rule_has_no_other_protocol(name: str, ten: Federated) -> None:
    for drop in (0.0, 0.1):
        made = job(*OTHERS[name], availability=atoll.Always(drop))
        runs = [atoll.simulate(made, ten, seed=1, workers=0, protocols=protocols) for protocols in (False, True)]
        assert runs[0].vector.tobytes() == runs[1].vector.tobytes()


def answered(run: atoll.Run) -> list[int]:
    return [fact["answered"] for fact in run.facts if fact["what"] == "round"]


# --- sums over own test data ------------------------------------------------------------------------------------------


def evaluated(run: atoll.Run) -> list[dict[str, Any]]:
    """What is said of the parties' own test data, but for times."""
    told = [f for f in run.facts if f["what"] in ("evaluation", "unevaluated") and f["split"] == "local"]
    return [{name: value for name, value in f.items() if name not in ("time", "seconds", "compile")} for f in told]


@pytest.fixture(scope="module")
def own() -> Federated:
    return atoll.data.load("diabetes").split(10, test=0.3, seed=0)


@pytest.mark.parametrize("name", HIDDEN)
def test_an_evaluation_through_a_hidden_sum_equals_its_protocol(name: str, own: Federated) -> None:
    """Also of sums that are negative; that parties are lost while they train changes nothing."""
    if name == "ckks":
        pytest.importorskip("tenseal")
    method = atoll.FedSGD(atoll.models.linear(), lr=0.1)
    channel = atoll.Channel([CLIP, atoll.Average(), atoll.Ring()], HIDDEN[name])
    lossy = atoll.Always(0.1)
    made = atoll.Job(method, atoll.All(), channel, rounds=1, metrics=[atoll.metrics.R2()], availability=lossy)
    fast = evaluated(atoll.simulate(made, own, seed=1, workers=0))
    assert fast == evaluated(atoll.simulate(made, own, seed=1, workers=0, protocols=True))
    assert [(f["round"], f["parties"]) for f in fast] == [(0, 10), (1, 10)]
    open_sums = replace(made, channel=atoll.Channel([CLIP, atoll.Average(), atoll.Ring()], atoll.Sum()))
    for hidden, plain in zip(fast, evaluated(atoll.simulate(open_sums, own, seed=1, workers=0)), strict=True):
        assert "each" in plain
        assert hidden.keys() == {key for key in plain if key != "each" and "." not in key}, "figures of single parties"
        assert all(hidden[key] == pytest.approx(plain[key], abs=1e-5) for key in ("mse", "r2"))


def test_too_few_for_an_evaluation_leave_no_figure(own: Federated, tmp_path: Path) -> None:
    made = job(RINGS["average"], HIDDEN["secure"])
    made = replace(made, method=atoll.FedSGD(atoll.models.linear(), lr=0.1))
    run, _ = with_leavers(made, own, range(4), "secure.masked")
    first, last = evaluated(run)
    assert first["what"] == "unevaluated"
    assert "nothing was opened" in first["why"]
    assert (last["what"], last["parties"]) == ("evaluation", 10)
    report = run.report(tmp_path / "report.html").read_text()
    assert "unevaluated: round 0" in report
    assert "Worst 10" not in report


# --- parties that leave between two questions of a protocol -----------------------------------------------------------


@dataclass(frozen=True)
class Leaving:
    """A party's side of a protocol; it ends before one question of the first round, and notes what it was asked."""

    inner: ClientSide
    step: str
    asked: set[str]

    def answer(self, step: str, body: Tree, train: Train) -> Tree:
        self.asked.add(step)
        if step == self.step and int(body["t"]) == 0:
            raise Abort("this party has left")
        return self.inner.answer(step, body, train)


@dataclass(frozen=True)
class Lost:
    """Parties whose answer of the first round never comes: what a simulation is told of those who left."""

    parties: tuple[int, ...]

    def lost(self, who: Array, t: int) -> Array:
        return np.isin(who, self.parties) & (t == 0)

    def latency(self, who: Array, t: int) -> Array:
        return np.ones(len(who))


def with_leavers(made: atoll.Job, data: Federated, who: Collection[int], step: str) -> tuple[atoll.Run, set[str]]:
    """Run the protocols of a job; these parties leave before this question. Return also what they were asked."""
    sides, asked = Peers.sides, set[str]()

    def leaving(peers: Peers, assembled: Any) -> Callable[[str, int], ClientSide]:
        side = sides(peers, assembled)
        return lambda phase, party: Leaving(side(phase, party), step if party in who else "", asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peers, "sides", leaving)
        return atoll.simulate(made, data, seed=1, workers=0, protocols=True), asked


def without(made: atoll.Job, data: Federated, who: Collection[int]) -> atoll.Run:
    """Run the fast sums of a job without these parties in the first round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atoll.runtimes.run.Dropouts", lambda *_: Lost(tuple(who)))
        return atoll.simulate(made, data, seed=1, workers=0)


def test_a_sparse_sum_with_a_dropout_equals_its_protocol(ten: Federated) -> None:
    made = job(RINGS["average"], HIDDEN["sparse"], availability=atoll.Always(0.1))
    runs = [atoll.simulate(made, ten, seed=1, workers=0, protocols=protocols) for protocols in (False, True)]
    parties = [[f["parties"] for f in run.facts if f["what"] == "round"] for run in runs]
    assert parties[0] == parties[1] == [list(range(10)), []]
    assert runs[0].vector.tobytes() == runs[1].vector.tobytes()


@pytest.mark.parametrize("channel", ["weighing", "noise", "random k", "low rank"])
@pytest.mark.parametrize("name", ["secure", "light", pytest.param("encrypted", marks=pytest.mark.nightly)])
def test_whoever_leaves_before_a_question_the_rest_is_summed(channel: str, name: str, ten: Federated) -> None:
    """Memory of stages and noise of those who left is as in a simulation in which they did not answer."""
    made = job(RINGS[channel], HIDDEN[name])
    whole, questions = with_leavers(made, ten, (), "")
    assert len(questions) >= (2 if name == "encrypted" else 3)
    in_the_sum = set()
    for step in sorted(questions):
        left, _ = with_leavers(made, ten, (9,), step)
        first, second = answered(left)
        assert second == 10, "who left a round is asked again in the next"
        in_the_sum.add(first)
        expected = without(made, ten, (9,) if first == 9 else ())
        assert left.vector.tobytes() == expected.vector.tobytes(), step
    assert in_the_sum == {9, 10}, "some leave before they have given anything, some after"
    assert without(made, ten, ()).vector.tobytes() == whole.vector.tobytes()
