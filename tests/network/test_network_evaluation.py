"""Scores on a party's own test data leak too: they are counted, limited, rounded, and never told beside noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

import test_network_trust
from test_network_trust import JOB, Ada, ada, serving, text_of

import atoll
from atoll.core.effects import Ask, Replies
from atoll.core.tree import Schema
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.data import build
from atoll.job.assemble import assemble
from atoll.programs.evaluate import LOCAL, summarise
from atoll.runtimes.local.worker import Chunk
from atoll.runtimes.network.party.assess import assess, worker_of
from atoll.runtimes.network.party.budget import account_of
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.party.session import Session
from atoll.runtimes.network.server.serve import remote

__all__ = ["ada"]
RECIPE = {"use": "digits", "clients": 3, "test": 0.3}
MINE = {**RECIPE, "party": 0}
NOISY = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(2.0))


@pytest.fixture(autouse=True)
def with_local_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_network_trust, "RECIPE", RECIPE)


def session(policy: Policy, job: atoll.Job = JOB) -> Session:
    return Session(policy, text_of(job), 0, 3, 10, World.rehearsed)


# ---- the liar: a server that asks for scores without end


@pytest.mark.slow
def test_a_server_that_asks_evaluations_without_end_gets_those_of_the_job(tmp_path: Path, ada: Ada) -> None:
    """On the old code it got as many as it liked: each of a model of its own choice."""
    policy = Policy(allow_plain=True, allow_metrics=True, data=MINE)
    job = replace(JOB, rounds=5, eval_every=3)  # before the first round, after the third, after the last
    with serving(tmp_path / "one", job) as server:
        party = ada.join(server.address, policy)
        server.hub.wait_for(1, 60)
        broadcast = server.body["broadcast"]

        def evaluated(more: float) -> Replies:
            model = {**broadcast, "params": np.asarray(broadcast["params"]) + np.float32(more)}
            return server.hub.ask(Ask(np.arange(1), LOCAL, {"broadcast": model, "t": 0}))

        first = evaluated(0.0)
        again = evaluated(0.0)  # the same model: the same bytes, which say nothing more
        assert np.array_equal(first.each["loss"], again.each["loss"])
        assert [len(evaluated(more)) for more in (0.1, 0.2, 0.3)] == [1, 1, 0]
        with pytest.raises(NotAllowed, match="asked 4 times how well models do on this party's own test data"):
            party.result(60)
    given = account_of(policy, ada.folder).read().of()
    assert (given.evaluations, given.rounds) == (3, 0)


def test_evaluations_are_foreseen_and_limited_by_the_policy() -> None:
    found = assess(session(Policy(data=MINE), replace(JOB, eval_every=2)), "", "")
    assert found.evaluations == found.manifest.evaluations == 4
    said = [*Policy(allow_plain=True, allow_metrics=True, max_evaluations=3).objections(found.manifest, now=NOW)]
    fact = "the job evaluates 4 times on this party's own test data, and 3 is the limit"
    assert said == [f"max_evaluations: {fact}; ask for a larger eval_every (see the policy)"]
    (said_of_epsilon,) = Policy(allow_plain=True, allow_metrics=True, max_epsilon=9.0).objections(
        found.manifest, now=NOW
    )
    assert "have no bound on ε" in said_of_epsilon


NOW = test_network_trust.datetime.now().astimezone()


@pytest.mark.parametrize("combine", ["sum", "secure_sum"])
def test_sums_are_rounded_as_the_policy_says(combine: str) -> None:
    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Ring())
    job = JOB if combine == "sum" else replace(JOB, channel=atoll.Channel(stages, atoll.SecureSum()))
    made = assemble(job, build(RECIPE), world=World.rehearsed(0))
    state = made.program.method.init(made.program.world, test_network_trust.Population(made.program.sizes))
    body = {"broadcast": made.program.method.broadcast(state), "t": 0}
    what = LOCAL if combine == "sum" else "evaluate.local/contribute"
    found = []
    for step in (None, 10):
        worker = worker_of(session(Policy(data=MINE, round_metrics=step), job))
        each = worker.answer(Chunk(what, 0, np.array([0]), None, ()), body).each
        found.append(np.concatenate([np.ravel(leaf) for leaf in each.values()]).astype(float))
    exact, rounded = found
    assert not np.array_equal(exact, rounded)
    if combine == "sum":
        assert np.array_equal(rounded, np.round(exact / 10) * 10)


# ---- beside noise


def test_nothing_without_noise_decides_where_noise_protects() -> None:
    private = replace(JOB, channel=atoll.Channel(NOISY))
    data = build(RECIPE)
    for stop in (atoll.Target("local.accuracy", 0.9), atoll.Patience("local.loss")):
        with pytest.raises(Mismatch, match=r"stop: 'local\.\w+' comes from the parties' own test data without noise"):
            assemble(replace(private, stop=[stop]), data)
    assemble(replace(JOB, stop=[atoll.Target("local.accuracy", 0.9)]), data)

    class Telling(atoll.FedAvg):
        @property
        def reports(self) -> Schema:
            return Schema((("value", ()),))

    with pytest.raises(Mismatch, match="reports value of each party without noise"):
        assemble(replace(private, method=Telling(atoll.models.softmax())), data)


@pytest.mark.parametrize("example_dp", [False, True])
def test_between_real_parties_a_job_with_noise_asks_for_no_scores(example_dp: bool) -> None:
    method = atoll.FedAvg(atoll.models.softmax(), example_dp=atoll.ExampleDP())
    private = replace(JOB, method=method) if example_dp else replace(JOB, channel=atoll.Channel(NOISY))
    data = remote(build(RECIPE), [9] * 3)
    for job, asked in ((private, False), (JOB, True)):
        made = assemble(job, data, world=World.real(0))
        assert (LOCAL in made.questions(3)) == asked
        said = atoll.explain(job, data, world=World.real(0))
        assert ("not evaluated on the parties' own test data: scores have no noise" in said) != asked
    found = assess(session(Policy(data=MINE), private), "", "")
    assert (found.manifest.metrics, found.evaluations) == ((), 0)
    assert LOCAL in assemble(private, build(RECIPE)).handlers  # a simulation tells nobody


def test_no_party_weighs_more_in_a_score_than_the_samples_it_declared() -> None:
    evaluation = assemble(JOB, build(RECIPE)).program.evaluation
    assert evaluation is not None
    honest: dict[str, Any] = {"n": [100.0, 100.0], "correct": [90.0, 90.0], "loss": [20.0, 20.0]}
    liar = {name: np.array([*told, 1e12 * (name == "n")]) for name, told in honest.items()}
    replies = Replies(np.arange(3), liar, {}, {})
    free, _ = summarise(replies, evaluation)
    capped, _ = summarise(replies, evaluation, np.array([300, 300, 100]))
    assert free["accuracy"] < 1e-9
    assert capped["accuracy"] == pytest.approx(180 / 300)
    unknown, _ = summarise(replies, evaluation, np.array([300, 300, 0]))  # an edge declares nothing of its own
    assert unknown == free
