"""One job, two worlds: simulated on one machine, and served to processes over the network. The same numbers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("grpc")

from cast import Cast, parameters, simulated

import atoll
from atoll.data import build
from atoll.job.file import parse

RECIPE = '{ use = "digits", clients = 4, test = 0.2 }'
HEAD = f"""
name = "net"
rounds = 3
data = {RECIPE}
method = {{ use = "fedavg", model = {{ use = "mlp", hidden = [120, 120] }}, epochs = 1, batch = 10, lr = 0.1 }}
select = "all"
"""
HIDDEN = 'stages = [{ use = "clip", norm = 1.0 }, "average", { use = "ring", bits = 16 }%s]\ncombine = "%s"\n'
NOISE = ', { use = "gaussian", multiplier = 0.5, where = "distributed" }'
CHANNELS = {
    "fedavg": "",
    "central noise": 'stages = [{ use = "clip", norm = 1.0 }, { use = "average", by = "expected" }, '
    '{ use = "gaussian", multiplier = 0.5, where = "central" }]\n',
    "local noise": 'stages = [{ use = "clip", norm = 1.0 }, "average", '
    '{ use = "gaussian", multiplier = 2.0, where = "local" }]\n',
    "median": 'stages = ["average"]\ncombine = { use = "each", rule = "median" }\n',
    "error feedback": 'stages = ["weigh", { use = "top_k", fraction = 0.1 }]\n',
    "secure sum": HIDDEN % ("", "secure_sum"),
    "secure sum, distributed noise": HIDDEN.replace('"average"', '{ use = "average", by = "expected" }')
    % (NOISE, "secure_sum"),
    "secure sum, error feedback": HIDDEN.replace("stages = [", 'stages = [{ use = "low_rank", rank = 2 }, ')
    % ("", "secure_sum"),
    "light sum": HIDDEN % ("", "light_sum"),
    "encrypted sum": HIDDEN % ("", "encrypted_sum"),
    "encrypted sum, two holders": HIDDEN.replace('"%s"', '{ use = "encrypted_sum", key_holders = 2 }') % "",
    "encrypted sum, distributed noise": HIDDEN.replace('"average"', '{ use = "average", by = "expected" }')
    % (NOISE, "encrypted_sum"),
    "encrypted sum, ckks": HIDDEN.replace('"%s"', '{ use = "encrypted_sum", scheme = "ckks" }') % "",
    "buffered, nobody late": 'combine = { use = "buffered", buffer_size = 4 }\n',
}


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path, ("ada", "ben", "cleo", "dan"))
    yield made
    made.end()


SMALL = HEAD.replace('{ use = "mlp", hidden = [120, 120] }', '"softmax"')


def served_equals_simulated(job: str, cast: Cast, rounds: int) -> None:
    run = cast.play(job, RECIPE)
    assert np.array_equal(parameters(run.params), simulated(job))
    evaluations = [fact for fact in run.facts if fact["what"] == "evaluation" and fact["split"] == "local"]
    asked = 0 if "gaussian" in job else 1 + rounds  # scores have no noise, and would tell what it hides
    assert [evaluation["parties"] for evaluation in evaluations] == [4] * asked


@pytest.mark.parametrize("channel", CHANNELS)
def test_two_served_rounds_of_a_small_model_equal_simulated_ones(channel: str, cast: Cast) -> None:
    if channel.endswith("ckks"):
        pytest.importorskip("tenseal")
    served_equals_simulated(SMALL.replace("rounds = 3", "rounds = 2") + CHANNELS[channel], cast, 2)


def test_sums_over_own_test_data_are_hidden_and_equal_those_of_a_simulation(cast: Cast) -> None:
    """Counts are exact: the figures are the simulation's, and no party told its own."""
    job = SMALL.replace("rounds = 3", 'rounds = 1\nmetrics = [{ use = "auc", bins = 16 }]') + CHANNELS["secure sum"]
    run = cast.play(job, RECIPE)
    said = parse(job, "the test")
    expected = atoll.simulate(said.job, build(said.data, said.seed), said.seed)
    for metric in ("local.accuracy", "local.auc"):
        assert run.curve(metric) == expected.curve(metric)
    audits = {name: (cast.folder / name / "audit.jsonl").read_text() for name in cast.names}
    for audit in audits.values():
        asked = {line["asked"] for line in map(json.loads, audit.splitlines()) if "asked" in line}
        assert {one.partition("/")[0] for one in asked} == {"train", "evaluate.local"}
        assert "evaluate.local/secure.masked" in asked


# The rest at night; encryption, which is slow, with the smallest model.
OFTEN = ("secure sum, distributed noise", "secure sum, error feedback")


@pytest.mark.slow
@pytest.mark.parametrize(
    "channel", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.nightly) for name in CHANNELS]
)
def test_served_equals_simulated(channel: str, cast: Cast) -> None:
    if channel.endswith("ckks"):
        pytest.importorskip("tenseal")
    served_equals_simulated((SMALL if "encrypted" in channel else HEAD) + CHANNELS[channel], cast, 3)


@pytest.mark.nightly
def test_a_buffer_waits_for_nobody_and_takes_what_comes_late(cast: Cast) -> None:
    """A party that stands still for seconds misses no round of the others, and its old answer counts by its age."""
    head = HEAD.replace("rounds = 3", "rounds = 300\neval_every = 300")
    job = head + 'combine = { use = "buffered", buffer_size = 2, max_staleness = 300 }\n'
    cast.begin(job, RECIPE)
    cast.until(20)
    slow = cast.processes["dan"].pid
    train = [child.pid for child in psutil.Process(slow).children(recursive=True)]
    for pid in (slow, *train):
        os.kill(pid, signal.SIGSTOP)
    facts = (cast.folder / "run" / "facts.jsonl").read_text()
    cast.until(facts.count('"what": "round"') + 40)
    for pid in (slow, *train):
        os.kill(pid, signal.SIGCONT)
    run = cast.close(200)
    done = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in done] == [2] * 300
    # The mean of its age, which is 40 but for what was under way, and that of another.
    assert max(fact["age"] for fact in done) >= 30 / 2
    assert "refused" not in cast.log("dan")


@pytest.mark.nightly
def test_a_secure_sum_outlives_a_killed_party(cast: Cast) -> None:
    """Three of four are enough: the round in which one dies, and those after it, are opened without it."""
    job = HEAD.replace("rounds = 3", "rounds = 8") + CHANNELS["secure sum"]
    cast.begin(job, RECIPE)
    cast.until(1)
    cast.processes["dan"].kill()
    run = cast.close(240)
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert len(rounds) == 8
    assert rounds[-1]["answered"] == 3
    assert all(fact["answered"] >= 3 or "aborted" in fact for fact in rounds)
    assert sum("aborted" in fact for fact in rounds) <= 1
    assert np.isfinite(parameters(run.params)).all()


@pytest.mark.nightly
def test_an_encrypted_sum_waits_for_a_killed_holder(cast: Cast) -> None:
    """The round in which the holder of the key dies stays closed; it comes back without it, and the rest are fine."""
    job = SMALL.replace("rounds = 3", "rounds = 8")
    address = cast.begin(job + CHANNELS["encrypted sum"], RECIPE)
    cast.until(1)
    cast.processes["ada"].kill()
    cast.processes["ada"].join(30)
    cast.join(address, "ada", cast.policy("ada", RECIPE))
    run = cast.close(240)
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert len(rounds) == 8
    assert all(fact["answered"] >= 3 or "nothing was opened" in fact["aborted"] for fact in rounds)
    assert sum("aborted" in fact for fact in rounds) <= 2
    assert "aborted" not in rounds[-1]
    assert np.isfinite(parameters(run.params)).all()
