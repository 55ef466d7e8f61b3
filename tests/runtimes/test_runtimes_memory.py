"""Memory of parties: it equals a dictionary, survives a kill at any byte, and costs what was remembered and changed."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from safetensors.numpy import load_file

import spawn
from atoll.core.tree import Array, nest
from atoll.core.wire import Mismatch
from atoll.journal.write import Unwritable
from atoll.journal.write import save as write_checkpoint
from atoll.runtimes.local import memory
from atoll.runtimes.local.memory import Damaged, PartyMemory

Model = dict[int, dict[str, Array]]  # what a dictionary would hold: by party, by name
FORMS = [("<f4", (3,)), ("<f4", (2,)), ("<f8", ()), ("|b1", (2, 2)), ("|u1", ()), ("<i8", (1,)), ("<f4", (0,))]
EVERYBODY = 12


def drawn(form: tuple[str, tuple[int, ...]], seed: int) -> Array:
    """Any bits at all: also NaNs with a payload and negative zeros."""
    dtype, shape = np.dtype(form[0]), form[1]
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), np.uint8)
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    array = np.asarray(array)
    return array.dtype.str, array.shape, array.tobytes()


def check(store: PartyMemory, model: Model, me: Array) -> None:
    """Compare what these parties remember with the dictionary, bit by bit."""
    known, leaves, present = store.recall(me)
    rows = [model.get(int(p), {}) for p in me]
    assert known.dtype == bool
    assert known.tolist() == [bool(row) for row in rows]
    assert list(leaves) == list(present) == sorted({name for row in rows for name in row})
    for name, leaf in leaves.items():
        assert present[name].tolist() == [name in row for row in rows]
        there = [row[name] for row in rows if name in row]
        if len({bits(array)[:2] for array in there}) == 1:
            expected = np.stack([row.get(name, np.zeros_like(there[0])) for row in rows])
            assert bits(leaf) == bits(expected)
        else:
            assert leaf.dtype == object
            assert [None if a is None else bits(a) for a in leaf] == [
                bits(r[name]) if name in r else None for r in rows
            ]


def same(store: PartyMemory, model: Model) -> None:
    assert len(store) == len(model)
    check(store, model, np.arange(EVERYBODY + 3))


def rebuilt(folder: Path, token: Mapping[str, Any], model: Model) -> None:
    fresh = PartyMemory(folder)
    fresh.restore(token)
    same(fresh, model)


def filled(seed: int, who: Array | None = None) -> tuple[Array, dict[str, Any], Model]:
    """Some parties with a uniform leaf, a ragged one and one that half of them have."""
    generator = np.random.default_rng(seed)
    me = np.sort(generator.choice(EVERYBODY, 6, replace=False)) if who is None else who
    leaves: dict[str, Any] = {
        "a": generator.normal(size=(len(me), 3)).astype(np.float32),
        "ragged": [generator.normal(size=generator.integers(0, 4)) for _ in me],
        "some": [generator.integers(0, 9, (2,)) if k % 2 else None for k in range(len(me))],
    }
    model = {int(p): {n: leaf[k] for n, leaf in leaves.items() if leaf[k] is not None} for k, p in enumerate(me)}
    return me, leaves, model


@contextmanager
def early(size: int) -> Iterator[None]:
    """Start new logs early."""
    before, memory._SMALL = memory._SMALL, size
    try:
        yield
    finally:
        memory._SMALL = before


class Machine(RuleBasedStateMachine):
    """Remember, recall, save, restore, prune, crash and open again, in any order: always what a dictionary holds."""

    def __init__(self) -> None:
        super().__init__()
        self.context = early(300)
        self.context.__enter__()
        self.folder = Path(tempfile.mkdtemp(prefix="memory-"))
        self.store, self.model = PartyMemory(self.folder), Model()
        self.saved: list[tuple[Mapping[str, Any], Model]] = []  # all that must be restorable
        self.written: list[tuple[Mapping[str, Any], Model]] = []  # checkpoints on disk, the last two
        self.t = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)
        self.context.__exit__(None, None, None)

    @rule(data=st.data(), me=st.lists(st.integers(0, EVERYBODY), unique=True), seed=st.integers(0, 99))
    def remember(self, data: st.DataObject, me: list[int], seed: int) -> None:
        leaves: dict[str, Any] = {}
        for name in data.draw(st.sets(st.sampled_from(["a", "b", "c"]))):
            if me and data.draw(st.booleans()):
                forms = data.draw(st.lists(st.none() | st.sampled_from(FORMS), min_size=len(me), max_size=len(me)))
                leaves[name] = [None if f is None else drawn(f, seed + k) for k, f in enumerate(forms)]
            elif me:
                form = data.draw(st.sampled_from(FORMS))
                leaves[name] = np.stack([drawn(form, seed + k) for k in range(len(me))])
        self.store.remember(np.array(me), leaves)
        for k, party in enumerate(me):
            self.model.pop(party, None)
            if row := {name: leaf[k] for name, leaf in leaves.items() if leaf[k] is not None}:
                self.model[party] = row

    @rule(me=st.lists(st.integers(0, EVERYBODY + 50)))
    def recall(self, me: list[int]) -> None:
        check(self.store, self.model, np.array(me, np.int64))

    @rule()
    def save(self) -> None:
        self.t += 1
        self.saved.append((self.store.save(self.t), dict(self.model)))

    @precondition(lambda self: self.saved)
    @rule()
    def checkpoint(self) -> None:
        """The last save is in a checkpoint on disk; only the one before it stays beside it."""
        self.store.prune(self.saved[-1][0])
        self.written = [*self.written, self.saved[-1]][-2:]
        if len(self.written) == 2:
            self.saved = list(self.written)

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), again=st.booleans())
    def resume(self, data: st.DataObject, again: bool) -> None:
        """Go back to a checkpoint, in this process or, after a crash, in another one."""
        token, model = data.draw(st.sampled_from(self.written or self.saved))
        if again:
            self.store = PartyMemory(self.folder)
        self.store.restore(token)
        self.model = dict(model)
        self.written = [(token, model)]

    @rule(data=st.data(), rubbish=st.binary(max_size=40))
    def tear(self, data: st.DataObject, rubbish: bytes) -> None:
        """A record was torn."""
        if logs := sorted(self.folder.glob("*.log")):
            with data.draw(st.sampled_from(logs)).open("ab") as file:
                file.write(rubbish)

    @invariant()
    def equal(self) -> None:
        same(self.store, self.model)

    @invariant()
    def restorable(self) -> None:
        for token, model in self.saved[-3:]:
            rebuilt(self.folder, token, model)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestMachine = Machine.TestCase


def test_a_party_that_never_answered_remembers_nothing() -> None:
    store = PartyMemory()
    assert store.recall(np.array([3, 4])).leaves == {}
    store.remember(np.array([5, 2]), {"c": np.array([[1.0, 2.0], [3.0, 4.0]])})
    known, leaves, present = store.recall(np.array([2, 3, 5]))
    assert known.tolist() == present["c"].tolist() == [True, False, True]
    assert leaves["c"].tolist() == [[3, 4], [0, 0], [1, 2]]
    assert store.recall(np.array([3, 4])).leaves == {}
    assert len(store) == 2


def test_a_leaf_that_is_not_named_is_forgotten() -> None:
    store = PartyMemory()
    store.remember(np.arange(3), {"a": np.ones(3), "b": np.ones((3, 2), np.uint8)})
    store.remember(np.array([1]), {"b": np.full((1, 2), 7, np.uint8)})
    recalled = store.recall(np.arange(3))
    assert recalled.leaves["a"].tolist() == [1, 0, 1]
    assert recalled.present["a"].tolist() == [True, False, True]
    assert recalled.leaves["b"].tolist() == [[1, 1], [7, 7], [1, 1]]
    store.remember(np.array([0, 2]), {})
    assert store.recall(np.arange(3)).known.tolist() == [False, True, False]
    assert "a" not in store.recall(np.arange(3)).leaves
    assert len(store) == 1


def test_rows_of_different_shapes_come_as_they_were() -> None:
    store = PartyMemory()
    store.remember(np.arange(3), {"s": [np.ones(2, np.float32), None, np.zeros((1, 3))]})
    leaf = store.recall(np.array([2, 1, 0, 9])).leaves["s"]
    assert [None if a is None else (a.dtype.name, a.shape) for a in leaf] == [
        ("float64", (1, 3)), None, ("float32", (2,)), None,
    ]  # fmt: skip
    assert store.recall(np.array([0, 1])).leaves["s"].tolist() == [[1, 1], [0, 0]]  # alike among themselves: rows


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "i4", "u8", "f2", "f4", "f8", "c8", ">f4"])
@pytest.mark.parametrize("shape", [(), (650,), (2, 3, 4), (0,), (3, 0)], ids=str)
def test_every_dtype_and_shape_is_kept_and_rebuilt(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    rows = np.arange(4 * int(np.prod(shape))).reshape(4, *shape).astype(dtype)
    store = PartyMemory(tmp_path)
    store.remember(np.array([8, 1, 30, 4]), {"x": rows})
    token = store.save(1)
    store.restore(token)
    assert bits(store.recall(np.array([1, 8])).leaves["x"]) == bits(rows[[1, 0]])


def test_large_rows_are_kept_and_rebuilt(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 1_600_000)).astype(np.float32)
    store = PartyMemory(tmp_path)
    store.remember(np.array([1]), {"x": rows[:1]})
    store.remember(np.array([2, 3]), {"x": rows[1:]})
    token = store.save(1)
    store.restore(token)
    assert (store.recall(np.array([1, 2, 3])).leaves["x"] == rows).all()


def test_what_was_handed_over_is_copied() -> None:
    store, rows, ragged = PartyMemory(), np.ones((2, 3)), [np.ones(1), np.ones(2)]
    store.remember(np.arange(2), {"x": rows, "ragged": ragged})
    recalled = store.recall(np.arange(2)).leaves
    for array in (rows, *ragged, recalled["x"], *recalled["ragged"]):
        array[:] = 7
    recalled = store.recall(np.arange(2)).leaves
    assert all((array == 1).all() for array in (recalled["x"], *recalled["ragged"]))


def test_ragged_rows_that_grow_do_not_fill_the_disk() -> None:
    """Every party's row grows each time it answers: the space that was left is used again."""
    store = PartyMemory()
    for size in range(1, 400):
        rows = [np.full(size * 16 + k, size, np.float32) for k in range(20)]
        store.remember(np.arange(20), {"x": rows})
    held = len(store._table.leaves["x"]._map)
    assert held < 5 * sum(row.nbytes for row in rows)
    assert all((a == b).all() for a, b in zip(store.recall(np.arange(20)).leaves["x"], rows, strict=True))


def cuts(start: int, end: int) -> list[int]:
    """Both ends, the bytes around the head and the foot, and some others."""
    others = np.random.default_rng(end).integers(start, end, 20).tolist()
    return sorted({*range(start, start + 15), *range(end - 13, end + 1), *others})


def test_a_log_cut_at_any_byte_after_the_last_token_restores_the_last_two(tmp_path: Path) -> None:
    store, model = PartyMemory(tmp_path), Model()
    saves = []
    for t in range(3):
        me, leaves, rows = filled(t)
        store.remember(me, leaves)
        model |= rows
        saves.append((store.save(t), dict(model)))
    log = tmp_path / "memory-1.log"
    whole = log.read_bytes()
    assert len(whole) == saves[2][0]["bytes"]
    for cut in cuts(saves[1][0]["bytes"], len(whole)):
        log.write_bytes(whole[:cut])
        for token, then in saves[:2]:
            rebuilt(tmp_path, token, then)
        with pytest.raises(Damaged, match="is past its end") if cut < len(whole) else _nothing():
            rebuilt(tmp_path, saves[2][0], saves[2][1])
        again = PartyMemory(tmp_path)  # it goes on, and what it writes stands after the torn record
        again.restore(saves[1][0])
        me, leaves, rows = filled(9)
        again.remember(me, leaves)
        token = again.save(2)
        for one, then in [*saves[:2], (token, saves[1][1] | rows)]:
            rebuilt(tmp_path, one, then)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_a_new_log_cut_at_any_byte_leaves_the_old_one(tmp_path: Path) -> None:
    with early(0):
        store, saves, model = PartyMemory(tmp_path), [], Model()
        while not (tmp_path / "memory-2.log").exists():
            me, leaves, rows = filled(len(saves))
            store.remember(me, leaves)
            model |= rows
            saves.append((store.save(len(saves)), dict(model)))
            store.prune(saves[-1][0])
        assert [token["log"] for token, _ in saves[-3:]] == [1, 1, 2]
        new = tmp_path / "memory-2.log"
        whole = new.read_bytes()
        for cut in cuts(0, len(whole) - 1):
            new.write_bytes(whole[:cut])
            for token, then in saves[-3:-1]:
                rebuilt(tmp_path, token, then)
        again = PartyMemory(tmp_path)
        again.restore(saves[-2][0])
        for t in range(5):
            me, leaves, rows = filled(50 + t)
            again.remember(me, leaves)
            token = again.save(t)
            again.prune(token)
        assert not new.exists()  # nobody needs the torn one
        again.restore(token)


KILLED = """
import sys
from pathlib import Path
import numpy as np
from atoll.runtimes.local import memory
memory._SMALL = 1 << 14
store = memory.PartyMemory(Path(sys.argv[1]))
for t in range(1, 100_000):
    store.remember(np.arange(t % 7, 60, 7), {"x": np.full((len(range(t % 7, 60, 7)), 100), t, np.int32)})
    token = store.save(t)
    print(t, *token.values(), flush=True)  # the checkpoint is on disk
    store.prune(token)
"""


@pytest.mark.parametrize("k", range(4))
def test_a_killed_process_leaves_the_last_two_checkpoints_restorable(k: int, tmp_path: Path) -> None:
    with spawn.start([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        lines = [child.stdout.readline() for _ in range(20 + 7 * k)]
        time.sleep(0.003 * k)
        child.send_signal(signal.SIGKILL)
        lines += [line for line in child.stdout.readlines() if line.endswith("\n") and line.count(" ") == 3]
    for line in lines[-2:]:
        t, log, size, check = map(int, line.split())
        store = PartyMemory(tmp_path)
        store.restore({"log": log, "bytes": size, "check": check})
        last = [max((s for s in range(max(t - 6, 1), t + 1) if s % 7 == p % 7), default=0) for p in range(60)]
        known, leaves, _ = store.recall(np.arange(60))
        assert known.tolist() == [s > 0 for s in last]
        assert (leaves["x"] == np.array(last)[:, None]).all()


def test_any_flipped_byte_is_found_and_changes_nothing(tmp_path: Path) -> None:
    store, model = PartyMemory(tmp_path), Model()
    for t in range(2):
        me, leaves, rows = filled(t)
        store.remember(me, leaves)
        model |= rows
        token = store.save(t)
    log = tmp_path / "memory-1.log"
    whole = bytearray(log.read_bytes())
    for at in range(len(whole)):
        whole[at] ^= 1 << at % 8
        log.write_bytes(whole)
        with pytest.raises(Damaged, match=r"memory-1.log is damaged, the record that ends at byte \d+ has another"):
            store.restore(token)
        whole[at] ^= 1 << at % 8
    same(store, model)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda log: log.unlink(), r"memory-1.log cannot be read \(No such file or directory\): resume from"),
        (lambda log: log.write_bytes(b""), "memory-1.log is damaged, byte .* is past its end: resume from"),
        (lambda log: os.truncate(log, 50), "memory-1.log is damaged, byte .* is past its end: resume from"),
    ],
    ids=["missing", "empty", "short"],
)
def test_a_lost_log_is_named_in_a_sentence(spoil: Callable[[Path], Any], sentence: str, tmp_path: Path) -> None:
    store = PartyMemory(tmp_path)
    store.remember(np.arange(5), {"x": np.ones(5)})
    token = store.save(1)
    spoil(tmp_path / "memory-1.log")
    with pytest.raises(Damaged, match=sentence):
        PartyMemory(tmp_path).restore(token)


def test_going_on_from_the_older_checkpoint_leaves_the_newer_one_restorable(tmp_path: Path) -> None:
    store, saves, model = PartyMemory(tmp_path), [], Model()
    for t in range(2):
        me, leaves, rows = filled(t)
        store.remember(me, leaves)
        model |= rows
        saves.append((store.save(t), dict(model)))
    store.restore(saves[0][0])
    me, leaves, rows = filled(5)
    store.remember(me, leaves)
    saves.append((store.save(1), saves[0][1] | rows))
    for token, then in saves:
        rebuilt(tmp_path, token, then)


def test_a_checkpoint_writes_changed_rows_only(tmp_path: Path) -> None:
    row = 650 * 4
    store = PartyMemory(tmp_path)
    store.remember(np.arange(5_000), {"x": np.zeros((5_000, 650), np.float32)})
    before = store.save(0)["bytes"]
    assert before == pytest.approx(5_000 * row, rel=0.01)
    for t, changed in enumerate([1, 10, 100, 1000], start=1):
        store.remember(np.arange(changed), {"x": np.full((changed, 650), t, np.float32)})
        after = store.save(t)["bytes"]
        assert 0 <= after - before - changed * (row + 8) < 200
        before = after
    assert store.save(9)["bytes"] == before  # nothing changed
    store.restore(store.save(9))
    assert store.save(9)["bytes"] == before
    store.remember(np.arange(4_000, 5_000), {})
    assert store.save(10)["bytes"] - before < 1_000 * 8 + 200  # who forgets is named
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == store.save(11)["bytes"]  # arenas have no name


def test_logs_stay_small_however_long_the_run(tmp_path: Path) -> None:
    with early(1 << 16):
        store, live = PartyMemory(tmp_path), 100 * 400 * 4
        for t in range(60):
            me = np.arange(t % 4, 100, 4)
            store.remember(me, {"x": np.full((len(me), 400), t, np.float32)})
            store.prune(store.save(t))
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 7 * live
            assert len(list(tmp_path.iterdir())) <= 2
        assert store.save(60)["log"] > 3


def test_saves_that_reach_no_checkpoint_delete_nothing(tmp_path: Path) -> None:
    """A journal writes only some of the checkpoints it is given: the last two it wrote must be restorable."""
    with early(0):
        store, written, model = PartyMemory(tmp_path), [], Model()
        for t in range(60):
            me, leaves, rows = filled(t)
            store.remember(me, leaves)
            model |= rows
            token = store.save(t)
            if t % 13 == 0:
                store.prune(token)
                written.append((token, dict(model)))
            for one, then in written[-2:]:
                rebuilt(tmp_path, one, then)
        assert written[-1][0]["log"] > written[-2][0]["log"] > 1


def test_the_log_of_the_checkpoint_a_run_resumed_from_is_kept(tmp_path: Path) -> None:
    with early(0):
        store, tokens = PartyMemory(tmp_path), list[Mapping[str, Any]]()
        while not tokens or tokens[-1]["log"] < 2:
            store.remember(np.arange(9), {"x": np.full(9, len(tokens))})
            tokens.append(store.save(len(tokens)))
            store.prune(tokens[-1])
        store.restore(tokens[-2])  # the newer checkpoint cannot be read
        store.remember(np.arange(9), {"x": np.full(9, -1)})
        tokens.append(store.save(len(tokens)))
        store.prune(tokens[-1])
        assert [token["log"] for token in tokens[-3:]] == [1, 2, 3]
        store.restore(tokens[-3])
        assert not (tmp_path / "memory-2.log").exists()


def test_a_full_disk_stops_a_save_and_the_next_one_is_whole(tmp_path: Path) -> None:
    store = PartyMemory(tmp_path)
    store.remember(np.arange(10), {"x": np.ones((10, 1000))})
    first = store.save(0)
    store.remember(np.arange(5), {"x": np.zeros((5, 1000))})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (first["bytes"] + 5000, hard))
    try:
        with pytest.raises(Unwritable, match=r"cannot write party memory to .*: File too large; free some space, then"):
            store.save(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    second = store.save(1)
    assert second["log"] == first["log"] + 1  # what a failed write has left in the first is unknown
    for token, ones in ((first, 10), (second, 5)):
        store.restore(token)
        assert store.recall(np.arange(10)).leaves["x"].sum() == 1000 * ones


def test_a_token_passes_through_a_checkpoint(tmp_path: Path) -> None:
    store = PartyMemory(tmp_path)
    me, leaves, model = filled(0)
    store.remember(me, leaves)
    write_checkpoint(tmp_path / "1.safetensors", {"t": 1, "parties": store.save(1)})
    rebuilt(tmp_path, nest(load_file(tmp_path / "1.safetensors"))["parties"], model)


def test_where_nobody_remembers_nothing_is_written(tmp_path: Path) -> None:
    store = PartyMemory(tmp_path / "run")
    assert store.save(0) == {}
    store.remember(np.arange(4), {})
    assert store.save(1) == {}
    assert not (tmp_path / "run").exists()
    store.remember(np.arange(4), {"x": np.ones(4)})
    assert store.save(2)["log"] == 1
    store.restore({})
    assert len(store) == 0


def test_without_a_folder_nothing_is_written_or_read() -> None:
    store = PartyMemory()
    store.remember(np.arange(4), {"x": np.ones(4)})
    assert store.save(0) == {}
    with pytest.raises(Damaged, match="a memory without a folder has no logs: give it the folder of the run"):
        store.restore({"log": 1, "bytes": 100, "check": 0})


def test_a_checkpoint_of_release_0_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="party memory of another version of atoll: resume it with that version"):
        PartyMemory(tmp_path).restore({"who": np.arange(3), "leaf": {"x": np.ones(3)}})


@pytest.mark.parametrize(
    ("me", "leaves", "sentence"),
    [
        ([1, 2, 1], {"x": np.ones(3)}, "a party stands twice among those that remember"),
        ([1, 2], {"x": np.ones(3)}, "memory 'x' has 3 rows for 2 parties: return a row per party"),
        ([1, 2], {"x": [np.ones(3)]}, "memory 'x' has 1 rows for 2 parties"),
        ([1, 2], {"x": np.float64(1)}, "memory 'x' has 1 rows for 2 parties"),
        ([1], {"x": np.array(["a"])}, "memory 'x' holds <U1: remember booleans or numbers"),
        ([1, 2], {"x": [np.ones(1), {}]}, "memory 'x' holds object: remember booleans or numbers"),
        ([-1], {"x": np.ones(1)}, "party numbers are one row of integers from 0"),
        ([0.5], {"x": np.ones(1)}, "party numbers are one row of integers from 0, got float64"),
        ([[1]], {"x": np.ones(1)}, r"got int64 of shape \(1, 1\)"),
    ],
)
def test_what_cannot_be_remembered_is_refused_and_changes_nothing(me: Any, leaves: Any, sentence: str) -> None:
    store = PartyMemory()
    store.remember(np.array([1]), {"y": np.ones(1)})
    with pytest.raises(Mismatch, match=sentence):
        store.remember(np.array(me), {"y": np.zeros(len(me)), **leaves})
    assert len(store) == 1
    assert store.recall(np.array([1])).leaves["y"].tolist() == [1]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux lists them")
def test_dropped_memories_give_their_files_back(tmp_path: Path) -> None:
    def files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = files()
    for folder in (None, tmp_path):
        for _ in range(20):
            store = PartyMemory(folder)
            store.remember(np.arange(9), {"a": np.ones((9, 5000)), "b": [np.ones(k) for k in range(9)]})
            store.restore(store.save(0))
        store.close()
        assert len(store) == 0
    assert files() == before


RESIDENT = """
import sys
import numpy as np, psutil
from pathlib import Path
from atoll.runtimes.local.memory import PartyMemory
highest, folder = int(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None
who = np.random.default_rng(0).permutation(highest)[:10_000]
rows = np.ones((100, 650), np.float32)
before = psutil.Process().memory_info().rss
store = PartyMemory(folder)
for t, at in enumerate(range(0, 10_000, 100)):
    store.recall(who[at : at + 100])
    store.remember(who[at : at + 100], {"x": rows})
    store.prune(store.save(t))
for at in range(0, 10_000, 100):  # every page is mapped when it is read
    store.recall(who[at : at + 100])
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.parametrize("on_disk", [False, True], ids=["anonymous", "folder"])
def test_a_million_parties_of_whom_ten_thousand_answered_cost_ten_thousand_rows(on_disk: bool, tmp_path: Path) -> None:
    live = 10_000 * 650 * 4

    def resident(highest: int) -> int:
        folder = tmp_path / str(highest) if on_disk else ""
        done = subprocess.run(
            [sys.executable, "-c", RESIDENT, str(highest), str(folder)], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    few, many = resident(10_000), resident(1_000_000)
    assert many < 1.5 * live + 2**24
    assert many - few < 2**24  # 4 bytes per possible party, and what growing takes
    for folder in tmp_path.iterdir():
        assert sum(path.stat().st_size for path in folder.iterdir()) < 1.1 * live
