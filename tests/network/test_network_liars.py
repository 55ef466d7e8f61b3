"""A party that lies in a hidden sum is refused by name; the others' sums are opened without it."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from cast import Cast, parameters, take_part
from typer.testing import CliRunner

from atoll.cli.app import app
from atoll.runtimes.network.roster import line_of

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
    import atoll.join

    honest = atoll.join.dialogue_of

    class Liar:
        def __init__(self, *about: Any) -> None:
            self.inner: Any = honest(*about)

        def answer(self, now: str, body: Any, train: Any) -> bytes:
            said = self.inner.answer(now, body, train)
            return bytes(len(said)) if now == step else said

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    atoll.join.dialogue_of = Liar  # type: ignore[assignment]
    take_part(*args)


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path, ("ada", "ben", "cleo", "dan"))
    yield made
    made.end()


@pytest.mark.slow
@pytest.mark.parametrize(("combine", "step"), [("secure_sum", "masked"), ("encrypted_sum", "seal")])
def test_a_liar_is_named_and_the_run_goes_on(cast: Cast, combine: str, step: str) -> None:
    address = cast.open(JOB % combine)
    for name in ("ada", "ben", "cleo"):
        cast.join(address, name, cast.policy(name, RECIPE))
    args = (step, address, str(cast.folder), "dan", line_of(cast.server), cast.policy("dan", RECIPE), True)
    cast.processes["dan"] = multiprocessing.get_context("spawn").Process(target=lie, args=args)
    cast.processes["dan"].start()
    run = cast.close(240)
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in rounds] == [3, 3, 3]
    assert np.isfinite(parameters(run.params)).all()
    refused = [fact for fact in run.facts if fact["what"] == "rejected"]
    assert [fact["party"] for fact in refused] == ["dan"] * 3
    said = CliRunner().invoke(app, ["status", str(cast.folder / "run"), "--json"])
    assert json.loads(said.output)["rejected"]["dan"]["count"] == 3
