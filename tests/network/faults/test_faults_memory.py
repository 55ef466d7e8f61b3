"""Whoever is killed at whatever moment: parties remember the answers that were used, and only those."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load

pytest.importorskip("grpc")

from cluster import Cluster

import atoll
from atoll.core.tree import leaves
from atoll.data import build
from atoll.job.file import parse

# No draw depends on the number of the ask, and a sum of fewer than all is not used: so the model after so many used
# rounds is the simulation's, unless a party remembers an answer that was not used, or forgets one that was.
JOB = """
name = "memory"
rounds = 400
eval_every = 400
data = { use = "digits", clients = 3 }
method = { use = "fedsgd", model = "softmax", lr = 0.5 }
select = { use = "partition", number = 3 }
stages = ["weigh", { use = "top_k", fraction = 0.05 }]
"""


def used(federation: Cluster) -> int:
    """Count the rounds that changed the model; of a round that was done again the last time counts."""
    last = {fact["round"]: fact.get("answered", 0) for fact in federation.facts() if fact["what"] in ("round", "empty")}
    return sum(answered == 3 for answered in last.values())


def simulated(rounds: int) -> dict[str, bytes]:
    said = parse(JOB, "the test")
    run = atoll.simulate(replace(said.job, rounds=rounds), build(said.data, said.seed), loop=True)
    return {name: np.asarray(leaf).tobytes() for name, leaf in leaves(run.params)}


@pytest.mark.nightly
def test_killed_servers_and_parties_remember_what_was_used(
    cluster: Callable[..., Cluster], figure: Callable[[str], None]
) -> None:
    federation, chance = cluster(JOB), random.Random(7)
    server = federation.serve("--patience", "60")
    parties = federation.join_all()
    federation.until(lambda: federation.rounds() >= 2)
    killed = {"server": 0, "party": 0}
    while server.poll() is None and sum(killed.values()) < 14:
        time.sleep(chance.uniform(0.2, 1.5))
        if chance.random() < 0.5:
            server.send_signal(signal.SIGKILL)
            server.wait(10)
            killed["server"] += 1
            if federation.finished():
                break
            server = federation.serve("--patience", "60")
        else:
            k = chance.randrange(3)
            parties[k].send_signal(signal.SIGKILL)
            parties[k].wait(10)
            parties[k] = federation.join(k)
            killed["party"] += 1
    federation.ends(server)
    params = load(federation.model())
    rounds = used(federation)
    figure(f"{killed} kills; {rounds} of 400 rounds were used, and the model is that of as many simulated ones")
    assert {name: leaf.tobytes() for name, leaf in params.items()} == simulated(rounds)
    assert rounds > 100
