"""Who lies in a hidden sum: a party is refused by name, a server gets nothing of whom it told something else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import spawn

pytest.importorskip("grpc")

from cast import Cast, parameters, simulated, take_part
from typer.testing import CliRunner

from atoll.cli.app import app
from atoll.job.assemble import agreement_of
from atoll.runtimes.network.messages.envelope import Welcome, read_envelope, write_envelope
from atoll.runtimes.network.server.hub import Hub, QuestionPayload
from atoll.runtimes.network.trust.roster import line_of
from atoll.stages.encodings import _pack_bits, _position_bits

RECIPE = '{ use = "digits", clients = 4, test = 0.2 }'
JOB = f"""
name = "liars"
rounds = 3
data = {RECIPE}
method = {{ use = "fedavg", model = "softmax", epochs = 1, batch = 10, lr = 0.1 }}
select = "all"
stages = [{{ use = "clip", norm = 1.0 }}, "average", {{ use = "ring", bits = 16 }}]
combine = "%s"
"""


def lie(step: str, *args: Any) -> None:
    """Take part, and send rubbish at one step of every round."""
    import atoll.runtimes.network.party.join

    honest = atoll.runtimes.network.party.join.sides_of

    class Liar:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def answer(self, now: str, body: Any, train: Any) -> Any:
            said = self.inner.answer(now, body, train)
            return {"message": np.zeros_like(said["message"])} if now.endswith(f".{step}") else said

    def lying(*about: Any) -> Any:
        return {phase: Liar(side) for phase, side in honest(*about).items()}

    atoll.runtimes.network.party.join.sides_of = lying
    take_part(*args)


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path, ("ada", "ben", "cleo", "dan"))
    yield made
    made.end()


def garble(*args: Any) -> None:
    """Take part, and send positions that nobody writes."""
    import atoll.stages.encodings

    atoll.stages.encodings._pack_positions = lambda at, size: _pack_bits(
        np.ones(_position_bits(len(at), size)[1], bool)
    )
    take_part(*args)


@pytest.mark.nightly
def test_who_sends_a_malformed_encoding_is_named_and_the_run_goes_on(cast: Cast) -> None:
    job = JOB.partition("stages")[0] + 'stages = ["weigh", { use = "top_k", fraction = 0.1 }]\n'
    address = cast.open(job)
    for name in ("ada", "ben", "cleo"):
        cast.join(address, name, cast.policy(name, RECIPE))
    args = (address, str(cast.folder), "dan", line_of(cast.server), cast.policy("dan", RECIPE), True)
    cast.processes["dan"] = spawn.process(garble, *args)
    run = cast.close(240)
    assert [fact["answered"] for fact in run.facts if fact["what"] == "round"] == [3, 3, 3]
    refused = [fact for fact in run.facts if fact["what"] == "rejected"]
    assert [fact["party"] for fact in refused] == ["dan"] * 3
    assert all("the vector is damaged" in fact["why"] for fact in refused)


@pytest.mark.slow
@pytest.mark.parametrize(("combine", "step"), [("secure_sum", "masked"), ("encrypted_sum", "seal")])
def test_a_liar_is_named_and_the_run_goes_on(cast: Cast, combine: str, step: str) -> None:
    address = cast.open(JOB % combine)
    for name in ("ada", "ben", "cleo"):
        cast.join(address, name, cast.policy(name, RECIPE))
    args = (step, address, str(cast.folder), "dan", line_of(cast.server), cast.policy("dan", RECIPE), True)
    cast.processes["dan"] = spawn.process(lie, *args)
    run = cast.close(240)
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in rounds] == [3, 3, 3]
    assert np.isfinite(parameters(run.params)).all()
    refused = [fact for fact in run.facts if fact["what"] == "rejected"]
    assert [fact["party"] for fact in refused] == ["dan"] * 7  # three sums of vectors, four of evaluations
    said = CliRunner().invoke(app, ["status", str(cast.folder / "run"), "--json"])
    assert json.loads(said.output)["rejected"]["dan"]["count"] == 7


def exaggerate(what: str, *args: Any) -> None:
    """Take part, and send a vector whose weight, or whose length, is a thousand times what the job allows."""
    from atoll.runtimes.network.party.join import Party

    honest = Party._train

    def lying(party: Any, asked: str, question: Any) -> Any:
        said = honest(party, asked, question)
        if asked.endswith("/contribute"):
            said["vector"][:, slice(None) if what == "weight" else slice(-1)] *= 1000
        return said

    Party._train = lying  # type: ignore[method-assign]
    take_part(*args)


PLAIN = JOB.replace('combine = "%s"\n', "").replace('stages = [{ use = "clip", norm = 1.0 }, "average", ', "stages = [")
BOUNDED = PLAIN.replace(
    '{ use = "ring", bits = 16 }', '{ use = "clip", norm = 5.0 }, { use = "weigh", max_weight = 999 }'
)


@pytest.mark.parametrize(
    ("job", "what", "why"),
    [
        (PLAIN.replace('{ use = "ring", bits = 16 }', '"weigh"'), "weight", r"a weight of .*: with the \d+ samples"),
        pytest.param(BOUNDED, "weight", r"a weight of .*: with the \d+ samples|is .* long", marks=pytest.mark.nightly),
        pytest.param(BOUNDED, "length", "long", marks=pytest.mark.nightly),
    ],
    ids=["weight", "bounded weight", "length"],
)
def test_who_sends_more_than_the_job_allows_is_refused_by_name(cast: Cast, job: str, what: str, why: str) -> None:
    """A weight of a thousand times its samples would let one of four set the model."""
    address = cast.open(job)
    for name in ("ada", "ben", "cleo"):
        cast.join(address, name, cast.policy(name, RECIPE))
    args = (what, address, str(cast.folder), "dan", line_of(cast.server), cast.policy("dan", RECIPE), True)
    cast.processes["dan"] = spawn.process(exaggerate, *args)
    run = cast.close(240)
    assert [fact["answered"] for fact in run.facts if fact["what"] == "round"] == [3, 3, 3]
    refused = [fact for fact in run.facts if fact["what"] == "rejected"]
    assert {fact["party"] for fact in refused} == {"dan"}
    assert all(re.search(why, fact["why"]) for fact in refused), refused


# --- a server that lies: every party joins as it always does, and the server tells one of them something else ---


def aside(monkeypatch: pytest.MonkeyPatch, tell: Callable[[Welcome], Welcome]) -> None:
    """Let the server welcome dan, and only him, with something of its own making."""
    hello = Hub.hello

    def lying(hub: Hub, name: str, said: bytes) -> bytes:
        welcome = hello(hub, name, said)
        return write_envelope(tell(read_envelope(Welcome, welcome))) if name == "dan" else welcome

    monkeypatch.setattr(Hub, "hello", lying)


def another_job(welcome: Welcome) -> Welcome:
    job = welcome.job.replace("norm = 1.0", "norm = 1000000000.0")
    assert job != welcome.job
    return msgspec.structs.replace(welcome, job=job, manifest=agreement_of(job))


def other_numbers(welcome: Welcome) -> Welcome:
    swapped = {**welcome.members, "ada": welcome.members["ben"], "ben": welcome.members["ada"]}
    return msgspec.structs.replace(welcome, members=swapped)


@pytest.mark.parametrize("combine", ["secure_sum", "light_sum", "encrypted_sum"])
@pytest.mark.parametrize("tell", [another_job, other_numbers])
def test_who_was_told_another_job_or_cohort_gives_nothing(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, combine: str, tell: Callable[[Welcome], Welcome]
) -> None:
    aside(monkeypatch, tell)
    job = JOB % combine
    if combine == "light_sum":
        job = job.replace('"light_sum"', '{ use = "light_sum", privacy = 0.25 }')  # three of four are enough
    run = cast.play(job, RECIPE)
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in rounds] == [3, 3, 3], cast.log("dan")
    why = [fact["why"] for fact in run.facts if fact["what"] == "declined"]
    declined = [fact for fact in run.facts if fact["what"] == "declined"]
    assert {fact["party"] for fact in declined} == {"dan"}
    asked = Counter(fact["asked"].partition("/")[0] for fact in declined)
    assert asked == {"train": 3, "evaluate.local": 4}  # also sums over own test data, of which one is before round 1
    judged = [fact["parties"] for fact in run.facts if fact["what"] == "evaluation" and fact["split"] == "local"]
    assert judged == [3, 3, 3, 3]
    assert all("another job, vector or cohort" in reason for reason in why)
    left = [json.loads(line) for line in (cast.folder / "dan" / "audit.jsonl").read_text().splitlines()]
    assert not [line for line in left if line.get("contributes")]


def test_a_party_trains_for_the_round_that_its_sum_is_bound_to(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a question is not bound by the sum: a server that names another round in it gains nothing."""
    honest = Hub._question

    def lying(hub: Hub, number: int, ask: Any, tree: Any, t: int, within: float, party: Any = None) -> QuestionPayload:
        return honest(hub, number, ask, tree, t + 1000 * (party == 3), within, party)

    monkeypatch.setattr(Hub, "_question", lying)
    run = cast.play(JOB % "secure_sum", RECIPE)
    assert [fact["answered"] for fact in run.facts if fact["what"] == "round"] == [4, 4, 4]
    assert np.array_equal(parameters(run.params), simulated(JOB % "secure_sum"))
