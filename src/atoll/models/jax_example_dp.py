"""Example-level private training in JAX: one party after the other, one compiled call a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.jit import jax_library
from atoll.models.batches import MiniBatches, poisson_batches
from atoll.models.example_dp import ExampleDP, clipped, expected
from atoll.models.jax_engine import _cut, _join, _mean_loss, _moves, _only, _padded
from atoll.models.layers import Tensor
from atoll.models.model import Fit, FitStart, Fitted, Model

ROOM = 1 << 12  # numbers in the gradients of examples that are mapped over at once: beyond, one by one is faster
LEAST = 64  # rows of a batch with its padding, which is never computed: so that few shapes are compiled


def fit_private(model: Model, start: FitStart, group: Group, how: Fit, lr: float) -> Fitted:
    plan = poisson_batches(group, how.epochs, how.batch)
    w = np.stack([_fit(model, start.of(k), group, plan, k, how, lr) for k in range(len(group))])
    return Fitted(w, np.full(len(group), np.nan))


def _fit(model: Model, begin: FitStart, group: Group, plan: MiniBatches, k: int, how: Fit, lr: float) -> Array:
    example_dp = how.example_dp
    assert example_dp is not None
    mine = _only(plan, k)
    x, y, rows, real = _padded(group, mine, keep_steps=True)
    rows = np.pad(rows, ((0, 0), (0, max(LEAST - rows.shape[1], 0))))
    start, step, join = _compiled(model, how, begin.linear is not None, example_dp.grid(group.world))
    rate, share = (np.asarray(v, model.dtype) for v in (lr, 1 / expected(group.size[k], how.batch)))
    p, o, p0 = start(begin.w, rate, begin.centre)
    # No draw may decide whether a step is taken: an empty batch takes its noise all the same.
    for s in range(int(mine.steps)):
        noise = example_dp.noise(group, k, s, model.size, model.dtype)
        p, o = step(p, o, p0, x, y, rows[s], real[s], noise, share, rate, begin.linear)
    return np.asarray(join(p))


@lru_cache(maxsize=64)
def _compiled(model: Model, how: Fit, tilted: bool, grid: float) -> tuple[Callable[..., Tensor], ...]:
    """Return the start, one step whose parameters are updated in place, and the end."""
    jax, schema = jax_library(), model.schema
    begin, move = _moves(how, tilted)
    assert how.example_dp is not None
    total = _clipped_sum(model, how.example_dp)

    def start(w: Tensor, lr: Tensor, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = _cut(schema, w)
        middle = p if centre is None else _cut(schema, centre)
        return p, begin(p, lr), (jax.tree.map(lambda a: a + 0, middle) if how.prox else None)

    def one(
        p: Tensor, o: Tensor, p0: Tensor, x: Tensor, y: Tensor, rows: Tensor, count: Tensor, noise: Tensor,
        share: Tensor, lr: Tensor, linear: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        sums = total(p, x, y, rows, count)
        if grid:
            sums = jax.tree.map(lambda a: jax.numpy.round(a / grid) * grid, sums)
        g = jax.tree.map(lambda a, b: (a + b) * share, sums, _cut(schema, noise))
        return move(p, o, p0, g, lr, _cut(schema, linear) if tilted else None)

    return jax.jit(start), jax.jit(one, donate_argnums=(0, 1)), jax.jit(partial(_join, schema))


def _clipped_sum(model: Model, example_dp: ExampleDP) -> Callable[..., Tensor]:
    """Return the function from parameters and a batch to the sum of its examples' clipped gradients."""
    jax, schema = jax_library(), model.schema
    jnp = jax.numpy

    def gradient(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return jax.grad(partial(_mean_loss, model))(p, x[None], y[None], None)

    def run(p: Tensor, x: Tensor, y: Tensor, rows: Tensor, count: Tensor) -> Tensor:
        wide = min(max(ROOM // schema.size, 1), len(rows))
        rows = jnp.pad(rows, (0, -len(rows) % wide))

        def add(i: Tensor, total: Tensor) -> Tensor:
            some = jax.lax.dynamic_slice_in_dim(rows, i * wide, wide)
            g = jax.vmap(gradient, (None, 0, 0))(p, x[some], y[some])
            flat = [g[name].reshape(wide, -1) for name, _ in schema.leaves]
            real = (i * wide + jnp.arange(wide) < count)[:, None]
            sums = [jnp.where(real, leaf, 0).sum(0) for leaf in clipped(jnp, flat, example_dp.clip)]
            return {name: total[name] + s.reshape(shape) for (name, shape), s in zip(schema.leaves, sums, strict=True)}

        return jax.lax.fori_loop(0, -(-count // wide), add, jax.tree.map(jnp.zeros_like, p))

    return run
