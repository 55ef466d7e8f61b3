"""Example-level private training in PyTorch: one party after the other, with the batches and the noise of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.models import torch_engine as engine
from atoll.models.batches import Batches, poisson_batches
from atoll.models.model import Fit, Model
from atoll.models.net import Net
from atoll.models.private import clipped, expected

Tensor = Any

ROOM = 4 << 20  # numbers in the gradients of examples that are computed at once


def fit_private(model: Model, w: Array, group: Group, how: Fit, lr: float, linear: Array | None) -> Array:
    plan, out = poisson_batches(group, how.epochs, how.batch), []
    for k in range(len(group)):
        with engine._draws(model, group, k):
            out.append(_fit(model, w, group, plan, k, how, lr, linear))
    return np.stack(out)


def _fit(
    model: Model, w: Array, group: Group, plan: Batches, k: int, how: Fit, lr: float, linear: Array | None
) -> Array:
    layout, private = engine._layout(model), how.private
    assert private is not None
    v = layout.load(w)
    tilt = None if linear is None else layout.load(linear if linear.ndim == 1 else linear[k])
    start = v.clone() if how.prox else None
    fill, update = engine._optimiser(how.optimiser)
    memory = [v.new_full(v.shape, value) for value in fill]
    total, share = _clipped_sum(model, private.clip), 1 / int(expected(group.size[k], how.batch))
    # No coin may decide whether a step is taken: one that drew nobody takes its noise all the same.
    for s in range(int(plan.steps[k])):
        g = total(v, group, plan.rows[k, s, : plan.real[k, s]])
        g += layout.load(private.noise(group, k, s, model.size, model.dtype))
        g *= share
        update(v, engine._tilted(g, v, tilt, start, how.prox), memory, s + 1, lr)
    return layout.store(v)


Gradients = Callable[[Tensor, Group, Array], Tensor]  # parameters and rows of samples to (rows, size)


def _clipped_sum(model: Model, clip: float) -> Gradients:
    """Return the function from parameters and the rows of a batch to the sum of their clipped gradients."""
    torch = engine._torch()
    each = _affine(model) if engine._affine(model.net) else _one_by_one(model) if _recurrent(model) else _mapped(model)

    def run(v: Tensor, group: Group, rows: Array) -> Tensor:
        total, wide = torch.zeros_like(v), max(ROOM // len(v), 1)
        for a in range(0, len(rows), wide):
            total += clipped(torch, [each(v, group, rows[a : a + wide])], clip)[0].sum(0)
        return total

    return run


def _samples(model: Model, group: Group, rows: Array) -> tuple[Tensor, Tensor]:
    return engine._inputs(model, group.samples.x[rows]), engine._labels(model, group.samples.y[rows])


def _affine(model: Model) -> Gradients:
    """One dense layer: every example is a party of its own, and those are computed together already."""

    def each(v: Tensor, group: Group, rows: Array) -> Tensor:
        x, d = engine._slopes(model, v.expand(len(rows), -1), group, rows[:, None], np.ones(len(rows), np.int64))
        return engine._joined(x, d)

    return each


def _mapped(model: Model) -> Gradients:
    torch, layout = engine._torch(), engine._layout(model)
    if not isinstance(model.net, Net):
        engine._module(model, True)  # made now: inside the map PyTorch may not copy it

    def loss(leaves: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        found, _, n = engine._row_losses(model, engine._forward(model, leaves, training=True)(x[None]), y[None])
        return (found / n.clamp(min=1)).sum()

    def gradient(leaves: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return layout.flat(torch.func.grad(loss)(leaves, x, y))

    mapped = torch.func.vmap(gradient, in_dims=(None, 0, 0), randomness="different")
    return lambda v, group, rows: mapped(layout.views(v), *_samples(model, group, rows))


def _one_by_one(model: Model) -> Gradients:
    """Recurrent networks, which PyTorch cannot map over rows."""
    torch, layout = engine._torch(), engine._layout(model)

    def each(v: Tensor, group: Group, rows: Array) -> Tensor:
        leaves = [leaf.detach().requires_grad_() for leaf in layout.views(v)]
        run = engine._forward(model, leaves, training=True)
        pairs = zip(*(part.split(1) for part in _samples(model, group, rows)), strict=True)
        return torch.stack([layout.flat(engine._gradient(model, leaves, run, x, y)) for x, y in pairs])

    return each


def _recurrent(model: Model) -> bool:
    net = model.net
    if isinstance(net, Net):
        return net.recurrent
    return any(isinstance(part, engine._torch().nn.RNNBase) for part in net.module().modules())
