"""A run's ledger: what is printed is spent, it stops in time and survives a crash; nothing secret is written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.core.effects import Note
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.data.federated import Federated
from atoll.privacy import Account, Spend
from atoll.privacy.account import in_epsilon, in_words
from atoll.report.privacy import accounts, tiles
from atoll.testing import check_refusal

METHOD = atoll.FedAvg(atoll.models.softmax(), batch=5, lr=0.1)
PRIVATE = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(1.0))
SHARED = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), atoll.Gaussian(1.0, "distributed"))


def job(
    *stages: object, select: object = atoll.Poisson(0.5), combine: object = atoll.Sum(), **more: object
) -> atoll.Job:
    channel = atoll.Channel(stages or PRIVATE, combine)  # type: ignore[arg-type]
    return atoll.Job(METHOD, select, channel, **{"rounds": 6, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def digits() -> Federated:
    return atoll.data.load("digits").split(30, by="iid", seed=0)


def test_every_round_notes_what_was_spent(digits: Federated) -> None:
    run = atoll.simulate(job(stop=[atoll.Budget(1e9, 1e-3)]), digits)
    account = Account(Spend(1.0, "poisson", 0.5, population=30), 1e-3)
    spent = [f["epsilon"] for f in run.facts if f["what"] in ("round", "empty")]
    assert spent == [account.epsilon(t) for t in range(1, 7)]
    assert np.all(np.diff(spent) > 0)
    end = run.facts[-1]
    assert end["epsilon"] == spent[-1]
    assert end["epsilon_tight"] <= end["epsilon"]
    for word in ("unit: party", "add-or-remove-one", "Poisson, rate 0.5", "delta: 0.001", "RDP"):
        assert word in in_words(end["epsilon_means"])


@pytest.mark.parametrize(("select", "availability", "expected"), [
    (atoll.Poisson(0.2), atoll.Always(), Spend(1.0, "poisson", 0.2, population=30)),
    (atoll.Poisson(0.2), atoll.Flaky(0.5), Spend(1.0, "poisson", 0.2, population=30)),
    (atoll.All(), atoll.Always(), Spend(1.0, population=30)),
    (atoll.Uniform(0.2), atoll.Always(), Spend(1.0, "fixed", 0.2, population=30)),
    (atoll.Count(3), atoll.Always(), Spend(1.0, "fixed", 0.1, population=30)),
    (atoll.Count(3), atoll.Flaky(0.5), Spend(1.0, "fixed", 1.0, population=30)),
    (atoll.BySize(3), atoll.Always(), Spend(1.0, "fixed", 1.0, population=30)),
    (atoll.Oversample(atoll.Count(3)), atoll.Always(), Spend(1.0, "fixed", 1.0, population=30)),
])  # fmt: skip
def test_amplification_is_claimed_only_for_the_sampling_that_is_done(
    select: object, availability: object, expected: Spend, digits: Federated
) -> None:
    made = atoll.assemble(job(select=select, availability=availability), digits)
    assert made.ledger is not None
    assert made.ledger.of().spend == expected


def test_local_noise_claims_nothing_for_sampling(digits: Federated) -> None:
    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Gaussian(2.0, "local"))
    spend = atoll.assemble(job(*stages), digits).ledger.of().spend  # type: ignore[union-attr]
    assert (spend.mechanism, spend.sampling, spend.relation) == ("local", "none", "replace-one")


def test_the_epsilon_of_a_simulated_hidden_sum_is_the_one_that_holds_against_its_parties(digits: Federated) -> None:
    """They see the cohort, and so does the server. On the old code the first figure claimed the sampling.

    `explain`, the facts, the report and the same job between real parties say the same.
    """
    hidden = job(*SHARED, combine=atoll.SecureSum(), stop=[atoll.Budget(1e9, 1e-3)])
    run = atoll.simulate(hidden, digits)
    spent = Account(Spend(1.0, population=30), 1e-3).epsilon(6)
    assert run.facts[-1]["epsilon"] == spent == run.about["privacy"]["epsilon_planned"]
    assert run.facts[-1]["epsilon_means"]["sampling"] == "none"
    assert not [name for name in run.facts[-1] if name.startswith("epsilon_server")]
    assert f"ε {in_epsilon(spent)}" in tiles(run.about, run.facts)[0][1]
    assert [account.epsilon for account in accounts(run.about, run.facts)] == [spent]
    for world in (World.simulated(0), World.real(0)):
        said = atoll.explain(hidden, digits, world=world)
        assert f"epsilon {in_epsilon(spent)} after all 6 rounds" in said
        assert "see who takes part: sampling hides nobody from them" in said
    fixed = atoll.assemble(job(*SHARED, combine=atoll.SecureSum(), select=atoll.Count(9)), digits).ledger
    assert fixed is not None
    assert fixed.of().spend == Spend(1.0, "fixed", 1.0, population=30)
    assert "see who takes part" not in atoll.explain(job(*PRIVATE), digits)


def test_a_budget_stops_before_the_round_that_would_overspend(digits: Federated) -> None:
    account = Account(Spend(1.0, "poisson", 0.5, population=30), 1e-3)
    budget = (account.epsilon(3) + account.epsilon(4)) / 2
    run = atoll.simulate(job(stop=[atoll.Budget(budget, 1e-3)], rounds=50), digits)
    assert run.facts[-1]["round"] == 3
    assert run.facts[-1]["epsilon"] <= budget
    assert "budget" in run.reason
    exact = atoll.simulate(job(stop=[atoll.Budget(account.epsilon(4), 1e-3)], rounds=50), digits)
    assert exact.facts[-1]["round"] == 4


def test_a_budget_that_allows_nothing_or_counts_nothing_is_refused(digits: Federated) -> None:
    check_refusal(lambda: atoll.assemble(job(stop=[atoll.Budget(0.01)]), digits), "one round alone", "calibrate")
    plain = job(atoll.Weigh(), stop=[atoll.Budget(1.0)])
    check_refusal(lambda: atoll.assemble(plain, digits), "adds none", "Gaussian()")
    check_refusal(lambda: atoll.assemble(job(stop=[atoll.Budget(9.0, 0.5)]), digits), "delta=0.5")
    check_refusal(lambda: atoll.assemble(job(stop=[atoll.Budget(9.0, unit="example")]), digits), "example")
    alone = atoll.data.load("digits").split(1, by="iid", seed=0)
    check_refusal(lambda: atoll.assemble(job(select=atoll.All()), alone), "nobody to hide among")
    for make in (lambda: atoll.Budget(0.0), lambda: atoll.Budget(1.0, 2.0), lambda: atoll.Budget(1.0, unit="house")):
        with pytest.raises(ValueError, match="Budget"):
            make()


def test_trees_need_a_select_that_takes_turns(digits: Federated) -> None:
    tree = (atoll.Clip(1.0), atoll.Average("expected"), atoll.TreeNoise(1.0, every=10))
    check_refusal(lambda: atoll.assemble(job(*tree), digits), "RoundRobin()")
    check_refusal(lambda: atoll.assemble(job(*tree, select=atoll.RoundRobin(5)), digits), "TreeNoise(every=6)")
    run = atoll.simulate(job(*tree, select=atoll.RoundRobin(3), rounds=12), digits)
    spent = [f["epsilon"] for f in run.facts if f["what"] == "round"]
    assert spent == sorted(spent)
    assert "at most once in each tree" in in_words(run.facts[-1]["epsilon_means"])


def test_turns_reach_everybody_once_in_an_epoch(digits: Federated) -> None:
    from atoll.core.method import History, Population

    select, population = atoll.RoundRobin(7), Population(digits.train.sizes)
    for epoch in range(3):
        picks = [select.pick(t, population, History(), {}, World(0)).cohort for t in range(5 * epoch, 5 * epoch + 5)]
        assert sorted(np.concatenate(picks).tolist()) == list(range(30))


def test_calibration_finds_the_smallest_noise(digits: Federated) -> None:
    found = atoll.calibrate(job(rounds=40), digits, epsilon=5.0, delta=1e-3)
    account = atoll.assemble(found.job, digits).ledger.of()  # type: ignore[union-attr]
    assert account.spend.multiplier == found.multiplier
    assert account.epsilon(40) <= 5.0
    less = replace(account, spend=replace(account.spend, multiplier=found.multiplier * 0.98))
    assert less.epsilon(40) > 5.0
    assert found.key == "stages.2.multiplier"
    with pytest.raises(Mismatch, match="adds none"):
        atoll.calibrate(job(atoll.Weigh()), digits, 1.0)


def test_the_ledger_and_the_adaptive_norm_survive_a_crash(digits: Federated, tmp_path: Path) -> None:
    stages = (atoll.Clip(0.1, quantile=0.5), *PRIVATE[1:])
    whole = atoll.simulate(job(*stages, stop=[atoll.Budget(1e9, 1e-3)]), digits, out=tmp_path / "whole")

    class Crash(Exception):
        pass

    def sink(note: object) -> None:
        if getattr(note, "what", "") == "round" and note.facts["round"] == 4:  # type: ignore[attr-defined]
            raise Crash

    with pytest.raises(Crash):
        atoll.simulate(job(*stages, stop=[atoll.Budget(1e9, 1e-3)]), digits, out=tmp_path / "cut", sinks=(sink,))
    (folder,) = (tmp_path / "cut").iterdir()
    again = atoll.simulate(job(*stages, stop=[atoll.Budget(1e9, 1e-3)]), digits, resume=folder)
    assert np.array_equal(again.vector, whole.vector)
    for name in ("epsilon", "clip_norm"):
        assert again.curve(name) == whole.curve(name)


def test_batches_count_on_after_a_crash(digits: Federated, tmp_path: Path) -> None:
    made = job(atoll.Weigh(), select=atoll.Batches(6, 3), rounds=7)
    whole = atoll.simulate(made, digits)

    def crash(note: Note) -> None:
        if note.what == "round" and note.t == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atoll.simulate(made, digits, out=tmp_path, sinks=(crash,))
    (folder,) = tmp_path.iterdir()
    again = atoll.simulate(made, digits, resume=folder)
    assert np.array_equal(again.vector, whole.vector)


def test_nothing_secret_is_written_or_said(digits: Federated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key, seed and share that a full run makes is looked for in all that it wrote."""
    import secrets

    from atoll.crypto import keys, shamir

    seen: list[bytes] = []
    token, split, derive = secrets.token_bytes, shamir.split, keys.derive

    def token_bytes(n: int | None = None) -> bytes:
        seen.append(token(n))
        return seen[-1]

    def splits(secret: bytes, *args: object, **more: object) -> object:
        shares = split(secret, *args, **more)  # type: ignore[arg-type]
        seen.extend([secret, *shares.values()])  # type: ignore[attr-defined]
        return shares

    def derives(*args: object, **more: object) -> bytes:
        seen.append(derive(*args, **more))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr("atoll.crypto.secagg.client.secrets.token_bytes", token_bytes)
    monkeypatch.setattr("atoll.crypto.secagg.client.shamir.split", splits)
    monkeypatch.setattr("atoll.crypto.secagg.client.derive", derives)
    secure = job(*SHARED, select=atoll.Count(8), combine=atoll.SecureSum(), rounds=2)
    run = atoll.simulate(secure, digits, out=tmp_path, protocols=True)
    secret_bytes = {secret for secret in seen if len(secret) >= 16}  # shorter ones name folders
    assert len(secret_bytes) > 100
    assert run.folder is not None
    run.report(run.folder / "report.html")
    written = b"\n".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    written += json.dumps(run.facts, default=str).encode() + repr(run).encode()
    for secret in secret_bytes:
        assert secret not in written
        assert secret.hex().encode() not in written
        assert repr(secret)[2:-1].encode() not in written


def test_explain_says_who_sees_what_and_what_it_costs(digits: Federated) -> None:
    said = atoll.explain(job(*SHARED, combine=atoll.SecureSum(), stop=[atoll.Budget(50.0, 1e-3)]), digits)
    for words in (
        "simulated", "noisy sum of at least 11 vectors", "fewer than a third", "unit: party", "add-or-remove-one",
        "sampling hides nobody", "delta: 0.001", "at least 10 parties are in the sum of a round",
        "assuming at most 0 corrupt", "noise is simulated", "budget", "modulo 2^32",
    ):  # fmt: skip
        assert words in said, words
    assert "multi-round privacy T = 1" in said
    batches = job(*SHARED, combine=atoll.SecureSum(), select=atoll.Batches(12, 3))
    assert "multi-round privacy T = 3" in atoll.explain(batches, digits)
    real = atoll.explain(job(*SHARED, combine=atoll.SecureSum()), digits, world=World.real(0))
    assert "(simulated" not in real
    assert "noise comes from the operating system" in real
    plain = atoll.explain(job(atoll.Weigh()), digits)
    assert "nothing here is differentially private" in plain
    assert re.search(r"server: each party's vector", plain)


def example_job(**more: object) -> atoll.Job:
    method = replace(METHOD, example_dp=atoll.ExampleDP(clip=1.0, multiplier=1.2))
    return atoll.Job(method, atoll.Uniform(0.2), **{"rounds": 2, **more})  # type: ignore[arg-type]


def test_private_training_has_an_account_of_its_own(digits: Federated) -> None:
    run = atoll.simulate(example_job(), digits)
    ledger = atoll.assemble(example_job(), digits).ledger
    assert ledger is not None
    spend = ledger.of("example").spend
    smallest = int(digits.train.sizes.min())
    assert (spend.unit, spend.sampling) == ("example", "poisson")
    assert spend.rate == pytest.approx(5 / smallest, rel=0.1)
    assert run.facts[-1]["epsilon"] == ledger.of().epsilon(2)
    assert run.facts[-1]["epsilon_means"]["unit"] == "example"
    assert "hides one example" in atoll.explain(example_job(), digits)
    both = replace(example_job(), select=atoll.Poisson(0.5), channel=atoll.Channel(PRIVATE))
    facts = atoll.simulate(both, digits).facts[-1]
    assert facts["epsilon_means"]["unit"] == "party"
    assert facts["epsilon_example_means"]["unit"] == "example"
    silent = replace(METHOD, example_dp=atoll.ExampleDP(1.0, 0.0))
    check_refusal(lambda: atoll.assemble(atoll.Job(silent), digits), "multiplier 0", "leave `private` out")


def test_calibration_reaches_the_noise_of_private_training(digits: Federated) -> None:
    found = atoll.calibrate(example_job(), digits, epsilon=2.0, delta=1e-4)
    assert found.key == "method.example_dp.multiplier"
    assert found.epsilon <= 2.0


def test_private_training_from_a_job_file(tmp_path: Path) -> None:
    from atoll.job.catalogue import BadJob
    from atoll.job.file import dumps, parse, to_table

    text = """
    name = "examples"
    data = { use = "digits", clients = 10 }
    method = { use = "fedavg", model = "softmax", example_dp = { use = "example_dp", clip = 1.0, multiplier = 1.1 } }
    """
    said = parse(text, "here")
    assert said.job.method.example_dp == atoll.ExampleDP(1.0, 1.1)  # type: ignore[attr-defined]
    again = parse(dumps(to_table(said.job, said.data, 0)), "again")
    assert again.job == said.job
    with pytest.raises(BadJob, match="did you mean 'multiplier'"):
        parse(text.replace("multiplier", "multiplyer"), "here")
