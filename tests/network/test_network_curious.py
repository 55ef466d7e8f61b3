"""Liars and curious parties against what is promised over rounds: whole batches, and cohorts that nobody computes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from cast import Cast

import atoll
import spawn
from atoll.core.effects import Ask, Replies
from atoll.core.method import Pick
from atoll.runtimes.network.server.hub import Hub


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path, ("ada", "ben", "cleo", "dan", "eve", "fay"), repeats=False)
    yield made
    made.end()


# ---- a server that picks and drops as it likes, and parties that open whole batches only

RECIPE = '{ use = "digits", clients = 6 }'
BATCHES = f"""
name = "batches"
rounds = 3
data = {RECIPE}
method = {{ use = "fedavg", model = "softmax", epochs = 1, batch = 10, lr = 0.1 }}
select = {{ use = "batches", number = 4, size = 2, order = "given" }}
stages = [{{ use = "clip", norm = 1.0 }}, "average", "ring"]
combine = "secure_sum"
"""
LIES = {
    1: [0, 1, 2, 4],  # as many as the job says, of two batches and of halves of two others
    2: [1, 2, 3, 4],  # whole batches, if they were cut one party further on
    3: [0, 1, 2, 3, 4, 5],  # all, of whom the server loses one: see DROPPED
}
DROPPED = 5


@pytest.mark.nightly
def test_a_lying_batch_server_opens_no_sum_that_is_not_of_whole_batches(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick, ask = atoll.Batches.pick, Hub.ask

    def lying(self: atoll.Batches, t: int, *rest: Any) -> Pick:
        return Pick(np.array(LIES[t])) if t in LIES else pick(self, t, *rest)

    def dropping(hub: Hub, one: Ask) -> Replies:
        replies = ask(hub, one)
        if one.what != "train/secure.masked" or int(one.body["t"]) != max(LIES):
            return replies
        kept = replies.parties != DROPPED
        return replace(
            replies, parties=replies.parties[kept], each={name: leaf[kept] for name, leaf in replies.each.items()}
        )

    monkeypatch.setattr(atoll.Batches, "pick", lying)
    monkeypatch.setattr(Hub, "ask", dropping)
    monkeypatch.setattr(Cast, "policy", lambda *who: f"whole_batches = 2\n{policy(*who)}")
    run = cast.play(BATCHES, RECIPE)
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in rounds] == [4, 0, 0, 0, 4, 4]
    assert all("aborted" in fact for fact in rounds[1:4])
    refused = [fact for fact in run.facts if fact["what"] == "declined" and "whole_batches forbids it" in fact["why"]]
    asked = {"ada", "ben", "cleo", "dan", "eve"}
    assert {fact["party"] for fact in refused} == asked
    assert len(refused) == 4 + 4 + 5, "everyone who is told of such survivors, each time"
    assert {fact["asked"] for fact in refused} == {"train/secure.consistent"}, "nobody has signed them"


policy = Cast.policy


# ---- a party that knows the job and its own folder, and wonders who else takes part

POISSON = f"""
name = "curious"
seed = 7
rounds = 60
eval_every = 60
data = {RECIPE}
method = {{ use = "fedavg", model = "softmax", epochs = 1, batch = 50, lr = 0.1 }}
select = {{ use = "poisson", rate = 0.5 }}
stages = [{{ use = "clip", norm = 1.0 }}, {{ use = "average", by = "expected" }}, {{ use = "gaussian" }}]
"""
GUESS = """
import json, sys
from hashlib import sha256
from pathlib import Path
import numpy as np
from atoll.core.method import History, Population
from atoll.core.world import World
from atoll.job.file import parse

job, folder = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
said = parse(job, "the job")
known = [job.encode(), *(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())]
lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
known += [word.encode() for line in lines for word in map(str, line.values())]
seeds = {said.seed, *range(20), *(int.from_bytes(sha256(one).digest()[:8], "big") for one in known)}
for one in known:
    try:
        seeds.add(int(one, 16) % 2**63)
    except ValueError:
        pass
everybody, found = Population(np.full(6, 200)), {}
for seed in seeds:
    for world in (World.simulated(seed), World.rehearsed(seed)):
        cohorts = [said.job.select.pick(t, everybody, History(), {}, world).cohort.tolist() for t in range(60)]
        found[f"{seed} {world.shortcut}"] = cohorts
print(json.dumps(found))
"""


@pytest.mark.nightly
def test_a_curious_party_guesses_cohorts_no_better_than_by_chance(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the job text, its key, its audit and all else in its folder. On the old code the seed alone sufficed."""
    ask, real = Hub.ask, dict[int, list[int]]()

    def watching(hub: Hub, one: Ask) -> Replies:
        real[int(one.body["t"])] = one.to.tolist()
        return ask(hub, one)

    monkeypatch.setattr(Hub, "ask", watching)
    cast.play(POISSON, RECIPE)
    text = cast.folder / "job.toml"
    text.write_text(POISSON)
    done = spawn.run(
        [sys.executable, "-c", GUESS, str(text), str(cast.folder / "ada")], capture_output=True, text=True, timeout=300
    )
    guesses = json.loads(done.stdout)
    assert len(guesses) > 100, done.stderr
    truth = coins([real.get(t, []) for t in range(60)])
    right = np.array([(coins(guess) == truth).mean() for guess in guesses.values()])
    # The most extreme of so many fair guesses at 300 coins, with a chance of one in a million for the whole test.
    most = np.sqrt(np.log(2e6 * len(right)) / (2 * truth.size))
    assert abs(right - 0.5).max() < most
    assert truth.mean() == pytest.approx(0.5, abs=0.15)


def coins(cohorts: list[list[int]]) -> np.ndarray:
    """Who of the other five takes part, round by round."""
    return np.array([[party in cohort for party in range(1, 6)] for cohort in cohorts])
