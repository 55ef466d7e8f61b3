"""Which samples stand in which local step: the same numbers for every backend, group and worker."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.core.keys import draw
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.core.world import Source

_LAST = np.uint64(2**64 - 1)  # the ticket of a row that is padding


class MiniBatches(NamedTuple):
    """`rows[k, s]` are the rows of x and y that party k sees in step s; the first `real[k, s]` of them are real.

    Parties with fewer steps than `rows` has end with steps of no real row, which change nothing. Of Poisson batches the
    first `steps[k]` count, drawn empty or not.
    """

    rows: Array
    real: Array
    steps: Array


def batches(group: Group, epochs: int, batch: int | None) -> MiniBatches:
    """Shuffle each party's samples anew for every epoch and cut them; without a batch size a step sees them all."""
    k, most = group.rows.shape
    if batch is None:
        real = np.repeat(group.size[:, None], epochs, 1)
        return MiniBatches(np.repeat(group.rows[:, None, :], epochs, 1), real, np.full(k, epochs))
    per_epoch = -(-most // batch)
    rows = np.zeros((k, epochs, per_epoch * batch), group.rows.dtype)
    position = np.arange(most)
    beyond = position >= group.size[:, None]
    ragged = bool(beyond.any())
    for e in range(epochs):
        ticket = draw(group.world.public("batch", group.t, e, group.me)[:, None], position) >> np.uint64(1)
        if ragged:
            ticket[beyond] = _LAST
        rows[:, e, :most] = np.take_along_axis(group.rows, np.argsort(ticket, axis=1), 1)
    real = np.clip(group.size[:, None] - np.arange(per_epoch) * batch, 0, batch)
    rows, real = rows.reshape(k, epochs * per_epoch, batch), np.tile(real, (1, epochs))
    steps = epochs * -(-group.size // batch)
    if ragged and (steps < real.shape[1]).any():  # steps of no real row between two epochs move to the end
        order = np.argsort(real == 0, axis=1, kind="stable")
        rows = np.take_along_axis(rows, order[:, :, None], 1)
        real = np.take_along_axis(real, order, 1)
    return MiniBatches(rows, real, steps)


def poisson(n: int, epochs: int, batch: int | None) -> tuple[float, int]:
    """Return the sampling rate q of n samples and the number of steps; who has no samples takes no step."""
    if not n:
        return 0.0, 0
    return (1.0, epochs) if batch is None else (min(batch / n, 1.0), epochs * -(-n // batch))


def poisson_batches(group: Group, epochs: int, batch: int | None) -> MiniBatches:
    """Include each sample in every step independently with probability q: batches vary, as accountants assume."""
    plan = [poisson(n, epochs, batch) for n in group.size.tolist()]
    steps = np.array([s for _, s in plan], np.int64)
    real = np.zeros((len(group), max(int(steps.max(initial=0)), 1)), np.int64)
    drawn = []
    for k, (n, (q, s)) in enumerate(zip(group.size.tolist(), plan, strict=True)):
        mine = _drawn(group.world.private("poisson batch", group.t, group.me[k]), n, q, s)
        real[k, :s] = [len(one) for one in mine]
        drawn.append(mine)
    # As wide as the largest batch of the plan, so no draw is ever cut short.
    rows = np.zeros((*real.shape, round_up(int(real.max(initial=0)))), group.rows.dtype)
    for k, batches_of_k in enumerate(drawn):
        for s, chosen in enumerate(batches_of_k):
            rows[k, s, : len(chosen)] = group.rows[k, chosen]
    return MiniBatches(rows, real, steps)


def _drawn(source: Source, n: int, q: float, steps: int) -> list[Array]:
    """Draw the samples of every step, each with probability q."""
    if source.secret:  # whoever could repeat the draws would know which batch hides an example
        limit = np.uint64(min(q * 2.0**64, 2.0**64 - 2048))  # of q = 1 every draw but one in 2^53
        return [np.flatnonzero((source.words(n, "uint64") < limit) | (q >= 1)) for _ in range(steps)]
    rng = source.generator()
    # How many, then which: the same distribution as one draw for each sample, at the cost of the batch only.
    sizes = rng.binomial(n, q, steps)
    return [rng.choice(n, m, replace=False, shuffle=False) for m in sizes.tolist()]


def round_up(n: int) -> int:
    """Return the next size of padding: powers of two and the halves between, so that few shapes are compiled."""
    power = 1 << max(n - 1, 0).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 and power >= 4 else power
