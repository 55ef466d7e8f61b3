"""A buffer of answers: ages and weights by hand, who is asked when, what is given up, and that waiting costs time."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
import spawn
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.method import History, Population
from atoll.core.party import Group, Handler, Memory
from atoll.core.tree import Tree
from atoll.core.wire import Setting, Stage, Wire
from atoll.core.world import World
from atoll.data.federated import Federated, Silos
from atoll.job.file import from_table, to_table
from atoll.journal import Journal
from atoll.models import functions
from atoll.runtimes.local.simulator import Simulator
from atoll.testing import check_part, check_refusal

SETTING = Setting("model", World.simulated(0))


@dataclass
class Speeds:
    """A world in which every party takes as long as it takes, and some answers are lost."""

    seconds: Sequence[float]
    gone: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def lost(self, who: Any, t: int) -> Any:
        return np.isin(who, self.gone.get(t, ()))

    def latency(self, who: Any, t: int) -> Any:
        return np.asarray(self.seconds, float)[who]


@dataclass
class Scribe(Handler):
    """A handler that answers with (party, round) and writes down whom it was put to."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    split: str = "train"
    group_size: int = 4

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        self.asked += [(group.t, p) for p in group.me.tolist()]
        rows = np.stack([group.me, np.full(len(group), group.t)], axis=1).astype(np.float64)
        return {"vector": rows}, {}


def simulator(handler: Any, world: Speeds) -> Simulator:
    n = len(world.seconds)
    samples = Silos(np.zeros((n, 1)), np.zeros(n, np.int32), np.arange(n + 1))
    return Simulator({"model/contribute": handler}, {"train": samples}, World(), availability=world, journal=Journal())


def put(runtime: Simulator, to: Sequence[int], t: int, **how: Any) -> Replies:
    return runtime.ask(Ask(np.asarray(to), "model/contribute", {"t": t}, **how))


def channel(*stages: Stage, **settings: Any) -> atoll.Channel:
    return atoll.Channel(stages or (atoll.Weigh(),), atoll.Buffered(**settings))


def rounds(run: Any, name: str) -> list[Any]:
    return [f[name] for f in run.facts if f["what"] == "round" and name in f]


# --- the simulator ----------------------------------------------------------------------------------------------------


def test_the_earliest_are_handed_over_and_the_others_stay_at_work() -> None:
    runtime = simulator(Scribe(), Speeds([1.0, 3.0, 2.0, 10.0]))
    first = put(runtime, range(4), 0, goal=2, max_staleness=5)
    assert first.parties.tolist() == [0, 2]
    assert first.each["age"].tolist() == [0, 0]
    assert first.each["age"].dtype == np.int64
    assert first.facts["virtual"] == 2.0
    # Parties 1 and 3 are at work, so two are asked, in the order given: 2, then 0. Party 1 comes at 3, 0 at 2 + 1.
    second = put(runtime, [3, 2, 1, 0], 1, goal=2, max_staleness=5)
    assert second.facts["asked"] == 2
    assert second.parties.tolist() == [0, 1]  # at the same time, in the order of the parties
    assert second.each["age"].tolist() == [0, 1]
    assert second.each["vector"].tolist() == [[0, 1], [1, 0]]
    assert second.facts["virtual"] == 3.0


def test_what_is_too_old_is_dropped_and_its_party_asked_again() -> None:
    handler = Scribe()
    runtime = simulator(handler, Speeds([1.0, 100.0]))
    for t in range(4):
        replies = put(runtime, [0, 1], t, goal=1, max_staleness=2)
        assert replies.parties.tolist() == [0]
        assert replies.facts.get("stale", 0) == (t == 3)
    assert handler.asked == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (3, 1)]


def test_a_deadline_ends_the_wait_and_what_comes_later_counts_later() -> None:
    runtime = simulator(Scribe(), Speeds([1.0, 3.0, 10.0]))
    first = put(runtime, range(3), 0, within=2.0, max_staleness=5)
    assert first.parties.tolist() == [0]
    assert first.facts["virtual"] == 2.0  # the others were waited for until then
    second = put(runtime, [1, 2], 1, within=2.0, max_staleness=5)
    assert second.parties.tolist() == [1]
    assert second.each["age"].tolist() == [1]
    assert second.facts["virtual"] == 4.0
    third = put(runtime, [2], 2, within=2.0, max_staleness=5, goal=1)
    assert not len(third)
    assert third.facts["virtual"] == 6.0
    last = put(runtime, [2], 3, within=9.0, max_staleness=5, goal=1)
    assert last.parties.tolist() == [2]
    assert last.facts["virtual"] == 10.0  # enough is there before the deadline


def test_the_lost_are_free_at_once() -> None:
    handler = Scribe()
    runtime = simulator(handler, Speeds([1.0, 2.0], gone={0: (1,)}))
    assert put(runtime, [0, 1], 0, goal=2, max_staleness=5).facts["lost"] == 1  # nobody else is to come
    assert put(runtime, [0, 1], 1, goal=2, max_staleness=5).parties.tolist() == [0, 1]
    assert handler.asked == [(0, 0), (1, 0), (1, 1)]


def test_a_cohort_that_is_all_lost_answers_nothing_and_takes_no_time() -> None:
    runtime = simulator(Scribe(), Speeds([1.0, 2.0], gone={0: (0, 1)}))
    replies = put(runtime, [0, 1], 0, goal=1, max_staleness=5)
    assert len(replies) == 0
    assert replies.facts["virtual"] == 0.0


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 6), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_the_laws_of_late_answers(seed: int, at_work: int, goal: int, max_staleness: int) -> None:
    """Beside the simulator a record is kept of who must be at work; it knows nothing of clocks."""
    generator = np.random.default_rng(seed)
    gone = {t: tuple(np.nonzero(generator.random(12) < 0.2)[0].tolist()) for t in range(15)}
    handler = Scribe()
    runtime = simulator(handler, Speeds(generator.lognormal(size=12).tolist(), gone))
    working: dict[int, int] = {}
    clock = 0.0
    for t in range(15):
        given_up = {p for p, asked in working.items() if t - asked > max_staleness}
        working = {p: asked for p, asked in working.items() if p not in given_up}
        before = len(handler.asked)
        replies = put(runtime, generator.permutation(12)[:at_work].tolist(), t, goal=goal, max_staleness=max_staleness)
        new = {p for _, p in handler.asked[before:]}
        assert not new & working.keys(), "a party was asked while it worked"
        working |= dict.fromkeys(new, t)
        assert len(working) <= at_work, "more are at work than the cohort has"
        assert len(replies) == min(goal, len(working))
        assert replies.facts.get("stale", 0) == len(given_up)
        assert (np.diff(replies.parties) > 0).all()
        for p, age, row in zip(replies, replies.each.get("age", ()), replies.each.get("vector", ()), strict=True):
            assert row.tolist() == [p, working.pop(p)], "an answer belongs to another party or round"
            assert age == t - row[1]
            assert age <= max_staleness
        assert replies.facts["virtual"] >= clock
        clock = replies.facts["virtual"]


def test_late_answers_are_never_folded() -> None:
    runtime = simulator(Scribe(), Speeds([1.0, 2.0]))
    check_refusal(lambda: put(runtime, [0, 1], 0, max_staleness=1, fold=("vector",)), "fold")


# --- the combine ------------------------------------------------------------------------------------------------------


def test_ages_weigh_on_a_quadratic_as_by_hand() -> None:
    """Two parties, f(x) = (x − 4)²/2 and (x + 8)²/2, one step of 1/2 each; the first takes 1 s, the second 2.5 s."""
    model = functions(lambda seed: np.zeros(1), losses=lambda x, h, c: h[:, 0] / 2 * (x - c) ** 2, dtype="float64")
    data = atoll.data.federate([([[1.0]], [4.0]), ([[1.0]], [-8.0])], kind="real")
    method = atoll.FedAvg(model, epochs=1, batch=None, lr=0.5)
    made = atoll.assemble(atoll.Job(method, atoll.All(), channel(atoll.Average(), buffer_size=1), rounds=7), data)
    journal = Journal()
    kept: list[float] = []

    class Watched(Simulator):
        def checkpoint(self, memory: Tree) -> None:
            if (x := float(memory["state"]["params"][0])) not in kept[-1:]:  # a model is kept before it is shown, too
                kept.append(x)

    runtime = Watched(made.handlers, made.splits, World(), availability=Speeds([1.0, 2.5]), journal=journal)
    drive(made.running(), runtime)
    x3 = 3 - 4 / sqrt(3)  # the second party's step from 0, two rounds old
    x4 = x3 + 0.5 / sqrt(2)  # the first party's step from 3, one round old
    x5 = x4 + (4 - x4) / 2
    x6 = x5 + (4 - x5) / 2  # both come at 5 s: the first party first
    x7 = x6 + (-8 - x3) / 2 / 2  # the second party's step from x3, three rounds old
    assert np.allclose(kept, [0, 2, 3, x3, x4, x5, x6, x7], rtol=0, atol=1e-14)
    facts = [f for f in journal.facts if f["what"] == "round"]
    assert [f["age"] for f in facts] == [0, 0, 2, 1, 0, 0, 3]
    assert [f["virtual"] for f in facts] == [1, 2, 2.5, 3, 4, 5, 5]


def test_a_weight_is_not_weighed() -> None:
    """Rows are (w·Δ, w): party and round stand in for them. The sum is (Σ s·w·Δ, Σ w)."""
    runtime = simulator(Scribe(), Speeds([1.0, 3.0, 2.0]))
    wire = Wire.of(size=2, cohort=3, dtype="float64", divisor="weights", shapes=((1,), (1,)))
    gather = atoll.Buffered(buffer_size=2, power=1.0).gather(wire, SETTING)
    first, _ = drive(gather(np.arange(3), {"t": 4}, None), runtime)
    assert first.tolist() == [0 + 2, 4 + 4]
    second, replies = drive(gather(np.arange(3), {"t": 6}, None), runtime)
    assert replies.parties.tolist() == [0, 1]
    assert second.tolist() == pytest.approx([0 + 1 / 3, 6 + 4])  # party 1 is two rounds old


@pytest.mark.parametrize(
    "stages",
    [[atoll.Weigh()], [atoll.Clip(0.5), atoll.Average()], [atoll.Weigh(), atoll.TopK(0.1)]],
    ids=["weigh", "clip", "top k"],
)
def test_a_buffer_of_the_whole_cohort_is_fedavg(digits: Federated, stages: list[Stage]) -> None:
    """To the bit where parties are computed one by one; small models are computed, and added, by size of party."""
    for model, exact in ((atoll.models.mlp((120, 120)), True), (atoll.models.softmax(), False)):
        ends = []
        for combine in (atoll.Sum(), atoll.Buffered(buffer_size=8)):
            method = atoll.FedAvg(model, epochs=1, batch=10, lr=0.1)
            job = atoll.Job(method, atoll.Count(8), atoll.Channel(stages, combine), rounds=5, eval_every=5)
            ends.append(atoll.simulate(job, digits, workers=0).vector)
        assert np.abs(ends[0] - ends[1]).max() <= (0 if exact else 1e-6)
        assert not exact or ends[0].tobytes() == ends[1].tobytes()


def test_low_numbers_are_not_favoured() -> None:
    """A cohort is sorted, and only its first parties that are free are asked."""
    handler = Scribe()
    runtime = simulator(handler, Speeds([1.0 + k % 7 for k in range(100)]))
    wire = Wire.of(size=2, cohort=20, dtype="float64", divisor="answers", shapes=((2,),))
    gather = atoll.Buffered(buffer_size=4).gather(wire, SETTING)
    for t in range(400):
        cohort = atoll.Count(20).pick(t, Population(np.ones(100)), History(), {}, World.simulated(0)).cohort
        drive(gather(cohort, {"t": t}, None), runtime)
    low = np.mean([p < 50 for _, p in handler.asked])  # of some 1,600 draws: a deviation of 0.0125
    assert 0.44 < low < 0.56


def test_any_number_of_workers_gives_the_same_bits(digits: Federated) -> None:
    method = atoll.FedAvg(atoll.models.mlp((120, 120)), epochs=1, batch=10, lr=0.1)
    job = atoll.Job(
        method,
        atoll.Count(8),
        channel(buffer_size=3, max_staleness=2),
        rounds=12,
        eval_every=12,
        availability=atoll.Always(0.1),
    )
    runs = [atoll.simulate(job, digits, workers=workers) for workers in (0, 1, 2)]
    assert len({run.vector.tobytes() for run in runs}) == 1
    for name in ("asked", "answered", "age", "virtual", "stale", "lost"):
        assert rounds(runs[0], name) == rounds(runs[1], name) == rounds(runs[2], name)
    assert max(rounds(runs[0], "age")) > 0
    assert sum(rounds(runs[0], "stale")) > 0


def test_after_a_resume_everybody_is_free_and_the_clock_goes_on(digits: Federated, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(note: Note) -> None:
        if note.what == "round" and note.facts["round"] == 6:
            raise Cut

    method = atoll.FedAvg(atoll.models.softmax(), lr=0.1)
    job = atoll.Job(method, atoll.Count(8), channel(buffer_size=3), rounds=9, name="cut")
    with pytest.raises(Cut):
        atoll.simulate(job, digits, out=tmp_path, sinks=(cut,), workers=0)
    run = atoll.simulate(job, digits, resume=next(tmp_path.iterdir()), workers=0)
    assert rounds(run, "asked") == [8, 3, 3, 3, 3, 8, 3, 3, 3]
    assert np.diff(rounds(run, "virtual")).min() >= 0
    assert rounds(run, "virtual")[5] > rounds(run, "virtual")[4]
    assert run.reason == "all 9 rounds done"


def test_a_report_is_written(digits: Federated, tmp_path: Path) -> None:
    job = atoll.Job(
        atoll.FedAvg(atoll.models.softmax()), atoll.Count(6), channel(buffer_size=2), rounds=4, name="buffer"
    )
    run = atoll.simulate(job, digits, workers=0)
    assert "buffered" in run.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert run.curve("virtual")[0] == [1, 2, 3, 4]


def test_it_is_a_part_that_files_can_name(digits: Federated) -> None:
    part = atoll.Buffered(buffer_size=4, power=1.0, max_staleness=3)
    check_part(part)
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(6), atoll.Channel(combine=part))
    said = to_table(job, digits.recipe, 0)
    assert said["combine"] == {"use": "buffered", "buffer_size": 4, "power": 1.0, "max_staleness": 3}
    assert from_table(said).job.channel == job.channel
    text = atoll.explain(job, digits)
    assert "about 6 of them at work at a time, 4 answers a round" in text
    assert "how long each party took" in text
    assert "holds all 4 vectors" in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"buffer_size": 0}, "at least one"), ({"power": -1.0}, "0 or above"), ({"max_staleness": -1}, "0 or more")],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        atoll.Buffered(**settings)


def test_what_does_not_go_with_a_buffer_is_refused(digits: Federated) -> None:
    def job(select: Any, *stages: Any, **how: Any) -> Any:
        made = atoll.Job(atoll.FedAvg(atoll.models.softmax()), select, channel(*stages, **how), rounds=1)
        return lambda: atoll.simulate(made, digits, workers=0)

    six, average = atoll.Count(6), atoll.Average()
    check_refusal(job(six, atoll.Clip(1.0), average, atoll.Ring(), buffer_size=4), "ring", "SecureSum()")
    noise = atoll.Gaussian(1.0, where="local")
    check_refusal(job(six, atoll.Clip(1.0), atoll.Average("expected"), noise, buffer_size=4), "account", "Sum()")
    check_refusal(job(six, atoll.Average("expected"), buffer_size=4), "whole cohort", "Average()")
    check_refusal(job(atoll.Partition(4), buffer_size=4), "all 4 parties", "Count()")
    check_refusal(job(six, buffer_size=7), "buffer_size=7", "about 6", "select more")
    check_refusal(job(atoll.Oversample(six), buffer_size=4), "Oversample()")
    for stage in (atoll.Rotate(), atoll.RandomK(0.5), atoll.LowRank(2)):
        check_refusal(job(six, atoll.Weigh(), stage, buffer_size=4), "several rounds", type(stage).__name__)
    check_refusal(job(six, atoll.Clip(1.0, quantile=0.5), average, buffer_size=4), "several rounds", "Clip(quantile")
    check_refusal(lambda: atoll.Buffered(buffer_size=2).check(Wire.of(4, 5, shapes=((4,),))), "Weigh()")


# --- what it is for ---------------------------------------------------------------------------------------------------


def test_example_waits_for_nobody_and_is_faster(tmp_path: Path) -> None:
    """Five seeds were 10.7 to 73.5 times faster than waiting for everybody; the margins are far below."""
    example = Path(__file__).resolve().parents[2] / "examples" / "fedbuff.py"
    command = [sys.executable, str(example), "--quick", "--seeds", "1"]
    done = spawn.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    faster = {
        row[0]: float(row[1]) for row in re.findall(r"^(\w[\w ]*?) {2,}\d+ .*?\) +([\d.]+) \(", done.stdout, re.M)
    }
    assert set(faster) == {"everybody", "10 of 13", "FedBuff"}
    assert faster["FedBuff"] > 3
    assert faster["FedBuff"] > 1.3 * faster["10 of 13"]
    assert (tmp_path / "fedbuff.png").stat().st_size > 1000


def test_the_order_of_asking_depends_on_the_seed() -> None:
    wire = atoll.Average()(Wire.of(2, 10, shapes=((2,),)))[0]

    def order(seed: int, t: int) -> list[int]:
        gather = atoll.Buffered(2).gather(wire, Setting("model", World.simulated(seed)))
        asking = gather(np.arange(10), {"t": t}, None)
        asked = asking.send(None).to.tolist()
        asking.close()
        return asked

    assert order(0, 3) == order(0, 3)
    assert len({tuple(order(seed, t)) for seed in range(4) for t in range(4)}) == 16
