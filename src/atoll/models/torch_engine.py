"""Training and evaluation in PyTorch, on the flat vectors and batches of JAX. No layer and no method lives here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import numpy.typing as npt

from atoll.core.errors import Mismatch, NotInstalled
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.models.adapters import TorchNet
from atoll.models.batches import MiniBatches, batches
from atoll.models.layers import Dense, Embed, Flatten, Tensor
from atoll.models.model import Fit, FitStart, Fitted, Model, Network, mean_loss
from atoll.models.net import Net
from atoll.models.optimiser import Optimiser

if TYPE_CHECKING:
    from torch.nn import Module

    from atoll.models.torch_layers import MemoryLayout

TINY = 10_000  # parameters; below, many parties share one call
WIDTH = 125  # parties in such a call
SLICE = 512  # rows evaluated at a time
BLOCK = 8 << 20  # bytes of samples gathered at a time


@lru_cache(maxsize=1)
def _torch() -> ModuleType:
    """Import PyTorch once: one thread an operation (parties run in parallel instead)."""
    try:
        import torch
    except ImportError:
        raise NotInstalled("the backend 'torch' needs PyTorch: pip install 'atoll[torch]'") from None
    torch.set_num_threads(1)
    return torch


@dataclass(frozen=True)
class TorchEngine:
    """The PyTorch backend."""

    def group_size(self, model: Model) -> int:
        return WIDTH if _affine(model.net) and model.size <= TINY else 1

    def check(self, optimiser: Optimiser) -> None:
        """Refuse an optimiser that parties cannot train with."""
        _optimiser(optimiser)

    def fit(self, model: Model, start: FitStart, group: Group, how: Fit, lr: float) -> Fitted:
        _torch()
        if how.example_dp is not None:
            from atoll.models.torch_example_dp import fit_private

            return fit_private(model, start, group, how, lr)
        plan = batches(group, how.epochs, how.batch)
        if self.group_size(model) > 1:
            return _fit_many(model, start, group, plan, how, lr)
        w, total = zip(*(_fit_one(model, start.of(k), group, plan, k, how, lr) for k in range(len(group))), strict=True)
        return Fitted(np.stack(w), mean_loss(np.array(total), plan.real))

    def grad(self, model: Model, w: Array, group: Group) -> tuple[Array, Array]:
        _torch()
        if self.group_size(model) > 1:
            return _grad_many(model, w, group)
        ws = w if w.ndim == 2 else [w] * len(group)
        each = (_grad_one(model, ws[k], group.rows[k, : group.size[k]], group) for k in range(len(group)))
        g, total = zip(*each, strict=True)
        return np.stack(g), mean_loss(np.array(total), group.size[:, None])

    def scores(self, model: Model, w: Array, x: Array) -> Array:
        with _torch().inference_mode():
            run = _forward(model, _views(model, w), training=False)
            parts = [run(_inputs(model, x[a : a + SLICE])) for a in range(0, max(len(x), 1), SLICE)]
            return np.concatenate([part.numpy() for part in parts])

    def scores_each(self, model: Model, w: Array, group: Group) -> Array:
        if self.group_size(model) > 1:
            return np.concatenate([scores.numpy() for scores, _ in _by_party(model, w, group)])
        return np.concatenate([self.scores(model, w[k], x) for k, (x, _) in enumerate(group)])

    def losses(self, model: Model, w: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
        """Return (loss, right or squared error, number of labels) of every row."""
        parts = []
        with _torch().inference_mode():
            run = _forward(model, _views(model, w), training=False)
            for a in range(0, max(len(x), 1), SLICE):
                scores = run(_inputs(model, x[a : a + SLICE]))
                leaves = _row_losses(model, scores, _labels(model, y[a : a + SLICE]))
                parts.append([leaf.numpy().astype(np.float64) for leaf in leaves])
        loss, right, n = (np.concatenate(column) for column in zip(*parts, strict=True))
        return loss, right, n

    def losses_each(self, model: Model, w: Array, group: Group) -> tuple[Array, Array, Array]:
        if self.group_size(model) > 1:
            each = [
                [a.numpy().astype(np.float64) for a in _row_losses(model, *some)] for some in _by_party(model, w, group)
            ]
        else:
            each = [[*self.losses(model, w[k], x, y)] for k, (x, y) in enumerate(group)]
        loss, right, n = (np.concatenate(column) for column in zip(*each, strict=True))
        return loss, right, n


# --- a network as PyTorch sees it -------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _layout(model: Model) -> MemoryLayout:
    from atoll.models.torch_layers import layout

    if not isinstance(model.net, Net | TorchNet):
        raise Mismatch("this network is written in JAX: leave its backend as 'jax', or bring a torch module")
    return layout(model.net, model.dtype)


def _views(model: Model, w: Array) -> list[Tensor]:
    layout = _layout(model)
    return layout.views(layout.load(w))


@lru_cache(maxsize=64)
def _module(model: Model, training: bool) -> Module:
    """Return a copy of the user's module; its parameters are replaced at every call, so it never changes."""
    assert isinstance(model.net, TorchNet)  # `_layout` refuses all others
    return deepcopy(model.net.module()).to(getattr(_torch(), model.dtype)).train(training)


def _forward(model: Model, leaves: Sequence[Tensor], training: bool) -> Callable[[Tensor], Tensor]:
    """Return the function from rows to scores at these parameters."""
    torch, net = _torch(), model.net
    named = {name: leaf for (name, _), leaf in zip(net.schema.leaves, leaves, strict=True)}
    if isinstance(net, Net):
        from atoll.models.torch_layers import forward, stages

        return partial(forward, stages(net, named))
    module = _module(model, training)
    return lambda x: torch.func.functional_call(module, named, (x,))


def _affine(net: Network) -> TypeGuard[Net]:
    """Say whether the network is one dense layer: linear, logistic or softmax regression."""
    if not isinstance(net, Net) or not all(isinstance(layer, Flatten | Dense) for layer in net.layers):
        return False
    return [type(layer) for layer in net.layers].count(Dense) == 1 and isinstance(net.layers[-1], Dense)


def _inputs(model: Model, x: Array) -> Tensor:
    """Hand rows to PyTorch: symbols as integers, all else in the model's precision."""
    net = model.net
    symbols = isinstance(net.layers[0], Embed) if isinstance(net, Net) else np.issubdtype(x.dtype, np.integer)
    return _tensor(x, np.int64 if symbols else model.dtype)


def _labels(model: Model, y: Array) -> Tensor:
    return _tensor(y, np.int64 if model.net.loss == "cross_entropy" else model.dtype)


def _tensor(a: Array, dtype: npt.DTypeLike) -> Tensor:
    """Copy only where the type differs, or where the array may not be written (of which PyTorch warns)."""
    same = a.dtype == dtype and a.flags.writeable and a.flags.c_contiguous
    return _torch().from_numpy(np.asarray(a) if same else np.array(a, dtype))


def _row_losses(model: Model, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, right (or squared error) and number of labels of each row."""
    torch, net = _torch(), model.net
    f = torch.nn.functional
    if net.loss == "squared":
        error = ((scores - y.reshape(scores.shape)) ** 2).reshape(len(scores), -1).sum(1)
        return 0.5 * error, error, torch.ones_like(error)
    if net.loss == "logistic":
        s = scores[:, 0]
        return f.binary_cross_entropy_with_logits(s, y, reduction="none"), (s > 0) == (y > 0), torch.ones_like(s)
    loss = f.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1), reduction="none").view(y.shape)
    right = scores.argmax(-1) == y
    if y.ndim == 1:
        return loss, right, torch.ones_like(loss)
    counts = torch.ones_like(loss) if net.ignore is None else (y != net.ignore).to(loss.dtype)
    inner = tuple(range(1, y.ndim))
    return (loss * counts).sum(inner), (right * counts).sum(inner), counts.sum(inner)


def _mean_loss(model: Model, scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean over the labels that count."""
    net, f = model.net, _torch().nn.functional
    if net.loss != "cross_entropy":
        loss, _, _ = _row_losses(model, scores, y)
        return loss.mean()
    scores, labels = scores.reshape(-1, scores.shape[-1]), y.reshape(-1)
    if y.ndim == 1 or net.ignore is None:
        return f.cross_entropy(scores, labels)
    some = int((labels != net.ignore).sum())
    return f.cross_entropy(scores, labels, ignore_index=net.ignore, reduction="sum") / max(some, 1)


# --- one party --------------------------------------------------------------------------------------------------------


def _blocks(model: Model, group: Group, rows: Array, count: Array) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Gather the samples of some steps at a time: (steps, batch, …) of x and y, and each step's count."""
    x, y = group.samples.x, group.samples.y
    per = max(1, min(64, BLOCK // max(x[:1].nbytes * rows.shape[1], 1)))
    for a in range(0, len(rows), per):
        n = count[a : a + per]
        wide = int(n.max(initial=0))
        if wide:
            some = rows[a : a + per, :wide]
            yield _inputs(model, x[some]), _labels(model, y[some]), n.tolist()


def _feed(model: Model, group: Group, rows: Array, count: Array) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield x and y of every step that has samples, without padding."""
    for xs, ys, counts in _blocks(model, group, rows, count):
        for x, y, n in zip(xs.unbind(0), ys.unbind(0), counts, strict=True):
            if n:
                yield (x, y) if n == len(x) else (x[:n], y[:n])


def _fit_one(
    model: Model, start: FitStart, group: Group, plan: MiniBatches, k: int, how: Fit, lr: float
) -> tuple[Array, float]:
    """Train one party; return its parameters and the losses of all samples of its steps, added up."""
    from atoll.models.torch_layers import by_hand

    layout, rows, count = _layout(model), plan.rows[k], plan.real[k]
    v = layout.load(start.w)
    if how.optimiser.plain and start.linear is None and not how.prox:
        if by_hand(model.net):
            total = _descend(model, v, _blocks(model, group, rows, count), lr)
        else:
            with _draws(model, group, k):
                total = _sgd_steps(model, v, _feed(model, group, rows, count), lr)
    else:
        with _draws(model, group, k):
            total = _steps(model, v, _feed(model, group, rows, count), how, lr, start)
    return layout.store(v), float(total)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    torch = _torch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _draws(model: Model, group: Group, k: int) -> AbstractContextManager[None]:
    """Give what a module draws (dropout) an address: round and party."""
    if isinstance(model.net, Net):
        return nullcontext()
    return _seeded(int(group.world.public("module", group.t, group.me[k])[0] >> np.uint64(1)))


def _descend(model: Model, v: Tensor, blocks: Iterator[tuple[Tensor, Tensor, list[int]]], lr: float) -> Tensor:
    from atoll.models.torch_layers import by_hand, descent, stages

    torch, net = _torch(), model.net
    leaves = {name: leaf for (name, _), leaf in zip(net.schema.leaves, _layout(model).views(v), strict=True)}
    assert by_hand(net)
    chain = stages(net, leaves)
    with torch.inference_mode():
        step, one_hot, total = descent(chain, lr), torch.eye(chain[-1][2][0], dtype=v.dtype), v.new_zeros(())
        for xs, ys, counts in blocks:
            for x, y, n in zip(xs.unbind(0), one_hot[ys].unbind(0), counts, strict=True):
                if n:
                    total += step(x, y) if n == len(x) else step(x[:n], y[:n])
    return total


def _gradient(
    model: Model, leaves: Sequence[Tensor], run: Callable[[Tensor], Tensor], x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the mean loss, and the loss of all rows together."""
    loss = _mean_loss(model, run(x), y)
    return _torch().autograd.grad(loss, leaves, materialize_grads=True), loss.detach() * len(x)


def _sgd_steps(model: Model, v: Tensor, feed: Iterator[tuple[Tensor, Tensor]], lr: float) -> Tensor:
    torch, total = _torch(), v.new_zeros(())
    leaves = [leaf.detach().requires_grad_() for leaf in _layout(model).views(v)]
    run = _forward(model, leaves, training=True)
    for x, y in feed:
        g, loss = _gradient(model, leaves, run, x, y)
        with torch.no_grad():
            torch._foreach_add_(leaves, g, alpha=-lr)
            total += loss
    return total


def _steps(
    model: Model, v: Tensor, feed: Iterator[tuple[Tensor, Tensor]], how: Fit, lr: float, start: FitStart
) -> Tensor:
    """Train with any optimiser, tilt and pull: all of it on the flat vector."""
    layout, total = _layout(model), v.new_zeros(())
    fill, update = _optimiser(how.optimiser)
    memory, (tilt, centre) = [v.new_full(v.shape, value) for value in fill], _terms(layout, start, v, how)
    leaves = [leaf.detach().requires_grad_() for leaf in layout.views(v)]
    run = _forward(model, leaves, training=True)
    for t, (x, y) in enumerate(feed, 1):
        g, loss = _gradient(model, leaves, run, x, y)
        update(v, _tilted(layout.flat(g), v, tilt, centre, how.prox), memory, t, lr)
        total += loss
    return total


def _terms(layout: MemoryLayout, start: FitStart, v: Tensor, how: Fit) -> tuple[Tensor | None, Tensor | None]:
    """Return the tilt and the centre of the pull of one party, where it has them."""
    tilt = None if start.linear is None else layout.load(start.linear)
    if not how.prox:
        return tilt, None
    return tilt, v.clone() if start.centre is None else layout.load(start.centre)


def _tilted(g: Tensor, v: Tensor, tilt: Tensor | None, centre: Tensor | None, prox: float) -> Tensor:
    if tilt is not None:
        g += tilt
    if centre is not None:
        g.add_(v - centre, alpha=prox)
    return g


def _grad_one(model: Model, w: Array, rows: Array, group: Group) -> tuple[Array, float]:
    layout = _layout(model)
    if not len(rows):
        return np.zeros(model.size, model.dtype), 0.0
    x, y = _inputs(model, group.samples.x[rows]), _labels(model, group.samples.y[rows])
    leaves = [leaf.requires_grad_() for leaf in _views(model, w)]
    run = _forward(model, leaves, training=False)
    g, total = _gradient(model, leaves, run, x, y)
    return layout.store(layout.flat(g)), float(total)


# --- many parties with one dense layer each ---------------------------------------------------------------------------


def _fit_many(model: Model, start: FitStart, group: Group, plan: MiniBatches, how: Fit, lr: float) -> Fitted:
    out, total = np.empty((len(group), model.size), model.dtype), np.empty(len(group))
    steps = (plan.real > 0).sum(1)
    # Those with most steps first: the parties that still train are then the first rows of every array.
    order = np.argsort(-steps, kind="stable")
    with _torch().inference_mode():
        for a in range(0, len(order), WIDTH):
            me = order[a : a + WIDTH]
            some = MiniBatches(plan.rows[me], plan.real[me], steps[me])
            out[me], total[me] = _fit_chunk(model, start.of(me), group, some, how, lr)
    return Fitted(out, mean_loss(total, plan.real))


def _fit_chunk(
    model: Model, start: FitStart, group: Group, plan: MiniBatches, how: Fit, lr: float
) -> tuple[Array, Array]:
    torch, shape = _torch(), (len(plan.rows), model.size)
    v = torch.tensor(np.array(np.broadcast_to(np.asarray(start.w, model.dtype), shape)))
    tilt, centre = (
        None if leaf is None else torch.tensor(np.asarray(leaf, model.dtype)).expand_as(v)
        for leaf in (start.linear, start.centre if how.prox else None)
    )
    plain = how.optimiser.plain and tilt is None and not how.prox
    fill, update = ((), None) if plain else _optimiser(how.optimiser)
    memory = [torch.full_like(v, value) for value in fill]
    if how.prox and centre is None:
        centre = v.clone()
    total = v.new_zeros(len(v))
    for s in range(int(plan.steps.max(initial=0))):
        n = int((plan.steps > s).sum())
        x, d, loss = _slopes(model, v[:n], group, plan.rows[:n, s], plan.real[:n, s])
        total[:n] += loss
        if update is None:
            weights, bias = _split(model, v[:n])
            weights.baddbmm_(x.transpose(1, 2), d, alpha=-lr)
            bias.sub_(d.sum(1, keepdim=True), alpha=lr)
        else:
            g = _tilted(_joined(x, d), v[:n], _first(tilt, n), _first(centre, n), how.prox)
            update(v[:n], g, [m[:n] for m in memory], s + 1, lr)
    return v.numpy(), total.numpy()


def _first(a: Tensor | None, n: int) -> Tensor | None:
    return None if a is None else a[:n]


def _grad_many(model: Model, w: Array, group: Group) -> tuple[Array, Array]:
    torch, out, total = _torch(), [], []
    with torch.inference_mode():
        for a in range(0, len(group), WIDTH):
            size = group.size[a : a + WIDTH]
            some = w if w.ndim == 1 else w[a : a + WIDTH]
            v = torch.tensor(np.asarray(some, model.dtype)).expand(len(size), -1)
            x, d, loss = _slopes(model, v, group, group.rows[a : a + WIDTH, : max(int(size.max()), 1)], size)
            out.append(_joined(x, d).numpy())
            total.append(loss.numpy())
    return np.concatenate(out), mean_loss(np.concatenate(total), group.size[:, None])


def _by_party(model: Model, w: Array, group: Group) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the scores, each at its own party's parameters, and the labels of all samples, party after party."""
    torch = _torch()
    for a in range(0, len(group), WIDTH):
        size, parts = group.size[a : a + WIDTH], list[tuple[Tensor, Tensor]]()
        weights, bias = _split(model, torch.tensor(np.asarray(w[a : a + WIDTH], model.dtype)))
        most = max(int(size.max()), 1)
        for b in range(0, most, SLICE):
            rows = group.rows[a : a + WIDTH, b : min(b + SLICE, most)]
            x = _inputs(model, group.samples.x[rows]).flatten(2)
            parts.append((torch.baddbmm(bias, x, weights), _labels(model, group.samples.y[rows])))
        real = torch.from_numpy(np.arange(most) < size[:, None])
        scores, labels = (torch.cat(column, 1)[real] for column in zip(*parts, strict=True))
        yield scores, labels


def _split(model: Model, v: Tensor) -> tuple[Tensor, Tensor]:
    (_, shape), _ = model.schema.leaves
    cut = shape[0] * shape[1]
    return v[:, :cut].unflatten(1, shape), v[:, None, cut:]


def _joined(x: Tensor, d: Tensor) -> Tensor:
    """Return every party's gradient as a flat row."""
    torch = _torch()
    return torch.cat([torch.bmm(x.transpose(1, 2), d).flatten(1), d.sum(1)], 1)


def _slopes(model: Model, v: Tensor, group: Group, rows: Array, count: Array) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of every party, the slope of its mean loss in their scores, and their losses added up."""
    torch, net = _torch(), model.net
    x = _inputs(model, group.samples.x[rows]).flatten(2)
    y = _labels(model, group.samples.y[rows])
    weights, bias = _split(model, v)
    scores = torch.baddbmm(bias, x, weights)
    real = np.arange(rows.shape[1]) < count[:, None]
    if net.loss == "cross_entropy":
        d = torch.softmax(scores, -1)
        loss = -d.gather(2, y[..., None])[..., 0].clamp_min_(torch.finfo(d.dtype).tiny).log_()
        d.scatter_add_(2, y[..., None], d.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
    else:
        labels = y.reshape(scores.shape)
        if net.loss == "logistic":
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(2)
            d = scores.sigmoid_().sub_(labels)
        else:
            d = scores.sub_(labels)
            loss = 0.5 * d.square().sum(2)
    share = (real / np.maximum(count, 1)[:, None]).astype(model.dtype)
    return x, d.mul_(torch.from_numpy(share)[..., None]), (loss * torch.from_numpy(real)).sum(1)


# --- optimisers as Optax defines them ---------------------------------------------------------------------------------


def _sgd(
    v: Tensor, g: Tensor, memory: list[Tensor], t: int, lr: float,
    *, momentum: float | None = None, nesterov: bool = False,
) -> None:  # fmt: skip
    v.sub_(_traced(g, memory[0], momentum, nesterov), alpha=lr)


def _traced(g: Tensor, trace: Tensor, momentum: float | None, nesterov: bool) -> Tensor:
    if not momentum:
        return g
    trace.mul_(momentum).add_(g)
    return g.add(trace, alpha=momentum) if nesterov else trace


def _adam(
    v: Tensor, g: Tensor, memory: list[Tensor], t: int, lr: float,
    *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, eps_root: float = 0.0, nesterov: bool = False,
) -> None:  # fmt: skip
    v.sub_(_adam_step(g, memory, t, b1, b2, eps, eps_root, nesterov), alpha=lr)


def _adamw(
    v: Tensor, g: Tensor, memory: list[Tensor], t: int, lr: float,
    *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, eps_root: float = 0.0, nesterov: bool = False,
    weight_decay: float = 1e-4,
) -> None:  # fmt: skip
    v.sub_(_adam_step(g, memory, t, b1, b2, eps, eps_root, nesterov).add_(v, alpha=weight_decay), alpha=lr)


def _adam_step(
    g: Tensor, memory: list[Tensor], t: int, b1: float, b2: float, eps: float, eps_root: float, nesterov: bool
) -> Tensor:
    m, s = memory
    m.mul_(b1).add_(g, alpha=1 - b1)
    s.mul_(b2).addcmul_(g, g, value=1 - b2)
    ahead = m / (1 - b1**t) if not nesterov else m * (b1 / (1 - b1 ** (t + 1))) + g * ((1 - b1) / (1 - b1**t))
    return ahead.div_((s / (1 - b2**t) + eps_root).sqrt_().add_(eps))


def _adagrad(
    v: Tensor, g: Tensor, memory: list[Tensor], t: int, lr: float,
    *, initial_accumulator_value: float = 0.1, eps: float = 1e-7,
) -> None:  # fmt: skip
    total = memory[0].addcmul_(g, g)
    v.sub_((total + eps).rsqrt_().mul_(total > 0).mul_(g), alpha=lr)


def _rmsprop(
    v: Tensor, g: Tensor, memory: list[Tensor], t: int, lr: float,
    *, decay: float = 0.9, eps: float = 1e-8, initial_scale: float = 0.0, eps_in_sqrt: bool = True,
    centered: bool = False, momentum: float | None = None, nesterov: bool = False, bias_correction: bool = False,
) -> None:  # fmt: skip
    square, mean, trace = memory
    fix = 1 / (1 - decay**t) if bias_correction else 1.0
    spread = square.mul_(decay).addcmul_(g, g, value=1 - decay) * fix
    if centered:
        spread -= (mean.mul_(decay).add_(g, alpha=1 - decay) * fix).square_()
    size = (spread + eps).sqrt_() if eps_in_sqrt else spread.sqrt_().add_(eps)
    v.sub_(_traced(g / size, trace, momentum, nesterov), alpha=lr)


OPTIMISERS: dict[str, Callable[..., None]] = {
    "sgd": _sgd, "adam": _adam, "adamw": _adamw, "adagrad": _adagrad, "rmsprop": _rmsprop,
}  # fmt: skip


def _optimiser(which: Optimiser) -> tuple[tuple[object, ...], Callable[..., None]]:
    """Return the first values of an optimiser's memory and its step, which changes the vector and the memory."""
    known = ", ".join(OPTIMISERS)
    if which.name not in OPTIMISERS:
        raise Mismatch(f"optimiser '{which.name}' is not in the torch backend, which has {known}: use backend='jax'")
    step, options = OPTIMISERS[which.name], dict(which.options)
    taken = {p.name: p.default for p in inspect.signature(step).parameters.values() if p.kind is p.KEYWORD_ONLY}
    wrong = sorted(set(options) - set(taken))
    if wrong:
        raise Mismatch(f"optimiser '{which.name}' has no option '{wrong[0]}' in torch: it takes {', '.join(taken)}")
    fills = {
        "adam": (0.0, 0.0),
        "adamw": (0.0, 0.0),
        "adagrad": (options.get("initial_accumulator_value", 0.1),),
        "rmsprop": (options.get("initial_scale", 0.0), 0.0, 0.0),
    }
    return fills.get(which.name, (0.0,)), partial(step, **options)
