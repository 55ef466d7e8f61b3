"""What is left of a store after threads, kills and full disks: all that was told, nothing half, nothing twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from test_network_store import NONE, ROSTER, a_store, check_whole, digest  # noqa: F401

import spawn
from atoll.runtimes.network.server.store import Store

# ---- threads


@pytest.mark.parametrize("keep", [False, True])
def test_sixteen_threads_that_push_at_once_count_once(store: Store, tmp_path: Path, keep: bool) -> None:
    q = store.open_question("r", "train/contribute", 0, [0, 1, 2])
    start, said = threading.Barrier(16), list[tuple[int, str, str]]()

    def push(k: int) -> None:
        body = b"%d" % k * 1000
        start.wait()
        for party in random.Random(k).sample([0, 1, 2], 3):
            said.append((party, digest(body), store.accept(q, party, digest(body), body if keep else None)))

    threads = [threading.Thread(target=push, args=(k,)) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(verdict for *_, verdict in said) == {"accepted": 3, "again": 45}
    assert {(p, d) for p, d, verdict in said if verdict == "accepted"} == {
        (a.party, a.sha256) for a in store.answers(q)
    }
    assert len(list((tmp_path / "answers").iterdir())) == (3 if keep else 0)
    store.close()
    check_whole(tmp_path)


def test_closing_while_threads_push_counts_what_was_told(store: Store) -> None:
    """Whoever was told "accepted" is in the answers, and nobody else, wherever the close falls."""
    store.enrol([(f"p{k}", f"k{k}") for k in range(40)])
    q = store.open_question("r", "train/contribute", 0, range(4, 44))
    said: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda p=p: said.update({p: store.accept(q, p, NONE)})) for p in range(4, 44)
    ]  # fmt: skip
    for k, thread in enumerate(threads):
        thread.start()
        if k == 0:
            thread.join()
        elif k == 20:
            store.close_question(q)
    for thread in threads:
        thread.join()
    assert set(said.values()) == {"accepted", "closed"}
    assert {p for p, verdict in said.items() if verdict == "accepted"} == {a.party for a in store.answers(q)}


# ---- crashes

WRITER = """
import random, sys
from hashlib import sha256
from pathlib import Path
from atoll.runtimes.network.server.store import Store

def say(*words):
    print(*words, flush=True)

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
with Store(folder) as store:
    say("ready")
    store.enrol([(f"p{k}", f"k{k}") for k in range(5 + seed % 3)])
    store.create(f"r{seed}")
    store.move(f"r{seed}", "running")
    say("run", f"r{seed}")
    while True:
        q = store.open_question(f"r{seed}", "train/contribute", 0, range(5))
        say("open", q)
        for party in chance.sample(range(5), 4):
            body = chance.randbytes(chance.choice([10, 5000, 300_000]))
            for _ in range(2):
                verdict = store.accept(q, party, sha256(body).hexdigest(), body)
                say(verdict, q, party, sha256(body).hexdigest())
        store.close_question(q)
        say("closed", q)
        if chance.random() < 0.5:
            store.forget(q)
"""


def test_a_writer_killed_at_any_moment_leaves_all_it_told_and_nothing_half(tmp_path: Path) -> None:
    """Many lives of one store; each is ended by SIGKILL somewhere, what it had said by then must still be so."""
    told = dict[tuple[int, int], str]()
    runs, closed = list[str](), set[int]()
    for seed in range(32):
        chance = random.Random(seed)
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(seed)]
        with spawn.start(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 30))]
            time.sleep(chance.random() * 0.01)
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        assert lines[0] == "ready\n"
        for word, *rest in (line.split() for line in lines if line.endswith("\n")):
            if word == "accepted":
                assert (int(rest[0]), int(rest[1])) not in told
                told[int(rest[0]), int(rest[1])] = rest[2]
            elif word == "again":
                assert told[int(rest[0]), int(rest[1])] == rest[2]
            elif word in ("run", "closed"):
                runs += rest if word == "run" else []
                closed |= {int(rest[0])} if word == "closed" else set()
        check_whole(tmp_path)
    with Store(tmp_path) as store:
        assert store.found.swept == 0
        assert {store.state(run)[0] for run in runs} == {"resumable"}
        assert {store.question(q).state for q in closed} == {"closed"}
        for q in {q for q, _ in told}:
            kept = {a.party: a.sha256 for a in store.answers(q)}
            assert kept.items() >= {p: d for (k, p), d in told.items() if k == q}.items()
            party = next(iter(kept))
            assert store.accept(q, party, NONE) == "again"  # replayed lives later
        assert [m.name for m in store.members()] == [f"p{k}" for k in range(7)]
    assert len(told) > 100


# ---- full disks

FILLER = """
import resource, sys
from hashlib import sha256
from pathlib import Path
from atoll.core.errors import Unwritable
from atoll.runtimes.network.server.store import Store

limit, size = int(sys.argv[2]), int(sys.argv[3])
with Store(Path(sys.argv[1])) as store:
    store.move("r", "running")
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        while True:
            q = store.open_question("r", "train/contribute" * 20, 0, range(4))
            for party in range(4):
                body = b"x" * (q * size)
                print(store.accept(q, party, sha256(body).hexdigest(), body if size else None), q, party, flush=True)
    except Unwritable as error:
        print(error, flush=True)
"""


def fill(folder: Path, limit: int, size: int) -> str:
    with Store(folder) as store:
        store.enrol(ROSTER)
        store.create("r")
        store.move("r", "running")
    command = [sys.executable, "-c", FILLER, str(folder), str(limit), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    *lines, said = done.stdout.splitlines()
    assert said.startswith(f"cannot write to {folder}: ")
    assert said.endswith("free some space, then start the server again: what was committed is kept")
    check_whole(folder)
    with Store(folder) as store:
        for word, q, party in (line.split() for line in lines):
            assert word == "accepted"
            assert int(party) in {a.party for a in store.answers(int(q))}
    assert len(lines) > 4
    return said


@pytest.mark.parametrize(("limit", "size", "why"), [(150_000, 0, "disk"), (1_000_000, 400_000, "File too large")])
def test_a_file_that_may_not_grow_ends_in_a_sentence(tmp_path: Path, limit: int, size: int, why: str) -> None:
    """Facts alone run into the limit in SQLite's files, bodies of growing length in their own."""
    assert why in fill(tmp_path, limit, size)


@pytest.mark.parametrize("size", [0, 5000])
def test_a_full_disk_ends_in_a_sentence_and_with_space_it_goes_on(tmp_path: Path, size: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        fill(disk, 0, size)
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        with Store(disk) as store:
            store.move("r", "running")
            assert store.accept(store.open_question("r", "train/contribute", 0, [0]), 0, NONE, b"") == "accepted"
    finally:
        subprocess.run(["umount", disk], check=True)
