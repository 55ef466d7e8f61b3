"""Canaries against example-level DP: a server that knows the job's seed looks for single examples in a party's answers.

Release 0.1 drew the noise of real parties from the seed of the job, which the server knows. So it could subtract the
noise. This audit finds that, and noise that is too small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.methods.fedavg import FedAvg
from atoll.models.example_dp import ExampleDP, expected
from atoll.models.zoo import Backend, linear
from atoll.privacy.audit import PrivacyAudit, audit_scores
from atoll.privacy.ledger import ledger_of
from atoll.select.sample import All

_LONG = 1e3  # of a canary's x: its gradient points along its own weight, to one part in a million
_FAR = 1e6  # of a canary's y: its gradient stays longer than the clip, whatever the noise does to the model


@dataclass(frozen=True)
class Canaries:
    """A party made for an audit: `size` examples of a linear regression, of which every second one is a canary.

    The gradient of canary j is clipped, and lies along weight j alone. So each canary has a number of its own in the
    answer, and the numbers are independent trials if the noise is. Between the canaries stand examples without a
    gradient, in place of canaries that are absent: neighbours differ by one example that is zeroed out.

    Args:
        example_dp: the clip and the noise.
        epochs: passes over the examples in one answer.
        batch: expected examples in a step (none: all of them).
        size: examples of the party, and weights of the model.
        backend: the engine that trains.
    """

    example_dp: ExampleDP = ExampleDP(1.0, 1.2)
    epochs: int = 1
    batch: int | None = None
    size: int = 500
    backend: Backend = "jax"

    def __post_init__(self) -> None:
        if self.size < 2:
            raise Mismatch(f"Canaries(size={self.size}): one example with a canary and one without are needed")

    @property
    def method(self) -> FedAvg:
        """The method of the job, for this party's data."""
        model = linear(backend=self.backend).bind((self.size,), 1)
        return FedAvg(model, self.epochs, self.batch, 1.0, example_dp=self.example_dp)

    @property
    def present(self) -> Array:
        """Which canaries are there."""
        return np.arange(self.size) % 2 == 0

    def samples(self, present: Array | None = None) -> Silos:
        """Return the party's data, with these canaries (none: `present`)."""
        there = self.present if present is None else present
        x = np.diag(np.where(there, _LONG, 0.0)).astype(np.float32)
        return Silos(x, np.where(there, _FAR, 0.0).astype(np.float32), np.array([0, self.size]))

    def answer(self, world: World, t: int, present: Array | None = None) -> Array:
        """Return the change of the model that this party sends in ask t, from a model of zeros."""
        start, me = np.zeros(self.size + 1, np.float32), np.array([0])
        group = Group(me, self.samples(present), me, world, t)
        given = self.method.client_update({"params": start, "lr": 1.0}, group)
        return np.asarray(given.vector["delta"])[0]

    def stated(self, delta: float) -> float:
        """Return the ε that the ledger states for one answer."""
        method, sizes = self.method, np.array([self.size])
        ledger = ledger_of({}, All(), method, sizes, steady=True, rounds=1, deltas={"example": delta})
        assert ledger is not None
        return ledger.of("example").epsilon(1)

    def scores(self, answer: Array) -> Array:
        """Return how often each canary was seen in an answer, noise included: 0 on average where it is absent."""
        share = float(expected(np.array(self.size), self.batch)) / self.example_dp.clip
        return np.asarray(answer[: self.size], np.float64) * share


class CanaryAudit(NamedTuple):
    """What two servers find. `looks` takes the answers as they are.

    `replays` trains a party without canaries in a simulation of the same seed and subtracts its answer: noise and
    batches that come from the seed cancel out.
    """

    looks: PrivacyAudit
    replays: PrivacyAudit

    @property
    def caught(self) -> bool:
        """Whether the stated ε is refuted by one of them."""
        return self.looks.caught or self.replays.caught


def audit_examples(
    canaries: Canaries,
    answer: Callable[[int], Array],
    *,
    seed: int = 0,
    asks: int = 120,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> CanaryAudit:
    """Try to refute the example-level ε that a party states for one answer.

    The server knows the job, its seed, and everything about the party but which canaries are there. It asks the same
    question many times. Each answer is one trial for every canary, and is held against the ε of one answer.

    Args:
        canaries: what the party states.
        answer: what the party sends in ask t. `partial(canaries.answer, World.real(seed))` is an honest real party.
        seed: of the job.
        asks: how often the server asks; asks · size / 2 scores with a canary, and as many without.
        delta: the δ of the stated ε.
        confidence: of each lower bound (Clopper and Pearson).
    """
    nobody, public = np.zeros(canaries.size, bool), World.simulated(seed)
    found = []
    for t in range(asks):
        seen = canaries.scores(answer(t))
        found.append((seen, seen - canaries.scores(canaries.answer(public, t, nobody))))
    claimed, there = canaries.stated(delta), canaries.present
    audits = []
    for scores in map(np.array, zip(*found, strict=True)):
        sides = scores[:, there].ravel(), scores[:, ~there].ravel()
        audits.append(audit_scores(*sides, claimed, delta, confidence))
    return CanaryAudit(*audits)
