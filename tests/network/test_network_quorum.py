"""Waiting is not failing: a run without its quorum waits and says for whom; exit codes say how a process ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from test_network_runs import ATOLL, JOB, Federation

import atoll
import spawn
from atoll.cli.exits import Exit
from atoll.job.file import dumps, parse, to_table
from atoll.job.quorum import check_quorum, quorum_of
from atoll.programs.quorum import Quorum

pytest.importorskip("grpc")

FORBIDS = 'data = { use = "digits", clients = 3, party = 2 }\n'
SMALL = JOB.replace("[120, 120]", "[8]")


def status(federation: Federation) -> dict[str, object]:
    command = [*ATOLL, "status", "run", "--json"]
    done = subprocess.run(command, cwd=federation.folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_required_party_that_refuses_is_named_and_waited_for(tmp_path: Path) -> None:
    federation = Federation(tmp_path, SMALL + 'required = ["c"]\n')
    try:
        server = federation.serve("--parties", "2")
        for name in "ab":
            federation.join(name)
        refuses = federation.join("c", FORBIDS)
        assert refuses.wait(90) == 4, "refused"
        federation.until(lambda: status(federation)["refused"])
        said = status(federation)
        assert said["state"] == "waiting"
        assert said["awaited"] == ["c"]
        assert "allow_plain" in said["refused"]["c"]  # type: ignore[index]
        assert "c.toml" not in said["refused"]["c"]  # type: ignore[index]
        (fact,) = [fact for fact in federation.facts() if fact["what"] == "refused"]
        assert fact["party"] == "c"
        federation.join("c")
        assert server.wait(120) == 0, (tmp_path / "server.log").read_text()
        rounds = [fact for fact in federation.facts() if fact["what"] == "round"]
        assert [fact["answered"] for fact in rounds] == [3] * 4
    finally:
        federation.close()


@pytest.mark.nightly
def test_a_run_that_fails_says_so_to_server_and_parties(tmp_path: Path) -> None:
    federation = Federation(tmp_path, SMALL)
    try:
        server = federation.serve("--patience", "6")
        party = federation.join("a")
        assert server.wait(90) == 3, "failed"
        assert "1 of 3 parties came within 6 s" in (tmp_path / "server.log").read_text()
        assert party.wait(60) == 3
        assert status(federation)["state"] == "failed"
    finally:
        federation.close()


@pytest.mark.nightly
def test_a_run_whose_parties_all_die_waits_and_no_round_is_without_an_answer(tmp_path: Path) -> None:
    federation = Federation(tmp_path, SMALL.replace("rounds = 4", "rounds = 40"))
    try:
        server = federation.serve()
        parties = {name: federation.join(name) for name in "abc"}
        federation.until(lambda: sum(f["what"] == "round" for f in federation.facts()) >= 2)
        for party in parties.values():
            party.kill()
            party.wait(10)
        federation.until(lambda: status(federation)["state"] == "waiting")
        assert server.poll() is None
        for name in "abc":
            federation.join(name)
        assert server.wait(120) == 0, (tmp_path / "server.log").read_text()
        rounds = [fact for fact in federation.facts() if fact["what"] == "round"]
        assert [fact["round"] for fact in rounds] == [*range(1, 41)]
        assert all(fact["answered"] for fact in rounds)
    finally:
        federation.close()


def test_a_party_whose_line_is_removed_ends_as_revoked(tmp_path: Path) -> None:
    federation = Federation(tmp_path, SMALL)
    try:
        federation.serve()
        party = federation.join("a")
        federation.until(lambda: "who sees what" in (tmp_path / "a.log").read_text())
        federation.until(lambda: any(p for p in status(federation)["parties"]))  # type: ignore[attr-defined]
        (tmp_path / "roster").write_text("".join(federation.lines[n] + "\n" for n in "bc"))
        assert party.wait(60) == 5, (tmp_path / "a.log").read_text()
    finally:
        federation.close()


def test_a_party_gives_up_an_absent_server_only_where_it_is_told_to(tmp_path: Path) -> None:
    federation = Federation(tmp_path, SMALL)
    (tmp_path / "a.toml").write_text(FORBIDS)
    common = ["--server", federation.lines["server"], "--key", "a.key", "--policy", "a.toml"]
    party = federation.start("join", "127.0.0.1:1", *common, "--patience", "1", log="a.log")
    assert party.wait(60) == 6, "unreachable"


@pytest.mark.nightly
def test_lines_added_changed_and_removed_count_while_a_run_goes_on(tmp_path: Path) -> None:
    """Three begin; d's line is added, then b gets a second key and goes on with it, then a's line is removed."""
    text = SMALL.replace("rounds = 4", "rounds = 400").replace("epochs = 1", "epochs = 4")
    stages = 'stages = [{ use = "clip", norm = 1.0 }, { use = "average" }, { use = "ring" }]\n'
    federation = Federation(tmp_path, f'{text}{stages}combine = {{ use = "secure_sum" }}\n')
    roster = tmp_path / "roster"

    def listed(*lines: str) -> None:
        (tmp_path / "new").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / "new").rename(roster)

    def answered() -> int:
        return int([f["answered"] for f in federation.facts() if f["what"] == "round"][-1])  # type: ignore[call-overload]

    def policy(name: str) -> str:
        part = "abcd".index(name)
        return f'roster = "roster"\ndata = {{ use = "digits", clients = 4, party = {part} }}\n'

    federation.lines["d"] = federation.key("d", tmp_path)
    lines = [federation.lines[name] for name in "abcd"]
    try:
        listed(*lines[:3])
        federation.serve()
        parties = {name: federation.join(name, policy(name)) for name in "abc"}
        federation.until(lambda: roster.exists() and any(f["what"] == "round" for f in federation.facts()))
        assert answered() == 3
        listed(*lines)
        parties["d"] = federation.join("d", policy("d"))
        federation.until(lambda: answered() == 4)
        (tmp_path / "other").mkdir()
        second = federation.key("b", tmp_path / "other")
        listed(*lines, second)
        parties["b"].terminate()
        assert parties["b"].wait(30) == 130
        federation.until(lambda: answered() == 3)
        (tmp_path / "b.key").rename(tmp_path / "b.old")
        (tmp_path / "other" / "b.key").rename(tmp_path / "b.key")
        parties["b"] = federation.join("b", policy("b"))
        federation.until(lambda: answered() == 4)
        listed(second, *lines[2:])
        assert parties["a"].wait(60) == 5
        federation.until(lambda: answered() == 3)
        assert [parties[name].poll() for name in "bcd"] == [None] * 3
        notes = [fact for fact in federation.facts() if fact["what"] == "roster"]
        assert [fact.get("added") for fact in notes if "added" in fact] == ["d"]
        assert [fact.get("removed") for fact in notes if "removed" in fact] == ["a"]
    finally:
        federation.close()


# --- what a job may ask for ---


def job(**more: object) -> atoll.Job:
    return atoll.Job(atoll.FedAvg(atoll.models.softmax()), **({"select": atoll.All()} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (job(min_parties=9), "min_parties = 9, and the select counts on 5 of 5: select more, or lower min_parties"),
        (job(required=["a"], select=atoll.Count(3)), 'every round needs a, and this select leaves parties out: write'),
        (job(min_parties=2, channel=atoll.Channel(combine=atoll.Buffered(2))), "set buffer_size instead"),
    ],
)  # fmt: skip
def test_a_quorum_that_no_round_can_reach_is_refused(made: atoll.Job, words: str) -> None:
    with pytest.raises(atoll.Mismatch, match=words):
        check_quorum(made, 5)


def test_a_name_that_no_roster_has_is_refused() -> None:
    with pytest.raises(
        atoll.Mismatch, match="required: nort is not in the roster, so add its line; did you mean 'north'"
    ):
        quorum_of(job(required=["nort"]), {"north": 0, "south": 1})
    assert quorum_of(job(required=["south"]), {"north": 0, "south": 1}) == Quorum(1, frozenset({1}))


def test_a_quorum_is_part_of_the_text_that_parties_agree_to() -> None:
    text = dumps(to_table(job(min_parties=2, required=["a"]), {"use": "digits", "clients": 3}, 0))
    again = parse(text, "the test").job
    assert (again.min_parties, tuple(again.required)) == (2, ("a",))
    with pytest.raises(atoll.AtollError, match="required = 'a': a list of names"):
        parse(text.replace('["a"]', '"a"'), "the test")


def test_a_simulated_round_below_its_quorum_is_asked_again() -> None:
    data = atoll.data.load("digits").split(3, seed=0)
    made = job(min_parties=3, rounds=4, availability=atoll.Always(drop=0.3), eval_every=9)
    facts = [fact for fact in atoll.simulate(made, data, seed=1).facts if fact["what"] == "round"]
    counted = [fact for fact in facts if "needed" not in fact]
    assert len(facts) > len(counted) == 4
    assert {fact["answered"] for fact in counted} == {3}


# --- whoever restarts it ---

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def wrapped(folder: Path, body: str, final: str = "130") -> subprocess.Popen[bytes]:
    """Start the entry point of the image with another program in the place of atoll."""
    (folder / "atoll").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "atoll").chmod(0o755)
    where = {"PATH": f"{folder}:{os.environ['PATH']}", "FINAL": final}
    return spawn.start(["sh", str(DEPLOY / "entrypoint.sh"), "join"], env=where, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("who", ["server", "party"])
def test_a_container_is_restarted_on_the_codes_where_that_helps(tmp_path: Path, who: str) -> None:
    """Compose restarts what does not end with 0. A failed run may be served again, so its parties come back."""
    text = (DEPLOY / "compose.yaml").read_text()
    (final,) = re.findall(rf'^  {who}:$.*?FINAL: "(.*?)"', text, re.M | re.S)
    assert re.search(r"restart: on-failure\b", text)
    restarted = {Exit.crashed, Exit.unreachable} | ({Exit.failed} if who == "party" else set())
    for code in Exit:
        seen = wrapped(tmp_path, f"exit {code}", final).wait(10)
        assert seen == (code if code in restarted else 0)
    assert wrapped(tmp_path, "kill -KILL $$", final).wait(10) == 137


def test_a_container_hands_on_that_it_is_to_stop(tmp_path: Path) -> None:
    body = f"trap 'exit 130' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    process = wrapped(tmp_path, body)
    end = time.monotonic() + 10
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.terminate()
    assert process.wait(10) == 0


def test_units_restart_on_the_codes_that_the_command_line_has() -> None:
    def listed(file: str) -> set[int]:
        (line,) = re.findall(r"^RestartPreventExitStatus=(.*)$", (DEPLOY / file).read_text(), re.M)
        return {int(code) for code in line.split()}

    person = {Exit.mistaken, Exit.refused, Exit.revoked}
    assert listed("atoll-party@.service") == person
    assert listed("atoll-server.service") == person | {Exit.failed}
