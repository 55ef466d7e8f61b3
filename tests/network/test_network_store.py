"""What the store promises: one answer a party and question, stable numbers, legal steps, nothing committed is lost."""

from __future__ import annotations

import io
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import Unwritable
from atoll.journal import Damaged
from atoll.runtimes.network.server.store import Store, opened
from atoll.runtimes.network.server.tables import MOVES, BadStore, Illegal, Stranger

ROSTER = [(name, f"key of {name}") for name in ("ann", "bob", "cleo", "dan")]
STEPS = [(a, b) for a in MOVES for b in MOVES]


def digest(body: bytes) -> str:
    return sha256(body).hexdigest()


NONE = digest(b"")


@pytest.fixture(name="store")
def a_store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as made:
        made.enrol(ROSTER)
        made.create("r")
        made.move("r", "running")
        yield made


def check_whole(folder: Path) -> None:
    """Every file is a row's and every row's file is what its digest says; SQLite itself finds no fault."""
    with Store(folder) as store:
        path = store.path
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert db.execute("SELECT count(*) FROM questions WHERE state = 'open'").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM runs WHERE state = 'running'").fetchone() == (0,)
    kept = dict(db.execute("SELECT file, sha256 FROM answers WHERE file IS NOT NULL").fetchall())
    db.close()
    found = {file.name: digest(file.read_bytes()) for file in (folder / "answers").iterdir()}
    assert found == kept


# ---- members


def test_numbers_follow_the_roster_and_not_who_comes_first(store: Store) -> None:
    for name in ("dan", "bob", "ann", "cleo"):
        assert store.join(name, f"key of {name}", 5) == [n for n, _ in ROSTER].index(name)
    assert store.join("dan", "key of dan", 7) == 3
    assert [(m.name, m.samples) for m in store.members()] == [("ann", 5), ("bob", 5), ("cleo", 5), ("dan", 7)]


def test_numbers_outlive_every_change_of_the_roster(store: Store) -> None:
    store.enrol([("zoe", "z"), ("cleo", "new key"), ("ann", "key of ann")])
    assert [(m.number, m.name, m.listed) for m in store.members()] == [
        (0, "ann", True), (1, "bob", False), (2, "cleo", True), (3, "dan", False), (4, "zoe", True)
    ]  # fmt: skip
    assert store.join("cleo", "new key", 1) == 2
    store.enrol([("ann", "key of bob"), ("bob", "key of ann")])
    assert (store.join("bob", "key of ann", 1), store.join("ann", "key of bob", 1)) == (1, 0)


@pytest.mark.parametrize(("name", "key"), [("eve", "key of ann"), ("ann", "key of bob"), ("gone", "k")])
def test_whoever_is_not_in_the_roster_is_refused(store: Store, name: str, key: str) -> None:
    store.enrol([*ROSTER, ("gone", "k")])
    store.enrol(ROSTER)
    before = store.members()
    with pytest.raises(Stranger, match=f"^{name} .*roster"):
        store.join(name, key, 1)
    assert store.members() == before


@pytest.mark.parametrize("roster", [[("a", "k"), ("b", "k")], [("a", "k"), ("a", "l")]])
def test_a_roster_with_a_name_or_key_twice_is_refused(store: Store, roster: list[tuple[str, str]]) -> None:
    before = store.members()
    with pytest.raises(ValueError, match="2 times"):
        store.enrol(roster)
    assert store.members() == before


@pytest.mark.parametrize("samples", [-1, True, 2.5, 2**63, None])
def test_a_party_has_a_whole_number_of_samples(store: Store, samples: Any) -> None:
    with pytest.raises(ValueError, match="samples="):
        store.join("ann", "key of ann", samples)


def test_a_party_may_come_back_with_other_samples(store: Store) -> None:
    for samples in (5, 5, 7):
        assert store.join("ann", "key of ann", samples) == 0
        assert store.members()[0].samples == samples


# ---- runs


@pytest.mark.parametrize(("a", "b"), STEPS)
def test_only_legal_steps_of_a_run_are_taken(tmp_path: Path, a: str, b: str) -> None:
    """Exhaustive: every state, every wish."""
    way: dict[str, list[Any]] = {
        "created": [], "running": ["running"], "resumable": ["running", "restart"], "finished": ["running", "finished"],
        "stopped": ["stopped"], "failed": ["failed"]
    }  # fmt: skip
    store = Store(tmp_path)
    store.create("r")
    for step in way[a]:
        if step == "restart":
            store.close()
            store = Store(tmp_path)
        else:
            store.move("r", step)
    assert store.state("r") == (a, "")
    legal = {("created", "running"), ("created", "stopped"), ("created", "failed"), ("running", "finished"),
             ("running", "stopped"), ("running", "failed"), ("resumable", "running"), ("resumable", "stopped"),
             ("resumable", "failed"), ("failed", "running")}  # fmt: skip
    if (a, b) in legal:
        store.move("r", b, "so")  # type: ignore[arg-type]
        assert store.state("r") == (b, "so")
    else:
        with pytest.raises(Illegal, match=f"run r is {a} and cannot become {b}"):
            store.move("r", b)  # type: ignore[arg-type]
        assert store.state("r") == (a, "")
    store.close()


def test_runs_that_are_not_there_or_twice_are_refused(store: Store) -> None:
    for step in (lambda: store.state("x"), lambda: store.move("x", "running"), lambda: store.create("r")):
        with pytest.raises(Illegal, match=r"run [xr]"):
            step()


def test_the_end_of_a_run_ends_its_questions(store: Store) -> None:
    q = store.open_question("r", "train/contribute", 0, [0, 1])
    store.move("r", "stopped", "by hand")
    assert store.question(q).state == "closed"
    assert store.accept(q, 0, NONE) == "closed"
    with pytest.raises(Illegal, match="run r is stopped: only a run that is running"):
        store.open_question("r", "train/contribute", 1, [0])


# ---- questions and answers


def test_every_verdict(tmp_path: Path) -> None:
    now = [100.0]
    with Store(tmp_path, clock=lambda: now[0]) as store:
        store.enrol(ROSTER)
        store.create("r")
        store.move("r", "running")
        q = store.open_question("r", "train/contribute", 3, np.array([2, 0, 1]), within=10)
        assert store.question(q) == (q, "r", "train/contribute", 3, 10.0, "open", (0, 1, 2))
        assert store.accept(q, 3, NONE) == "foreign"
        assert store.accept(q + 1, 0, NONE) == "foreign"
        now[0] = 110.0
        assert store.accept(q, np.int64(0), NONE) == "accepted"
        assert store.accept(q, 0, digest(b"another")) == "again"
        assert store.reject(q, 0, "not finite") == "again"
        assert store.waiting(q) == (1, 2)
        assert store.reject(q, 1, "not finite") == "rejected"
        assert store.accept(q, 1, NONE) == "again"
        assert store.waiting(q) == (2,)
        now[0] = 110.001
        assert store.accept(q, 2, NONE) == "late"
        assert store.reject(q, 2, "not finite") == "late"
        store.close_question(q)
        assert store.accept(q, 2, NONE) == "closed"
        assert store.accept(q, 0, NONE) == "again"  # whose receipt was lost learns that the answer counts
        assert store.waiting(q) == ()
        assert [(a.party, a.verdict, a.reason, a.sha256) for a in store.answers(q)] == [
            (0, "accepted", "", NONE), (1, "rejected", "not finite", "")
        ]  # fmt: skip


def test_who_left_the_roster_is_neither_waited_for_nor_counted(store: Store) -> None:
    q = store.open_question("r", "train/contribute", 0, [0, 1])
    store.enrol(ROSTER[1:])
    assert store.waiting(q) == (1,)
    assert store.accept(q, 0, NONE) == "foreign"


@pytest.mark.parametrize("number", [-1, 2**63, 2**64, 10**30])
def test_numbers_of_any_size_from_a_peer_are_nobodys(store: Store, number: int) -> None:
    q = store.open_question("r", "train/contribute", 0, [0])
    assert store.accept(number, 0, NONE, b"") == store.accept(q, number, NONE) == "foreign"
    assert store.reject(number, number, "x") == "foreign"
    assert store.waiting(number) == store.answers(number) == ()
    with pytest.raises(Illegal, match="no question"):
        store.question(number)


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, NONE + "\n"])
def test_what_is_no_digest_is_refused(store: Store, text: str) -> None:
    q = store.open_question("r", "train/contribute", 0, [0])
    with pytest.raises(ValueError, match="sha256="):
        store.accept(q, 0, text)
    assert store.waiting(q) == (0,)


def test_questions_that_make_no_sense_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="party 9 is no member"):
        store.open_question("r", "train/contribute", 0, [0, 9])
    for within in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="within="):
            store.open_question("r", "train/contribute", 0, [0], within)
    with pytest.raises(Illegal, match="no run"):
        store.open_question("x", "train/contribute", 0, [0])
    assert store.open_question("r", "train/contribute", 0, []) == 1


# ---- bodies


def test_bodies_are_files_until_they_are_forgotten(store: Store, tmp_path: Path) -> None:
    q = store.open_question("r", "train/contribute", 0, [0, 1, 2])
    big = os.urandom(3_000_000)
    assert store.accept(q, 1, digest(big), io.BytesIO(big)) == "accepted"
    assert store.accept(q, 0, digest(b"small"), b"small") == "accepted"
    assert store.accept(q, 1, digest(b"twice"), b"twice") == "again"
    assert store.accept(q, 3, digest(b"not asked"), b"not asked") == "foreign"
    with pytest.raises(ValueError, match="was sent as"):
        store.accept(q, 2, NONE, b"not nothing")
    assert store.waiting(q) == (2,)
    assert [a.file.read_bytes() for a in store.answers(q) if a.file] == [b"small", big]
    assert len(list((tmp_path / "answers").iterdir())) == 2
    assert store.path.stat().st_size < 200_000
    store.forget(q)
    assert list((tmp_path / "answers").iterdir()) == []
    assert [(a.party, a.sha256, a.file) for a in store.answers(q)] == [
        (0, digest(b"small"), None),
        (1, digest(big), None),
    ]
    assert store.accept(q, 1, digest(big), big) == "again"


def test_no_answer_of_an_earlier_server_stays_on_the_disk(store: Store, tmp_path: Path) -> None:
    q = store.open_question("r", "train/contribute", 0, [0])
    store.accept(q, 0, digest(b"mine"), b"mine")
    store.close()
    for name in ("00000001-0-abc", "00000009-4-def.part", "other"):
        (tmp_path / "answers" / name).write_bytes(b"left behind")
    with Store(tmp_path) as again:
        assert again.found.swept == 4
        assert not [*(tmp_path / "answers").iterdir()]
        assert [(a.party, a.verdict, a.file) for a in again.answers(q)] == [(0, "accepted", None)]
    check_whole(tmp_path)


# ---- restarts


def test_a_restart_closes_what_was_open_and_keeps_what_was_committed(store: Store, tmp_path: Path) -> None:
    store.create("new")
    q = store.open_question("r", "train/contribute", 0, [0, 1], within=1000)
    done = store.open_question("r", "evaluate/local", 0, [0])
    store.close_question(done)
    store.accept(q, 0, NONE)
    store.close()
    with pytest.raises(Illegal, match="was closed"):
        store.members()
    with Store(tmp_path) as again:
        assert again.found == (("r",), (q,), 0)
        assert again.state("r")[0] == "resumable"
        assert again.state("new")[0] == "created"
        assert (again.question(q).state, again.question(done).state) == ("interrupted", "closed")
        assert (again.accept(q, 0, NONE), again.accept(q, 1, NONE)) == ("again", "closed")
        again.move("r", "running")
        assert again.open_question("r", "train/contribute", 0, [0]) > done
    with Store(tmp_path) as third:
        assert third.found.interrupted == (done + 1,)


def test_one_process_and_one_store_at_a_time(store: Store, tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match=r"server\.sqlite is in use by another process"):
        Store(tmp_path)
    code = (
        "from pathlib import Path; from atoll.runtimes.network.server.store import Store; "
        f"Store(Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "in use by another process" in done.stderr
    assert store.state("r")[0] == "running"  # and nobody has reconciled it


def test_files_of_others_and_of_other_versions_are_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        path = store.path
    good = path.read_bytes()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(BadStore, match="a store of version 7, and this is 2"):
        Store(tmp_path)
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(BadStore, match="another program's"):
        Store(tmp_path)
    path.write_bytes(b"not a database at all, and long enough to have a header" * 100)
    with pytest.raises(Damaged, match="damaged or not a store"):
        Store(tmp_path)
    path.write_bytes(good)
    with Store(tmp_path) as store:
        store.create("r")


def test_whatever_bit_of_a_store_flips_parties_keep_their_numbers(tmp_path: Path) -> None:
    """Only a mark of another program or version is refused: that may be so."""
    roster, numbers = {"ben": "b", "cleo": "c", "ada": "a"}, {"ada": 2, "ben": 5}
    store, damaged = opened(tmp_path, roster, numbers)
    assert {m.name: m.number for m in store.members()} == {"ada": 2, "ben": 5, "cleo": 6}
    assert not damaged
    store.create("run")
    store.close()
    whole, chance = (tmp_path / "server.sqlite").read_bytes(), random.Random(3)
    moved, used = 0, [at for at, byte in enumerate(whole) if byte]
    for _ in range(60):
        wrong = bytearray(whole)
        wrong[chance.choice(used)] ^= 1 << chance.randrange(8)
        (tmp_path / "server.sqlite").write_bytes(wrong)
        try:
            store, damaged = opened(tmp_path, roster, {**numbers, "cleo": 6})
        except BadStore:
            continue
        assert {m.name: m.number for m in store.members() if m.listed} == {"ada": 2, "ben": 5, "cleo": 6}
        moved += bool(damaged)
        store.close()
    assert moved, "some damage was noticed"


@pytest.mark.parametrize("what", ["name", "number"])
def test_a_store_with_another_name_or_number_is_moved_aside(tmp_path: Path, what: str) -> None:
    roster = {"ada": "key of ada", "ben": "key of ben"}
    store, _ = opened(tmp_path, roster, {})
    with store._write() as db:
        change = "name = 'adb'" if what == "name" else "party = 3"
        db.execute(f"UPDATE members SET {change} WHERE name = 'ada'")
    store.close()
    store, (said,) = opened(tmp_path, roster, {"ada": 0, "ben": 1})
    assert "server.sqlite is damaged" in said
    assert "taken from the facts" in said
    assert {m.name: m.number for m in store.members()} == {"ada": 0, "ben": 1}
    assert (tmp_path / "server.sqlite.damaged").is_file()
    store.close()


def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unwritable, match=r"cannot write to .*file"):
        Store(tmp_path / "file" / "run")
