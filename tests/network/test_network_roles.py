"""Programs with roles between real processes: consent, results that stay at each party, kills at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import spawn
from atoll.runtimes.network.trust.roster import line_of, new_key

PARTIES = {"bank": "A", "shop": "B", "notary": "C"}
JOB = """
name = "moments"
rounds = {rounds}
program = {{ use = "joint_moments" }}
[roles]
A = "bank"
B = "shop"
C = "notary"
"""
MAIN = "import sys; from atoll.cli import main; sys.exit(main())"


class Company:
    """A server and three parties, each a process of its own, with keys, policies and tables on disk."""

    def __init__(self, folder: Path, rounds: int, rows: int = 8) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        self.server = line_of(new_key(folder, "server"))
        lines = [line_of(new_key(folder, name)) for name in PARTIES]
        (folder / "roster").write_text("".join(f"{line}\n" for line in lines))
        (folder / "job.toml").write_text(JOB.format(rounds=rounds))
        self.x = np.random.default_rng(5).normal(size=(rows, 3))
        self._table("bank", self.x[:, :2], range(rows))
        self._table("shop", self.x[:, 2:], reversed(range(rows)))
        self.policy("bank", 'roles = ["A"]\npartners = ["shop", "notary"]\ndata = { path = "bank.csv", id = "idx" }')
        self.policy("shop", 'roles = ["A", "B"]\ndata = { path = "shop.csv", id = "idx" }')
        self.policy("notary", 'methods = ["joint_moments"]')
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    def _table(self, name: str, x: np.ndarray, order: Any) -> None:
        head = ",".join(["idx", *(f"{name}{k}" for k in range(x.shape[1]))])
        lines = [",".join([str(k), *map(repr, map(float, x[k]))]) for k in order]
        (self.folder / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")

    def policy(self, name: str, text: str, roster: str = 'roster = "roster"\n') -> None:
        (self.folder / f"{name}.toml").write_text(f"{roster}{text}\n")

    def start(self, name: str, at: str = "") -> None:
        """Start the server, or a party from its own folder (or from `at`)."""
        words = (
            ["serve", "job.toml", "--roster", "roster", "--address", self.address, "--run", "run"]
            if name == "server"
            else [
                "join",
                self.address,
                "--policy",
                f"{name}.toml",
                "--server",
                self.server,
                "--folder",
                at or f"at-{name}",
            ]
        )
        with (self.folder / f"{at or name}.log").open("ab") as log:
            self.processes[at or name] = spawn.start(
                [sys.executable, "-c", MAIN, *words, "--key", f"{name}.key"], cwd=self.folder, stdout=log, stderr=log
            )

    def start_all(self) -> None:
        for name in ("server", *PARTIES):
            self.start(name)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, within: float) -> None:
        """Wait until the server and then all parties have ended well."""
        for name in ("server", *PARTIES):
            try:
                code = self.processes[name].wait(within)
            except subprocess.TimeoutExpired:
                raise AssertionError({name: self.log(name)[-1500:] for name in self.processes}) from None
            # Who was killed when all was done, and started again, finds that the run has ended.
            done = "a run that has ended" in self.log(name)
            late = done if name == "server" else self.answers(name)[-1:] == ["roles.end"]
            assert code == 0 or late, (name, self.log(name)[-2000:], self.log("server")[-2000:])

    def answers(self, name: str) -> list[str]:
        """What a party has answered, by its own log."""
        lines = (self.folder / f"at-{name}" / "audit.jsonl").read_text().splitlines()
        return [line["asked"] for line in map(json.loads, lines) if line["what"] == "left"]

    def facts(self) -> list[dict[str, Any]]:
        path = self.folder / "run" / "facts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def model(self, name: str) -> dict[str, np.ndarray]:
        return load_file(self.folder / f"at-{name}" / f"model-{PARTIES[name]}.safetensors")

    def check_result(self) -> None:
        for name in ("bank", "shop"):
            np.testing.assert_allclose(self.model(name)["mean"], self.x.mean(axis=0), rtol=0, atol=1e-9)
            np.testing.assert_allclose(self.model(name)["covariance"], np.cov(self.x.T), rtol=0, atol=1e-9)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def company(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Company]:
    made = Company(tmp_path, **getattr(request, "param", {"rounds": 2}))
    yield made
    made.end()


def test_roles_over_the_network_find_what_a_simulation_does_and_keep_it(company: Company) -> None:
    from atoll.cli.status import in_words, status
    from atoll.runtimes.network.party.audit import verify

    company.start_all()
    company.wait(60)
    company.check_result()
    assert not list((company.folder / "at-notary").glob("model*"))
    assert not list((company.folder / "run").glob("model*")), "what roles are left with is never sent"
    assert next(iter(in_words(status(company.folder / "run")))).startswith("finished: 2 of 2 rounds done")
    assert "The parties of this run were elsewhere" in (company.folder / "run" / "report.html").read_text()
    lines = [json.loads(line) for line in (company.folder / "at-bank" / "audit.jsonl").read_text().splitlines()]
    assert verify(company.folder / "at-bank" / "audit.jsonl") == len(lines)
    asked = [line["asked"] for line in lines if line["what"] == "left" and line["contributes"]]
    assert asked == ["A.rows", "A.rows", "A.share"]
    assert "path" not in (company.folder / "run" / "job.toml").read_text()
    told = company.log("bank")
    assert "role A (bank): holds columns" in told
    assert "role B" not in told, "a party is told of its own role"
    company.start("server")
    assert company.processes["server"].wait(60) != 0
    assert "a run that has ended" in company.log("server")
    assert next(iter(in_words(status(company.folder / "run")))).startswith("finished"), "it is not served again"


def test_a_second_process_of_a_party_is_turned_away_and_the_run_goes_on(company: Company) -> None:
    company.start("server")
    company.start("bank")
    _until(lambda: any(fact["what"] == "joined" for fact in company.facts()))
    company.start("bank", at="elsewhere")
    assert company.processes["elsewhere"].wait(60) != 0
    assert "bank is here already, from another folder: stop one of the two" in company.log("elsewhere")
    assert company.processes["bank"].poll() is None
    company.kill("bank")
    company.start("bank")  # from its own folder it may come back at once
    company.start("shop")
    company.start("notary")
    company.wait(60)
    company.check_result()
    assert not [fact for fact in company.facts() if fact["what"] in ("declined", "again")]


def _until(there: Callable[[], bool], within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


DATA = '{ path = "bank.csv", id = "idx" }'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'roles = ["B"]\ndata = {DATA}', "roles: the job gives this party role A, not among those allowed; add it"),
        (f'partners = ["shop"]\ndata = {DATA}', "partners: notary plays another role of the job"),
        (f'methods = ["fedavg"]\ndata = {DATA}', "methods: joint_moments is not among those allowed"),
        (f"max_bytes = 1000\ndata = {DATA}", "max_bytes: the job moves up to"),
        (f"max_rounds = 1\ndata = {DATA}", "max_rounds: the job has 2 rounds"),
        (f'require = "secure_sum"\ndata = {DATA}', "require: joint_moments is not a real secure_sum"),
        (f"max_epsilon_job = 1.0\ndata = {DATA}", "max_epsilon_job: this job has no bound"),
        ('data = { path = "bank.csv", id = "id" }', "there is no id column in bank.csv 'id'"),
        ("", "roster: "),
        ('roster = "others"', "roster: shop plays role B, and others has no key of it: add its line"),
        ('roster = "wrong"', "roster: wrong has another key for bank than its own, or none"),
        ('roster = "nowhere"', "roster: cannot read nowhere"),
    ],
)
def test_a_policy_decides_by_role_partner_exposure_and_limit(
    company: Company, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(company.folder)
    lines = (company.folder / "roster").read_text().splitlines()
    (company.folder / "others").write_text(lines[0])
    (company.folder / "wrong").write_text("\n".join(lines[1:]))
    text = text if "data" in text else f"{text}\ndata = {DATA}"
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the sentence is what matters
        consent(text)
    assert words in str(refusal.value)
    assert consent(f'roster = "roster"\nroles = ["A"]\npartners = ["shop", "notary"]\ndata = {DATA}').role == "A"


def consent(text: str) -> Any:
    """Do what a party does before it says anything of its data."""
    from datetime import datetime

    from atoll.job.assemble import agreement_of
    from atoll.job.file import dumps, load_any
    from atoll.job.roles import to_table
    from atoll.runtimes.network.messages.envelope import Welcome
    from atoll.runtimes.network.party.join_roles import _context
    from atoll.runtimes.network.party.policy import Policy
    from atoll.runtimes.network.party.roles import RoleSession, consider
    from atoll.runtimes.network.trust.roster import load_key

    job = dumps(to_table(load_any("job.toml"), data=False))  # type: ignore[arg-type]
    policy = Policy.parse(text)
    considered = consider(RoleSession(policy, job, "bank", 0))
    policy.check(considered.manifest, now=datetime.now().astimezone())
    welcome = Welcome("run", 0, job, agreement_of(job), {})
    return _context(policy, welcome, considered, load_key("bank.key"))


def test_a_plain_answer_needs_to_be_allowed() -> None:
    from datetime import datetime

    from atoll.runtimes.network.party.policy import Manifest, Policy

    now = datetime.now().astimezone()
    for exposure, objected in (("plain", 1), ("noised", 0), ("masked", 0), ("sealed", 0), ("nothing", 0)):
        job = Manifest("", "m", "", 0, 1, 2, "m", exposure, role="B", partners=("bank",))  # type: ignore[arg-type]
        said = [*Policy().objections(job, now=now)]
        assert len(said) == objected, exposure
        assert not [*Policy(allow_plain=True).objections(job, now=now)]
    assert "allow_plain: the hub reads answers of role B as they are" in next(
        Policy().objections(Manifest("", "m", "", 0, 1, 2, "m", role="B"), now=now)
    )


@pytest.mark.nightly
def test_a_party_whose_policy_says_no_says_nothing_of_its_data(company: Company) -> None:
    company.policy("bank", f'partners = ["shop"]\ndata = {DATA}')
    company.start("server")
    company.start("bank")
    assert company.processes["bank"].wait(60) != 0
    assert "partners: notary plays another role" in company.log("bank")
    audit = [json.loads(line) for line in (company.folder / "at-bank" / "audit.jsonl").read_text().splitlines()]
    assert [(line["what"], line.get("samples")) for line in audit] == [("hello", 0)]


def test_a_party_that_joins_twice_by_mistake_is_told_and_the_run_goes_on(company: Company) -> None:
    company.start("server")
    company.start("bank")
    first, until = company.processes["bank"], time.monotonic() + 60
    while "who sees what" not in company.log("bank"):
        assert time.monotonic() < until, company.log("bank")
        time.sleep(0.05)
    company.start("bank")
    assert company.processes["bank"].wait(60) != 0
    assert "at-bank is in use by another process: stop that one first" in company.log("bank")
    first.kill()
    first.wait()
    for name in PARTIES:
        company.start(name)
    company.wait(120)
    company.check_result()


def _killed(company: Company, kills: int, seed: int) -> list[str]:
    """Kill somebody at a time of chance, again and again, and start it anew."""
    chance, killed = random.Random(seed), []
    company.start_all()
    for _ in range(kills):
        time.sleep(chance.uniform(0.2, 5.0))
        if company.processes["server"].poll() is not None:
            break
        name = chance.choice(["server", *PARTIES])
        company.kill(name)
        killed.append(name)
        time.sleep(chance.uniform(0.0, 0.5))
        company.start(name)
    return killed


@pytest.mark.nightly
@pytest.mark.parametrize("company", [{"rounds": 60, "rows": 120}], indirect=True)
@pytest.mark.parametrize("seed", range(int(os.environ.get("ATOLL_KILLS", "3"))))
def test_kills_of_anybody_at_any_moment_change_nothing(company: Company, seed: int) -> None:
    killed = _killed(company, 8, seed)
    company.wait(400)
    company.check_result()
    assert killed
    rounds = [fact["round"] for fact in _counted(company.facts())]
    assert rounds == list(range(1, 61)), "no round is counted twice or left out"


def _counted(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Facts as a report reads them: what a resumed server does again is taken from the later time."""
    kept: list[dict[str, Any]] = []
    for fact in facts:
        if fact["what"] == "start":
            kept = []
        if fact["what"] == "resume":
            kept = [f for f in kept if f.get("round", 0) <= fact["round"]]
        kept.append(fact)
    return [fact for fact in kept if fact["what"] == "round"]


@pytest.mark.nightly
@pytest.mark.parametrize("company", [{"rounds": 6}], indirect=True)
@pytest.mark.parametrize("name", ["server", "bank", "shop", "notary"])
def test_who_is_killed_in_the_middle_of_a_round_comes_back(company: Company, name: str) -> None:
    company.start_all()
    until = time.monotonic() + 100
    while not [f for f in company.facts() if f["what"] == "round" and f["round"] == 2]:
        assert time.monotonic() < until, company.log("server")[-2000:]
        time.sleep(0.05)
    company.kill(name)
    company.start(name)
    company.wait(200)
    company.check_result()
    again = [f["role"] for f in company.facts() if f["what"] == "again"]
    assert name == "server" or PARTIES[name] in again, "the others are asked to meet again"
