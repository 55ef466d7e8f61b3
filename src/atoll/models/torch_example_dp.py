"""Example-level private training in PyTorch: one party after the other, with the batches and the noise of JAX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.models import torch_engine as engine
from atoll.models.adapters import TorchNet
from atoll.models.batches import MiniBatches, poisson_batches
from atoll.models.example_dp import clipped, expected
from atoll.models.layers import Tensor
from atoll.models.model import Fit, FitStart, Fitted, Model
from atoll.models.net import Net

ROOM = 4 << 20  # numbers in the gradients of examples that are computed at once


def fit_private(model: Model, start: FitStart, group: Group, how: Fit, lr: float) -> Fitted:
    plan, out = poisson_batches(group, how.epochs, how.batch), []
    for k in range(len(group)):
        with engine._draws(model, group, k):
            out.append(_fit(model, start.of(k), group, plan, k, how, lr))
    return Fitted(np.stack(out), np.full(len(group), np.nan))


def _fit(model: Model, start: FitStart, group: Group, plan: MiniBatches, k: int, how: Fit, lr: float) -> Array:
    layout, example_dp = engine._layout(model), how.example_dp
    assert example_dp is not None
    grid = example_dp.grid(group.world)
    v = layout.load(start.w)
    tilt, centre = engine._terms(layout, start, v, how)
    fill, update = engine._optimiser(how.optimiser)
    memory = [v.new_full(v.shape, value) for value in fill]
    total, share = _clipped_sum(model, example_dp.clip), 1 / int(expected(group.size[k], how.batch))
    # No draw may decide whether a step is taken: an empty batch takes its noise all the same.
    for s in range(int(plan.steps[k])):
        g = total(v, group, plan.rows[k, s, : plan.real[k, s]])
        if grid:
            g = g.div_(grid).round_().mul_(grid)
        g += layout.load(example_dp.noise(group, k, s, model.size, model.dtype))
        g *= share
        update(v, engine._tilted(g, v, tilt, centre, how.prox), memory, s + 1, lr)
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
        x, d, _ = engine._slopes(model, v.expand(len(rows), -1), group, rows[:, None], np.ones(len(rows), np.int64))
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
        return torch.stack([layout.flat(engine._gradient(model, leaves, run, x, y)[0]) for x, y in pairs])

    return each


def _recurrent(model: Model) -> bool:
    net = model.net
    if isinstance(net, Net):
        return net.recurrent
    recurrent = engine._torch().nn.RNNBase
    return isinstance(net, TorchNet) and any(isinstance(part, recurrent) for part in net.module().modules())
