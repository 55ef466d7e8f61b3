"""Reasons to end: each ends a run and is named as its reason; one that could never hold is refused before the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_run_parts import digits, rounds_of, small

from atoll.core.wire import Mismatch
from atoll.data import Federated, build
from atoll.job.assemble import assemble
from atoll.methods import FedAvg
from atoll.models import softmax
from atoll.runtimes.network.server.serve import remote
from atoll.runtimes.run import simulate
from atoll.select import Always, Count, Poisson
from atoll.stop.stops import Converged, Patience, Target, WallTime
from atoll.testing import check_refusal


def untested() -> Federated:
    return build({"use": "synthetic", "clients": 4, "samples": 20, "test": 0}, 0)


def test_wall_time_ends_a_run_after_the_round_in_which_it_is_up() -> None:
    """No time has passed before the first round, and some has after it."""
    run = simulate(small(stop=[WallTime(1e-9)]), digits(), workers=0)
    assert rounds_of(run.facts) == [1]
    assert run.reason.endswith("s have passed (wall time 1e-09 s)")
    assert simulate(small(stop=[WallTime(1e9)]), digits(), workers=0).reason == "all 6 rounds done"


@pytest.mark.parametrize("first", [True, False])
def test_of_two_stops_the_one_that_holds_ends_the_run_and_is_its_reason(first: bool) -> None:
    holds, never = Target("local.accuracy", 0.5), Converged(0.0)
    run = simulate(small(stop=[holds, never] if first else [never, holds], rounds=50), digits(), workers=0)
    t, scores = run.curve("local.accuracy")
    assert rounds_of(run.facts) == t[1:]
    assert scores[-1] >= 0.5 > max(scores[:-1])
    assert run.reason == f"local.accuracy reached {scores[-1]:.4g} in round {t[-1]} (target 0.5)"


@pytest.mark.parametrize("stop", [Target(), Patience(), Target("local.loss", 1.0)], ids=repr)
def test_a_stop_that_waits_for_what_nothing_measures_is_refused(stop: Any) -> None:
    check_refusal(lambda: assemble(small(stop=[stop]), untested()), f"'{stop.metric}'", "no test data", "holdout")
    with pytest.raises(Mismatch, match="nothing measures"):
        simulate(small(stop=[Converged(), stop]), untested())


def test_a_stop_of_another_room_is_refused_and_one_without_a_metric_is_not() -> None:
    central = build({"use": "digits", "clients": 4}, 0)
    check_refusal(lambda: assemble(small(stop=[Target("local.loss", 1.0)]), central), "'local.loss'", "measures test.…")
    assemble(small(stop=[Target("test.loss", 1.0)]), central)
    assemble(small(stop=[Converged(), WallTime()]), untested())


def test_a_party_assembles_a_job_whose_stop_only_its_server_can_ask() -> None:
    elsewhere = replace(remote(digits(), [9] * 3), test=None, local=None)
    assert assemble(small(stop=[Target("test.accuracy", 0.9)]), elsewhere).program.splits == ()


def test_a_round_that_nobody_answered_has_not_converged() -> None:
    """It moves nothing, which is no sign of an end; and so is one in which nobody is there."""
    silent = small(select=Count(1), availability=Always(drop=0.7), stop=[Converged(1e-6)], rounds=12)
    run = simulate(silent, digits(), workers=0)
    assert {f["answered"] for f in run.facts if f["what"] == "round"} == {0, 1}
    assert run.reason == "all 12 rounds done"
    away = small(select=Poisson(0.01), stop=[Converged(1e-6)], rounds=12)
    run = simulate(away, digits(), workers=0)
    assert any(f["what"] == "empty" for f in run.facts)
    assert run.reason == "all 12 rounds done"


def test_a_round_of_no_change_that_was_answered_has_converged() -> None:
    still = small(method=FedAvg(softmax(), lr=1e-30), stop=[Converged(1e-6)], rounds=12)
    assert simulate(still, digits(), workers=0).reason.startswith("the parameters moved by")


def test_patience_counts_what_was_evaluated() -> None:
    """Evaluated before the first round and after the eighth: before that nobody knows whether anything improved."""
    patient = small(stop=[Patience("local.loss", rounds=2)], eval_every=8, rounds=10)
    run = simulate(patient, digits(), workers=0)
    assert run.reason == "all 10 rounds done"
    assert run.curve("local.loss")[0] == [0, 8, 10]
    worse = small(method=FedAvg(softmax(), lr=50.0), stop=[Patience("local.loss", rounds=2)], eval_every=4, rounds=10)
    run = simulate(worse, digits(), workers=0)
    assert run.reason.startswith("local.loss has not improved for")
    assert run.curve("local.loss")[0][-1] in (4, 8)
