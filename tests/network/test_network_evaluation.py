"""Scores on a party's own test data leak too: they are counted, limited, rounded, and never told beside noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

import test_network_trust
from test_network_trust import JOB, Ada, Journal, ada, serving, text_of

import atoll
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.tree import Schema
from atoll.core.wire import DecodeContext, EncodeContext, Mismatch
from atoll.core.world import World
from atoll.data import build
from atoll.data.federated import Silos
from atoll.job.assemble import Assembled, Dropouts, assemble
from atoll.privacy import multiplier_for
from atoll.programs.evaluate import (
    EXAMPLE,
    HIDDEN_LOCAL,
    LOCAL,
    MAX_LOSS,
    Disclosure,
    schema_of,
    summarise,
    total_values,
)
from atoll.programs.federate import PARTY
from atoll.runtimes.local.simulator import Simulator
from atoll.runtimes.local.worker import Chunk, Worker
from atoll.runtimes.network.party.assess import assess, worker_of
from atoll.runtimes.network.party.budget import JobBudget, account_of
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.party.session import Session
from atoll.runtimes.network.party.spending import DataAccount, epsilon
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


def body_of(job: atoll.Job, scale: float = 1.0) -> tuple[Assembled, dict[str, Any]]:
    """A job between real parties that repeat, and what they are asked: its first model, so many times as large."""
    made = assemble(job, build(RECIPE), world=World.rehearsed(0))
    state = made.program.method.init(made.program.world, test_network_trust.Population(made.program.sizes))
    model = made.program.method.broadcast(state)
    return made, {"broadcast": {**model, "params": np.asarray(model["params"]) + np.float32(scale)}, "t": 0}


def told(made: Assembled, body: dict[str, Any], local: Silos, disclosure: Disclosure) -> dict[str, np.ndarray]:
    """What a party with this test data says."""
    handlers = replace(made.program, told=disclosure).handlers(PARTY, made.agreed)
    worker = Worker(handlers, {"local": local}, World.rehearsed(0))
    each = worker.answer(Chunk(LOCAL, 0, np.array([0]), None, ()), body).each
    return {name: np.asarray(leaf[0]) for name, leaf in each.items()}


@pytest.mark.parametrize("metrics", [(), (atoll.metrics.Accuracy(), atoll.metrics.AUC())])
@pytest.mark.parametrize("scale", [0.01, 1e6])
def test_no_example_moves_noised_sums_by_more_than_their_noise_is_made_for(scale: float, metrics: Any) -> None:
    """The liar is a server whose model says one thing of one example and shouts it: a loss of a million."""
    made, body = body_of(replace(JOB, metrics=metrics), 0.0)
    rng = np.random.default_rng(0)
    body["broadcast"]["params"] = rng.normal(0, scale, len(body["broadcast"]["params"])).astype(np.float32)
    whole = build(RECIPE).local
    assert whole is not None
    x, y = whole[0]
    moved, plain = [], []
    for k in range(12):
        without = np.delete(np.arange(len(x)), k)
        some = [Silos(x[rows], y[rows], np.array([0, len(rows)])) for rows in (np.arange(len(x)), without)]
        for disclosure, found in ((Disclosure(0, 0.5), moved), (Disclosure(), plain)):
            a, b = (told(made, body, one, disclosure) for one in some)
            found.append({name: a[name] - b[name] for name in a})
    bounds = {name: 1.0 if name in ("n", "correct") else EXAMPLE for name in moved[0]}
    size = sum(leaf.size for leaf in moved[0].values())
    far = [np.sqrt(sum(np.sum((leaf / bounds[name]) ** 2) for name, leaf in one.items())) for one in moved]
    assert max(far) <= np.sqrt(size) + 1e-6
    assert min(far) > 0.5, "each example counts"
    assert (max(abs(one["loss"]) for one in plain) > 100 * EXAMPLE) == (scale > 1)


def test_noise_of_scores_is_the_systems_and_as_large_as_is_said() -> None:
    policy = Policy(data=MINE, epsilon_metrics=1.0)
    made, body = body_of(JOB)
    real = replace(session(policy), world=World.real)
    worker, exact = worker_of(real), worker_of(session(Policy(data=MINE)))
    chunk = Chunk(LOCAL, 0, np.array([0]), None, ())
    found = np.array([worker.answer(chunk, body).each["n"][0] for _ in range(300)], float)
    n = float(exact.answer(chunk, body).each["n"][0])
    sigma = multiplier_for(1.0, 1e-5, 1, sampling="none") * np.sqrt(3)  # of n, correct and loss
    assert np.std(found) == pytest.approx(sigma, rel=0.2)
    assert np.mean(found) == pytest.approx(n, abs=sigma / 4)
    each = worker.answer(chunk, body).each
    made.questions(3)[LOCAL].answers.check_leaves({name: np.asarray(leaf) for name, leaf in each.items()})


def test_noised_scores_cost_what_the_policy_says(tmp_path: Path) -> None:
    """Beside training without noise nothing is bounded; the scores alone are."""
    policy = Policy(data=MINE, allow_plain=True, allow_metrics=True, epsilon_metrics=0.5, dataset="wards")
    found = assess(session(policy, replace(JOB, eval_every=2)), "", "")
    assert (
        "scores on own test data: up to 4 answers, each with noise that hides one example, epsilon 0.5" in found.words
    )
    budget = JobBudget(DataAccount(tmp_path, "wards"), policy, found, "job")
    for _ in range(4):
        budget.allow("evaluate", evaluates=True)
        budget.book("evaluate", evaluates=True)
    spent = budget.account.read().of()
    assert spent.evaluations == 4
    (cost,) = spent.costs
    assert 0.49 < epsilon({cost: 1}, policy.delta) <= 0.5 < epsilon(spent.costs, policy.delta) < 4 * 0.5
    assert budget.epsilon() == epsilon(spent.costs, policy.delta)
    limited = replace(budget, policy=replace(policy, max_epsilon=0.6), account=DataAccount(tmp_path, "other"))
    limited.book("evaluate", evaluates=True)
    with pytest.raises(NotAllowed, match=r"max_epsilon = 0\.6"):
        limited.allow("evaluate", evaluates=True)
    (said,) = Policy(delta=0.01, epsilon_metrics=0.5, allow_plain=True, allow_metrics=True).objections(
        found.manifest, now=NOW
    )
    assert said.startswith("delta: 0.01 is above one over")


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


def test_hidden_sums_with_noise_add_no_scores_either() -> None:
    """Neither a question nor a stop: scores under a hidden sum are exact sums, whoever adds them."""
    stages = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), atoll.Gaussian(2.0, "distributed"))
    private = replace(JOB, channel=atoll.Channel(stages, atoll.SecureSum()))
    open_ = replace(JOB, channel=atoll.Channel(stages[:-1], atoll.SecureSum()))
    data = remote(build(RECIPE), [9] * 3)
    for job, asked in ((private, False), (open_, True)):
        made = assemble(job, data, world=World.real(0))
        assert any(name.startswith(HIDDEN_LOCAL) for name in made.questions(3)) == asked
        assert (made.program.evaluating is not None) == asked
    assert assess(session(Policy(data=MINE), private), "", "").evaluations == 0
    with pytest.raises(Mismatch, match="comes from the parties' own test data without noise"):
        assemble(replace(private, stop=[atoll.Target("local.accuracy", 0.9)]), build(RECIPE))
    # Between real parties a stop by scores of a job without noise is one: they are asked for.
    assemble(replace(open_, stop=[atoll.Target("local.accuracy", 0.9)]), build(RECIPE), world=World.real(0))


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
    assert unknown["accuracy"] == free["accuracy"]


def test_a_loss_of_classes_counts_as_what_it_can_be() -> None:
    """A party of one sample says a loss of 10^300: the mean of all is not at its mercy."""
    evaluation = assemble(JOB, build(RECIPE)).program.evaluation
    assert evaluation is not None
    each = {"n": np.array([100.0, 1.0]), "correct": np.array([90.0, 0.0]), "loss": np.array([20.0, 1e300])}
    capped, _ = summarise(Replies(np.arange(2), each, {}, {}), evaluation, np.array([300, 300]))
    assert capped["loss"] == pytest.approx((20 + MAX_LOSS) / 101)


@pytest.mark.parametrize("combine", [atoll.SecureSum(), atoll.Sum()])
def test_no_mean_training_loss_is_above_the_largest_that_counts(combine: Any) -> None:
    stages = (atoll.Clip(1.0), atoll.Average(), *((atoll.Ring(),) if combine.hidden else ()))
    exchange = assemble(replace(JOB, channel=atoll.Channel(stages, combine)), build(RECIPE)).program.exchanges["train"]
    row = exchange.wire.row
    vector = np.zeros((1, row.size - 1), np.float32)
    context = EncodeContext(np.ones(1), World.rehearsed(0), 0, np.arange(1), {}, np.array([1e9]))
    honest = exchange.codec.encode(vector, {}, context).x[0]
    total = np.add(honest, honest) + np.add(honest, honest)  # of one party, who says four times the most
    facts = exchange.codec.decode(total, exchange.codec.start, DecodeContext(1, World.rehearsed(0), 0))[2]
    assert facts["train_loss"] == pytest.approx(10.0)


def test_a_hidden_sum_of_more_samples_than_were_declared_is_no_score() -> None:
    """Who lies in a hidden sum cannot be seen. On the old code one party's 10^12 samples made the mean."""
    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Ring())
    job = replace(JOB, channel=atoll.Channel(stages, atoll.SecureSum()), rounds=2)
    data = build(RECIPE)
    made = assemble(job, data, world=World.rehearsed(0)._replace(shortcut=True))
    assert made.program.evaluation is not None
    assert data.local is not None
    for declared, scored in ((data.local.sizes, True), (data.local.sizes - 1, False), (data.local.sizes * 0, True)):
        notes = list[Note]()
        mine = replace(made, program=replace(made.program, declared=declared))
        journal = Journal(notes.append)
        runtime = Simulator(
            mine.handlers, mine.splits, mine.program.world, availability=Dropouts(0.0, 0), journal=journal
        )
        drive(mine.running(), runtime)
        what = [note.what for note in notes if note.facts.get("split") == "local"]
        assert what == (["evaluation"] if scored else ["unevaluated"]) * 3
        why = [note.facts["why"] for note in notes if note.what == "unevaluated"]
        assert all("test samples, and have declared" in one for one in why)
    wild = np.array([100.0, 200.0, 1e300])  # n, correct and loss
    order = [name for name, *_ in schema_of(made.program.evaluation).slots()]
    total = np.array([wild[["n", "correct", "loss"].index(name)] for name in order])
    assert total_values(total, made.program.evaluation) == {"accuracy": 1.0, "loss": MAX_LOSS}
