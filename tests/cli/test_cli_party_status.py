"""`atoll status` of a party's folder and of an edge's: what its own audit says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.cli.party_status import in_words, party_status
from atoll.cli.status import status_of
from atoll.core.effects import Note
from atoll.journal import Journal
from atoll.runtimes.network.party.audit import AuditLog, Broken


def gave(audit: AuditLog, job: str, times: int = 1) -> None:
    audit.append("joined", server="hub:7100", job=job)
    for k in range(times):
        audit.left(job=job, question=k, asked="train/contribute", size=100, digest="0" * 64, brought=50, epsilon=0.5)


def test_a_party_says_what_it_gave_in_its_last_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with AuditLog(tmp_path / "audit.jsonl") as audit:
        gave(audit, "old", 5)
        gave(audit, "new" * 10, 2)
        audit.append("declined", job="new" * 10, question=3, asked="train/contribute", brought=50, why="not at night")
        now = party_status(tmp_path)
        assert (now["state"], now["answers"], now["declined"], now["bytes"]) == ("running", 2, 1, 350)
    assert party_status(tmp_path)["state"] == "stopped"
    words = list(in_words(party_status(tmp_path)))
    assert words[0].startswith("stopped: 2 answers to hub:7100, 350 bytes in and out, last on 20")
    assert "  declined 1, the last: not at night" in words
    assert words[-1] == "  ε 0.500 so far"
    status_of(tmp_path, as_json=True)
    assert json.loads(capsys.readouterr().out)["server"] == "hub:7100"


def test_a_party_that_joined_nothing_says_so(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.jsonl").close()
    assert list(in_words(party_status(tmp_path))) == ["stopped: no job was joined yet"]


def test_an_edge_also_says_who_is_below(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.jsonl") as audit:
        gave(audit, "job")
    journal = Journal(tmp_path)
    for what, party in (("joined", "ada"), ("joined", "ben"), ("left", "ben")):
        journal.note(Note(what, {"party": party}))
    journal.close()
    words = list(in_words(party_status(tmp_path)))
    assert "  ada: came" in words
    assert "  ben: left" in words


def test_a_changed_audit_is_named(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.jsonl") as audit:
        gave(audit, "job")
    path = tmp_path / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"bytes":100', b'"bytes":101'))
    with pytest.raises(Broken, match="changed after it was written"):
        party_status(tmp_path)
