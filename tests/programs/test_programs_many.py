"""A role that many parties play: a gossip on a ring, from Python and from a job file; what is refused."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles_cast import PassOn, rows
from safetensors.numpy import load_file
from typer.testing import CliRunner

import atoll
from atoll.cli.app import app
from atoll.core.effects import Ask, Cohort, Note, ask, checkpoint, note
from atoll.core.party import Handler
from atoll.core.program import Agreed, Me, Role, Solo, one
from atoll.core.question import Layout, Leaf, Origin, Question
from atoll.core.tree import Tree
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.data import Federated
from atoll.data.roles import columns, many
from atoll.job.file import parse_any
from atoll.journal import Journal
from atoll.programs.roles import check_program_roles, declared
from atoll.report.roles import explain_roles
from atoll.runtimes.roles.conversation import Lost, converse
from atoll.runtimes.roles.simulate import SimulatedRoles, data_of, simulate_roles
from atoll.testing import check_program

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gossip.py"
TEXT = """
name = "gossip"
rounds = 12
program = { use = "gossip:RingGossip" }
[roles]
peer = "clinics"
[data.peer]
use = "wine"
clients = 8
by = "iid"
"""


@pytest.fixture(scope="module", autouse=True)
def gossip() -> Iterator[ModuleType]:
    """The example, imported as a user's own module."""
    spec = importlib.util.spec_from_file_location("gossip", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gossip"] = module
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("gossip", None)


def parties(n: int, d: int = 3, seed: int = 0) -> Federated:
    g = np.random.default_rng(seed)
    return atoll.data.federate(
        [(g.normal(k, 1, (2 + k % 5, d)), g.normal(size=2 + k % 5)) for k in range(n)], kind="real"
    )


def means(data: Federated) -> Any:
    return np.stack([x.mean(axis=0, dtype=np.float64) for x, _ in data.train])


def job(gossip: ModuleType, rounds: int = 12, **more: Any) -> atoll.RoleJob:
    return atoll.RoleJob(gossip.RingGossip(**more), {"peer": "clinics"}, rounds)


# --- laws of the gossip -----------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(n=st.integers(3, 20), rounds=st.integers(1, 30), weight=st.floats(0.01, 0.49), seed=st.integers(0, 99))
def test_a_gossip_is_a_power_of_its_matrix_and_keeps_the_mean(n: int, rounds: int, weight: float, seed: int) -> None:
    import gossip

    data = parties(n, seed=seed)
    values = simulate_roles(job(gossip, rounds, weight=weight), {"peer": data}).models["peer"]["values"]
    w = gossip.ring(n, weight)
    np.testing.assert_allclose(values, np.linalg.matrix_power(w, rounds) @ means(data), rtol=0, atol=1e-11)
    np.testing.assert_allclose(values.mean(axis=0), means(data).mean(axis=0), rtol=0, atol=1e-13 * n)


def test_peers_meet_at_the_rate_of_the_second_eigenvalue(gossip: ModuleType) -> None:
    run = simulate_roles(job(gossip, 120), {"peer": parties(16)})
    second = np.sort(np.abs(np.linalg.eigvalsh(gossip.ring(16))))[-2]
    assert second == pytest.approx(0.949253, abs=1e-6)
    spreads = np.array([fact["spread"] for fact in run.facts if fact["what"] == "round"])
    ratios = spreads[1:] / spreads[:-1]
    assert (ratios <= second + 1e-9).all()
    assert ratios[60:] == pytest.approx(second, rel=1e-3)


def test_the_gossip_obeys_the_laws_of_programs(gossip: ModuleType) -> None:
    run = check_program(gossip.RingGossip(), {"peer": parties(7)}, rounds=3)
    assert run.models["peer"]["values"].shape == (7, 3)


def test_a_peer_is_told_the_values_of_its_neighbours_and_of_nobody_else(gossip: ModuleType) -> None:
    told: dict[int, dict[int, list[np.ndarray]]] = {}

    class Watched(SimulatedRoles):
        def ask(self, ask: Ask) -> Any:
            for number, own in ask.each.items():
                told.setdefault(int(ask.body["t"]), {})[number] = [own["left"], own["right"]]
            return super().ask(ask)

    data = parties(6)
    asked = job(gossip, 3)
    roles = Watched(asked, data_of(asked, {"peer": data}), b"job".ljust(32), Journal())
    converse(roles.setup, roles, None)
    values, w = means(data), gossip.ring(6)
    for t in range(3):
        for k in range(6):
            near = [row.tolist() for row in told[t][k]]
            expected = (np.linalg.matrix_power(w, t) @ values)[[(k - 1) % 6, (k + 1) % 6]]
            np.testing.assert_allclose(near, expected, atol=1e-12)


def test_many_peers_are_answered_for_in_groups(gossip: ModuleType) -> None:
    """A thousand peers and more than one group: the same values, without a key for each of them."""
    data = parties(1_000)
    values = simulate_roles(job(gossip, 3), {"peer": data}).models["peer"]["values"]
    expected = means(data)
    for _ in range(3):
        expected = (expected + np.roll(expected, 1, 0) + np.roll(expected, -1, 0)) / 3
    np.testing.assert_allclose(values, expected, atol=1e-9)


# --- from a job file --------------------------------------------------------------------------------------------------


def cli(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gossip: ModuleType) -> Path:
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "gossip.toml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_atoll_runs_explains_reports_and_resumes_a_gossip(folder: Path) -> None:
    explained = cli("explain", "gossip.toml").stdout
    for words in ("role peer (clinics): holds rows", "8 parties bring 142 rows", "readable by whom it is sent to",
                  "neighbours learn its values", "neighbours: a peer's values in every round"):  # fmt: skip
        assert words in explained, explained
    done = cli("run", "gossip.toml", "--out", "runs")
    assert done.exit_code == 0, done.output
    (found,) = (folder / "runs").iterdir()
    values = load_file(found / "model-peer.safetensors")["values"]
    assert values.shape == (8, 13)
    page = (found / "report.html").read_text()
    assert "clinics (8 parties)" in page
    assert "a peer&#x27;s values in every round" in page
    (found / "report.html").unlink()
    assert cli("report", str(found)).exit_code == 0
    assert (found / "report.html").read_text() == page
    (found / "checkpoints" / "00000012.safetensors").unlink()  # as if it had not come so far
    (found / "model-peer.safetensors").unlink()
    again = cli("run", "--resume", str(found))
    assert again.exit_code == 0, again.output
    assert np.array_equal(load_file(found / "model-peer.safetensors")["values"], values)
    assert cli("status", str(found)).stdout.startswith("finished: 12 of 12 rounds done")


def test_a_run_that_is_interrupted_goes_on_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    said = parse_any(TEXT, "the test")
    assert isinstance(said, atoll.RoleJob)
    whole = simulate_roles(said).models["peer"]["values"]

    def stop(note: Note) -> None:
        if note.what == "round" and note.facts["round"] == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_roles(said, out=tmp_path / "runs", sinks=(stop,))
    (found,) = (tmp_path / "runs").iterdir()
    again = simulate_roles(said, resume=found)
    assert again.models["peer"]["values"].tobytes() == whole.tobytes()
    assert [f["round"] for f in again.facts if f["what"] == "round"] == list(range(1, 13))


# --- one role for one party beside one for many -----------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """A clerk counts what it hears from many, each of whom adds something of its own that no checkpoint has."""

    roles: Mapping[str, Role] = field(
        default_factory=lambda: {"clerk": Role("adds up"), "voter": Role("holds rows", "samples", many=True)},
        hash=False,
    )

    def check(self, agreed: Agreed) -> None:
        assert agreed.data["voter"].parties > 1

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        number, many = Leaf("float64", ()), Leaf("float64", (agreed.data["voter"].parties,))
        return (
            Question("say", Layout({"bonus": number}), Layout({"sum": number}), ("voter",), {"clerk": "its sum"},
                     contributes=True),
            Question("add", Layout({"sums": many}), Layout({"total": number}), ("clerk",), {}, "nothing"),
        )  # fmt: skip

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        return {"say": Solo(self._say, role)} if role == "voter" else {"add": Solo(self._add, role)}

    def seen(self) -> Mapping[str, str]:
        return {"clerk": "every voter's sum"}

    async def run(self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None) -> Tree:
        total = 0.0
        for t in range(int(memory["t"]) if memory else 0, agreed.rounds):
            each = {int(number): {"bonus": np.array(100.0 * number)} for number in who["voter"]}
            said = await ask(who["voter"], "say", {"t": t}, each=each)
            total = float((await one(who["clerk"], "add", t=t, sums=said.each["sum"]))["total"])
            await note("round", round=t + 1)
            await checkpoint({"t": t + 1})
        return {"total": np.array(total)}

    def _say(self, body: Tree, me: Me) -> tuple[Tree, Mapping[str, Any]]:
        assert body["bonus"] == 100 * me.number
        said = int(me.memory.get("said", np.array(0))) + 1
        return {"sum": np.float64(me.y.sum() + body["bonus"])}, {
            "said": np.array(said), "secret/x": np.array(1), "model/mine": np.arange(2) * said,
        }  # fmt: skip

    def _add(self, body: Tree, me: Me) -> tuple[Tree, Mapping[str, Any]]:
        total = body["sums"].sum() + me.memory.get("model/total", np.array(0.0))
        return {"total": total}, {"model/total": total}


def test_one_and_many_play_together() -> None:
    data = parties(4)
    run = check_program(Survey(), {"voter": data}, rounds=3)
    once = sum(float(y.sum()) for _, y in data.train) + 100.0 * (1 + 2 + 3 + 4)
    assert float(run.models["clerk"]["total"]) == pytest.approx(3 * once)
    assert float(run.found["total"]) == pytest.approx(3 * once)
    assert run.models["voter"]["mine"].tolist() == [[0, 3]] * 4
    assert list(run.models) == ["clerk", "voter"]
    assert run.about["parties"] == 5


def test_secrets_of_many_are_never_written(tmp_path: Path) -> None:
    asked = atoll.RoleJob(Survey(), {"clerk": "a", "voter": "b"}, 2)
    run = simulate_roles(asked, {"voter": parties(4)}, out=tmp_path)
    assert run.folder
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert any(b"model/mine" in path.read_bytes() for path in files)
    assert not any(b"secret/x" in path.read_bytes() for path in files)


@pytest.mark.parametrize("lose", [{1}, {2}, {4}, {5}, {2, 5, 8}, set(range(1, 9))])
def test_a_session_that_is_lost_changes_nothing_at_many(lose: set[int]) -> None:
    class Losing(SimulatedRoles):
        count = 0

        def ask(self, ask: Ask) -> Any:
            found = super().ask(ask)
            self.count += 1
            if self.count in lose:
                raise Lost("voter", ask.what)
            return found

        def lost(self, lost: Lost) -> None:
            return

    asked = atoll.RoleJob(Survey(), {"clerk": "a", "voter": "b"}, 3)
    roles = Losing(asked, data_of(asked, {"voter": parties(4)}), b"job".ljust(32), Journal())
    converse(roles.setup, roles, None)
    assert roles.models["voter"]["mine"].tolist() == [[0, 3]] * 4


# --- what is refused --------------------------------------------------------------------------------------------------


def test_data_that_does_not_fit_many_is_refused(gossip: ModuleType) -> None:
    with pytest.raises(Mismatch, match=r"role peer is played by many parties, and has no data: give it a federation"):
        simulate_roles(job(gossip))
    with pytest.raises(Mismatch, match="role peer is played by many parties: give it a federation"):
        simulate_roles(job(gossip), {"peer": columns(np.zeros((3, 2)))})
    with pytest.raises(Mismatch, match="role A is played by one party: give it columns"):
        simulate_roles(atoll.RoleJob(PassOn(), {"A": "bank", "B": "shop", "K": "notary"}), {**rows(), "A": parties(3)})
    with pytest.raises(Mismatch, match="2 peers are no ring"):
        simulate_roles(job(gossip), {"peer": parties(2)})
    with pytest.raises(ValueError, match=r"nobody plays peer .*: add peer = \"a name for its parties\""):
        atoll.RoleJob(gossip.RingGossip(), {})


def test_a_role_that_holds_columns_only_sees_no_labels() -> None:
    held = many(parties(3), labels=False)
    assert held.samples.y.shape == (len(held.samples.x), 0)
    assert held.summary(b"").sample.leaves.keys() == {"x"}
    assert many(parties(3)).summary(b"").sample.leaves.keys() == {"x", "y"}
    assert held.summary(b"").parties == 3


@dataclass(frozen=True)
class Says:
    said: tuple[Question, ...] = ()
    holds: Any = "samples"

    @property
    def roles(self) -> dict[str, Role]:
        return {"A": Role("a"), "M": Role("many", self.holds, many=True)}

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        return self.said


ROW = Leaf("float64", (3,))
SAY = Question("say", Layout({}), Layout({"row": ROW}), ("M",), {"A": "a row"}, "plain", True)
TAKE = Question("take", Layout({"row": ROW}), Layout({"row": ROW}), ("A",), {}, "nothing")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (SAY._replace(roles=("M", "A")), "declare one for each role"),
        (SAY._replace(seals={"row": "A"}), "neither seals nor opens"),
        (TAKE._replace(seals={"row": "M"}), "for M, which many play: seal for one party"),
        (SAY._replace(answers=Layout({"row": Leaf("float64", (3,), upto=True)})), "leave upto out"),
        (SAY._replace(asks=Layout({"x": ROW}), opens={"x": Origin("A", "take", "row")}), "neither seals nor opens"),
    ],
)
def test_questions_that_many_cannot_answer_are_refused(said: Question, words: str) -> None:
    agreed = Agreed({}, 1)
    assert declared(Says((SAY, TAKE)), agreed)  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match=words):
        declared(Says((said,)), agreed)  # type: ignore[arg-type]


def test_many_hold_something() -> None:
    with pytest.raises(Mismatch, match="whose data says how many: let it hold something"):
        check_program_roles(Says(holds="nothing"))  # type: ignore[arg-type]


def test_answers_of_many_are_held_against_their_layout(gossip: ModuleType) -> None:
    @dataclass(frozen=True)
    class Wrong(Handler):
        split: str = "peer"
        group_size: int = 250

        def __call__(self, body: Tree, group: Any) -> Any:
            return {"values": np.full((len(group), 3), np.nan)}, {}

    class Lying(gossip.RingGossip):  # type: ignore[name-defined, misc]
        def handlers(self, role: str, agreed: Agreed) -> Any:
            return {**super().handlers(role, agreed), "tell": Wrong()}

    asked = replace(job(gossip), program=Lying())
    with pytest.raises(ValueError, match="not finite"):
        simulate_roles(asked, {"peer": parties(4)})


def test_explaining_many_needs_no_data(gossip: ModuleType) -> None:
    words = explain_roles(job(gossip), {})
    assert "role peer (clinics)" in words
    assert "neighbours: a peer's values in every round" in words


def test_over_the_network_many_are_refused_with_the_remedy(gossip: ModuleType, tmp_path: Path) -> None:
    from atoll.runtimes.network.server.serve_roles import serve_roles

    with pytest.raises(Mismatch, match=r"role peer is played by many parties, .* simulate this job with atoll run"):
        serve_roles(job(gossip), address="", credentials=None, roster=dict, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
