"""A party's budget belongs to its data set: no name, key, server or restart gives a server more of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import dp_accounting as dpa
import pytest
from dp_accounting import rdp

pytest.importorskip("grpc")

from test_network_trust import JOB, MINE, TIMES, Ada, ada, assessed, serving, text_of

import atoll
from atoll.job.file import parse, substance_of
from atoll.privacy import Spend
from atoll.privacy.account import _ORDERS
from atoll.runtimes.network.party.assess import assess
from atoll.runtimes.network.party.budget import JobBudget, account_of
from atoll.runtimes.network.party.join import join
from atoll.runtimes.network.party.policy import Before, NotAllowed, Policy
from atoll.runtimes.network.party.session import Session
from atoll.runtimes.network.party.spending import UNLIMITED, AccountBroken, AnswerCost, DataAccount, Tally, epsilon
from atoll.runtimes.network.trust.roster import NamedIdentity, RosterFile, line_of, load_key, new_key, peer_of
from atoll.runtimes.network.trust.tls import PartyTLS, ServerTLS

__all__ = ["ada"]
NOON = datetime(2025, 6, 15, 12, tzinfo=UTC)
LOCAL = (atoll.Clip(1.0), atoll.Average(), atoll.Gaussian(4.0, "local"))
NOISY = replace(JOB, channel=atoll.Channel(LOCAL))


def budget(folder: Path, job: atoll.Job, name: str = "job", **limits: Any) -> JobBudget:
    policy = Policy(allow_plain=True, allow_metrics=True, data=MINE, dataset="wards", **limits)
    found = assess(Session(policy, text_of(job), 0, 3, 10), "", "")
    return JobBudget(DataAccount(folder, "wards"), policy, found, name, clock=lambda: NOON)


def before(one: JobBudget) -> Before:
    return one.before(one.account.read())


def composed(*events: dpa.DpEvent, delta: float = 1e-5) -> float:
    """What Google's accountant says, at the same orders."""
    accountant = rdp.RdpAccountant(_ORDERS)
    for event in events:
        accountant.compose(event)
    return float(accountant.get_epsilon(delta))


# ---- the liar: the same job under other names


@pytest.mark.slow
def test_three_renamed_jobs_get_the_two_answers_that_a_party_allows(tmp_path: Path, ada: Ada) -> None:
    """On the old code each of them got two: six answers of a party that allowed two."""
    policy, got = Policy(allow_plain=True, max_rounds=2, data=MINE, jobs=("any",)), 0
    for name in ("one", "two", "three"):
        ada.folder = tmp_path / f"ada-{name}"  # another server, another folder
        with serving(tmp_path / name, replace(JOB, name=name, rounds=2)) as server:
            party = ada.join(server.address, policy)
            if name == "one":
                got += sum(len(server.ask(more=k)) for k in range(3))
            with pytest.raises(NotAllowed, match="max_rounds"):
                party.result(60)
    assert got == account_of(policy, ada.folder).read().of().rounds == 2
    assert "jobs on this data have taken 2" in str(party.exception())


class Visit(NamedTuple):
    """Who asks for what, and as whom the owner of the data answers."""

    job: str = "digits"
    party: str = "ada"
    key: str = "of ada"
    server: str = "registry"


def test_no_name_key_or_server_gives_more_of_a_data_set(tmp_path: Path) -> None:
    """On the old code another name of the job was another job, with an ε of its own."""
    job = replace(NOISY, rounds=2)
    (cost,) = assessed(job).costs.values()
    limit = 1.01 * epsilon({cost: 2}, 1e-5)
    policy = Policy(data=MINE, jobs=("any",), max_epsilon_job=limit, accounts=str(tmp_path / "accounts"))
    usual, said = Visit(), list[str]()
    for k, visit in enumerate(
        (usual, Visit(job="other"), Visit(party="zoe"), Visit(key="another"), Visit(server="elsewhere"))
    ):
        mine, server = (
            new_or_old(tmp_path / of, name) for of, name in zip(visit[2:], (visit.party, "hub"), strict=True)
        )
        roster, folder = tmp_path / f"roster-{k}", tmp_path / f"party-{k}"
        roster.write_text(f"{line_of(mine)}\n")
        side = ServerTLS(server, RosterFile(roster))
        asked, stop = replace(job, name=visit.job), threading.Event()
        with serving(tmp_path / f"run-{k}", asked, side=side, party=visit.party) as hub, ThreadPoolExecutor(1) as one:
            party = one.submit(
                join, hub.address, PartyTLS(mine, peer_of(line_of(server))), visit.party, policy, folder, times=TIMES,
                stop=stop,
            )  # fmt: skip
            if visit.job == usual.job:  # another name is refused when the party joins
                got = [len(hub.ask(more=more)) for more in range(1 if k else 3)]
                assert sum(got) == (0 if k else 2), visit
            with pytest.raises(NotAllowed) as refused:
                party.result(60)
            said.append(str(refused.value))
    assert [sentence.split(":")[0] for sentence in said].count("max_epsilon_job") == 1
    assert sum("asked 3 times, and the job has 2 rounds" in sentence for sentence in said) == 4, said
    assert DataAccount(tmp_path / "accounts", policy.dataset_name).read().of().rounds == 2


def new_or_old(folder: Path, name: str) -> NamedIdentity:
    path = folder / f"{name}.key"
    return load_key(path) if path.exists() else new_key(folder, name)


def test_what_a_job_asks_is_the_same_under_any_name() -> None:
    same = [replace(JOB, name="x"), replace(JOB, rounds=9), replace(JOB, select=atoll.Uniform(0.5)),
            replace(JOB, eval_every=3, stop=[atoll.Converged(1e-3)])]  # fmt: skip
    other = [NOISY, replace(JOB, method=atoll.FedAvg(atoll.models.softmax(), lr=0.1))]
    assert {substance_of(job) for job in same} == {substance_of(JOB)}
    assert len({substance_of(job) for job in (JOB, *other)}) == 3
    assert substance_of(parse("# hello\n" + text_of(JOB), "it").job) == substance_of(JOB)


def test_an_account_remembers_what_was_agreed_to_by_itself(tmp_path: Path) -> None:
    """A party that was asked for nothing yet has agreed, too: the next job that it is shown is another."""
    first = budget(tmp_path, JOB, "first")
    first.agree(replace(first.assessed.manifest, job="first"))
    again = budget(tmp_path, NOISY, "second")
    with pytest.raises(NotAllowed, match="jobs: wards has agreed to another job before"):
        again.agree(replace(again.assessed.manifest, job="second"))
    assert {*first.account.read().agreed} == {"first"}
    longer = budget(tmp_path, replace(NOISY, rounds=6), "third", jobs=("any",))
    longer.agree(replace(longer.assessed.manifest, job="third"))
    assert before(replace(again, job="fourth")).alike == again.assessed.manifest.epsilon
    longer.book("train", evaluates=False)
    (cost,) = again.assessed.costs.values()
    assert before(again).alike == epsilon({cost: 6}, 1e-5)


@pytest.mark.slow
def test_a_changed_job_is_a_new_consent(tmp_path: Path, ada: Ada) -> None:
    """A server that comes back with another word in its job gets nothing; on the old code, only if jobs were listed."""
    policy = Policy(allow_plain=True, data=MINE)
    with serving(tmp_path / "one") as server:
        party, address = ada.join(server.address, policy), server.address
        assert len(server.ask()) == 1
    changed = replace(JOB, name="other")
    with (
        serving(tmp_path / "two", changed, address),
        pytest.raises(
            NotAllowed, match=r"jobs: .* has agreed to another job before, and a changed job is a new consent"
        ),
    ):
        party.result(60)
    assert any(
        f"this job is {assessed(changed).manifest.job}" in said for said in ada.said
    )  # to be read before it is added
    assert len(ada.lines("left")) == len(ada.lines("joined")) == 1


# ---- ε is the party's


def test_delta_and_epsilon_are_those_of_the_party(tmp_path: Path) -> None:
    """With three parties the job's own default is a δ of 0.299, at which anything has an ε of 0."""
    local, found = replace(NOISY, rounds=5), dict[float, float | None]()
    for delta in (1e-5, 1e-7):
        found[delta] = budget(tmp_path, local, delta=delta).assessed.manifest.epsilon
        # Each answer may move by two bounds: a vector and its negative.
        assert found[delta] == pytest.approx(
            composed(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(2.0), 5), delta=delta)
        )
    asked = replace(local, stop=[atoll.Budget(1e6, delta=0.3)])
    assert budget(tmp_path, asked).assessed.manifest.epsilon == found[1e-5]
    words = assessed(local).words
    assert "this party's own account\n  epsilon: at most 5.38 at delta 1e-05" in words, words


def test_a_delta_above_one_example_is_refused(tmp_path: Path) -> None:
    many = budget(tmp_path, NOISY, delta=0.01).assessed.manifest
    (said,) = Policy(delta=0.01, allow_plain=True).objections(many, now=NOON)
    assert said.startswith(f"delta: 0.01 is above one over the {many.examples} examples of this party")
    assert many.examples > 100
    assert not [*Policy(delta=1 / many.examples, allow_plain=True).objections(many, now=NOON)]
    plain = budget(tmp_path, JOB).assessed.manifest
    assert plain.epsilon is None
    assert not [*Policy(delta=0.01, allow_plain=True).objections(plain, now=NOON)]  # nothing is promised


def test_answers_of_different_noise_are_composed_as_an_oracle_does(tmp_path: Path) -> None:
    example = Spend(1.2, "poisson", 0.05, "example", times=20, told=True)
    inside = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.05, dpa.GaussianDpEvent(1.2)), 60)
    party = AnswerCost(Spend(4.0, told=True), Spend(2.0, unit="example", told=True))
    hides = {party: 3}
    assert epsilon(hides, 1e-5) == pytest.approx(composed(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(4.0), 3)))
    both = {**hides, AnswerCost(None, example): 3}  # what all of them hide is an example
    twice = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(2.0), 3)
    assert epsilon(both, 1e-5) == pytest.approx(composed(twice, inside))
    assert epsilon({**both, UNLIMITED: 1}, 1e-5) == inf
    assert epsilon({**both, UNLIMITED: 0}, 1e-5) < inf
    account = DataAccount(tmp_path, "wards")
    account.add("a", "2025-06", Tally(costs=Counter(both)))
    assert DataAccount(tmp_path, "wards").read().of().costs == both


def test_noise_that_the_server_would_add_is_no_noise_to_a_party(tmp_path: Path) -> None:
    central = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(4.0))
    found = budget(tmp_path, replace(JOB, channel=atoll.Channel(central)))
    assert set(found.assessed.costs.values()) == {UNLIMITED}
    (said,) = Policy(allow_plain=True, max_epsilon_job=99.0).objections(found.assessed.manifest, now=NOON)
    assert said.startswith("max_epsilon_job: this job has no bound on ε at δ = 1e-05, and 99 is the limit")


def test_an_answer_without_noise_counts_as_unlimited(tmp_path: Path) -> None:
    open_job, noisy = budget(tmp_path, JOB, "open"), budget(tmp_path, NOISY, "noisy", max_epsilon_month=99.0)
    assert before(noisy).month == noisy.assessed.manifest.epsilon
    open_job.book("train", evaluates=False)
    assert before(noisy).month == inf
    with pytest.raises(NotAllowed, match="max_epsilon_month"):
        noisy.allow("train", evaluates=False)
    july = replace(noisy, clock=lambda: datetime(2025, 7, 1, tzinfo=UTC))
    july.allow("train", evaluates=False)
    with pytest.raises(NotAllowed, match="max_epsilon = 99"):
        replace(july, policy=replace(july.policy, max_epsilon=99.0)).allow("train", evaluates=False)


# ---- a party counts itself

BETWEEN = sum(epsilon({AnswerCost(Spend(2.0, told=True)): n}, 1e-5) for n in (2, 3)) / 2


@pytest.mark.parametrize(
    ("limits", "before", "words"),
    [
        ({"max_rounds": 3}, 3, "max_rounds = 3, and with this it would be 4 answers"),
        ({"max_epsilon_job": BETWEEN}, 2, "max_epsilon_job = "),
        ({"max_epsilon_month": BETWEEN}, 2, "max_epsilon_month = "),
        ({"max_epsilon": BETWEEN}, 2, "max_epsilon = "),
        ({}, 5, "asked 6 times, and the job has 5 rounds"),
    ],
)
def test_one_answer_too_many_is_refused_before_and_after_it_is_worked_out(
    tmp_path: Path, limits: dict[str, float], before: int, words: str
) -> None:
    one = budget(tmp_path, NOISY, **limits)
    for _ in range(before):
        one.allow("train", evaluates=False)
        one.book("train", evaluates=False)
    for refused in (one.allow, one.book):
        with pytest.raises(NotAllowed, match=words):
            refused("train", evaluates=False)
    assert one.account.read().of().rounds == before


def test_extra_answers_are_part_of_the_epsilon_that_is_told(tmp_path: Path) -> None:
    more = replace(NOISY, extra_answers=2)
    one, found = budget(tmp_path, NOISY), budget(tmp_path, more)
    (cost,) = one.assessed.costs.values()
    assert one.assessed.manifest.epsilon == epsilon({cost: 5}, 1e-5)
    assert found.assessed.manifest.epsilon == epsilon({cost: 7}, 1e-5)
    for _ in range(7):
        found.book("train", evaluates=False)
    with pytest.raises(NotAllowed, match="asked 8 times"):
        found.allow("train", evaluates=False)


def test_processes_of_one_party_do_not_spend_the_same_budget_twice(tmp_path: Path) -> None:
    found = [budget(tmp_path, JOB, f"job {k}", max_rounds=5) for k in range(4)]
    refused = Counter[str]()

    def spend(one: JobBudget) -> None:
        for _ in range(3):
            try:
                one.book("train", evaluates=False)
            except NotAllowed:
                refused[one.job] += 1

    threads = [threading.Thread(target=spend, args=(one,)) for one in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0].account.read().of().rounds == 5
    assert refused.total() == 7


@pytest.mark.parametrize(
    "change", [lambda b: b[:-9], lambda b: b.replace(b'"rounds": 1', b'"rounds": 0'), lambda _: b""]
)
def test_an_account_that_was_changed_or_cut_is_noticed(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    account = DataAccount(tmp_path, "wards")
    account.add("job", "2025-06", Tally(Counter(["train"]), Counter({UNLIMITED: 1}), 1))
    assert account.path.stat().st_mode & 0o777 == 0o600
    account.path.write_bytes(change(account.path.read_bytes()))
    with pytest.raises(AccountBroken, match=r"wards.json is not what was written: bring it back from a backup"):
        account.read()
