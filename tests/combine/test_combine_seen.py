"""Who sees what of a hidden sum: its parties know each other, and say so."""

from __future__ import annotations

import pytest

import atoll
from atoll.core.wire import Combine
from atoll.core.world import World


@pytest.mark.parametrize("combine", [atoll.SecureSum(), atoll.LightSum(), atoll.EncryptedSum()], ids=repr)
@pytest.mark.parametrize("world", [World.simulated(0), World.real(0)], ids=["simulated", "real"])
def test_parties_of_a_sum_know_who_else_is_in_it(combine: Combine, world: World) -> None:
    data = atoll.data.load("digits").split(5, seed=0)
    stages = [atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring()]
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), atoll.Channel(stages, combine), rounds=2)
    said = atoll.explain(job, data, world=world)
    assert "other parties: the shared model, and of a sum that they are part of, who else is" in said
    plain = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=2)
    assert "other parties: the shared model only" in atoll.explain(plain, data, world=world)
