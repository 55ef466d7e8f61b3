"""The noise that jobs really add is audited with canaries: right noise passes, halved noise is caught."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.world import World
from atoll.privacy import Account, Spend, audit
from atoll.stages.noise import add_noise

Z, DELTA = 2.0, 1e-5


@pytest.mark.parametrize("world", [World(7), World.real(7)], ids=["simulated", "operating system"])
@pytest.mark.parametrize("whole", [False, True], ids=["real", "ring"])
def test_the_noise_of_a_stage_keeps_its_promise_and_half_of_it_does_not(world: World, whole: bool) -> None:
    bound = 1000 if whole else 1.0  # what a canary adds to its coordinate
    claimed = Account(Spend(Z), DELTA).tight(1)
    assert claimed is not None

    def mechanism(sigma: float):
        drawn = iter(range(10**6))

        def scores(present: bool, size: int) -> np.ndarray:
            x = np.full(size, bound if present else 0, np.uint32 if whole else np.float32)
            noisy = add_noise(x, sigma, world.private("audit", next(drawn)))
            return noisy.view(np.int32).astype(float) if whole else noisy.astype(float)

        return scores

    assert not audit(mechanism(Z * bound), claimed, DELTA, samples=200_000).caught
    assert audit(mechanism(Z * bound / 2), claimed, DELTA, samples=200_000).caught
