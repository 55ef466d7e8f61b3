"""Training and evaluation in JAX: a handful of compiled calls on flat vectors. No layer and no method lives here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.party import Group
from atoll.core.tree import Array, Schema
from atoll.jit import jax_library
from atoll.models.adapters import Foreign
from atoll.models.batches import MiniBatches, batches, round_up
from atoll.models.layers import Tensor
from atoll.models.model import Fit, FitStart, Fitted, Model, mean_loss
from atoll.models.optimiser import Optimiser

TINY = 10_000  # parameters; below, many parties share one call
SLICE = 512  # rows evaluated at a time


def _precision(model: Model) -> AbstractContextManager[object]:
    return nullcontext() if model.dtype == "float32" else jax_library().enable_x64(True)


@dataclass(frozen=True)
class JaxEngine:
    """The JAX backend."""

    def group_size(self, model: Model) -> int:
        if model.size > TINY or model.net.heavy:
            return 1
        return min(max(200_000 // model.size, 1), 125)

    def check(self, optimiser: Optimiser) -> None:
        """Refuse an optimiser that parties cannot train with."""
        optimiser.check()

    def fit(self, model: Model, start: FitStart, group: Group, how: Fit, lr: float) -> Fitted:
        if how.example_dp is not None and _keys(model, group) is not None:
            raise Mismatch("example_dp trains without dropout: take the argument `train` out of the module's call")
        if how.example_dp is not None:
            from atoll.models.jax_example_dp import fit_private

            with _precision(model):
                return fit_private(model, start, group, how, lr)
        plan, keys = batches(group, how.epochs, how.batch), _keys(model, group)
        with _precision(model):
            if self.group_size(model) > 1:
                return _fit_many(model, start, group, plan, how, lr, keys)
            run = _fit_steps if model.net.heavy else _fit_one
            one_by_one = (
                run(model, start.of(k), group, _only(plan, k), how, lr, _of(keys, k)) for k in range(len(group))
            )
            w, loss = zip(*one_by_one, strict=True)
            return Fitted(w[0][None] if len(w) == 1 else np.stack(w), np.array(loss))

    def grad(self, model: Model, w: Array, group: Group) -> tuple[Array, Array]:
        # One full-batch step of size 1 goes from w to w − g; differentiating directly keeps all digits.
        plan, keys = batches(group, 1, None), _keys(model, group)
        with _precision(model):
            if w.ndim == 2 and self.group_size(model) > 1:
                return _grad_many(model, w, group, plan, keys)
            kernel = _compiled_grad(model)
            out = []
            for k in range(len(group)):
                x, y, rows, count = _padded(group, _only(plan, k))
                out.append(kernel(w if w.ndim == 1 else w[k], x, y, rows[0], count[0], _at(_of(keys, k), 0)))
            g, loss = zip(*out, strict=True)
            return np.stack(g), np.array(loss, np.float64)

    def scores(self, model: Model, w: Array, x: Array) -> Array:
        with _precision(model):
            kernel = _compiled_scores(model)
            return np.concatenate([np.asarray(kernel(w, part))[:n] for part, n in _slices(x)])

    def scores_each(self, model: Model, w: Array, group: Group) -> Array:
        if self.group_size(model) > 1:
            with _precision(model):
                return _by_party(_compiled_scores_each(model), w, group, self.group_size(model))[0]
        return np.concatenate([self.scores(model, w[k], x) for k, (x, _) in enumerate(group)])

    def losses(self, model: Model, w: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
        """Return (loss, right or squared error, number of labels) of every row."""
        with _precision(model):
            kernel = _compiled_losses(model)
            parts = []
            for (xs, n), (ys, _) in zip(_slices(x), _slices(y), strict=True):
                parts.append([np.asarray(leaf, np.float64)[:n] for leaf in kernel(w, xs, ys)])
            loss, right, n_labels = (np.concatenate(column) for column in zip(*parts, strict=True))
            return loss, right, n_labels

    def losses_each(self, model: Model, w: Array, group: Group) -> tuple[Array, Array, Array]:
        if self.group_size(model) > 1:
            with _precision(model):
                found = _by_party(_compiled_losses_each(model), w, group, self.group_size(model))
        else:
            each = [self.losses(model, w[k], x, y) for k, (x, y) in enumerate(group)]
            found = [np.concatenate(column) for column in zip(*each, strict=True)]
        loss, right, n_labels = (np.asarray(leaf, np.float64) for leaf in found)
        return loss, right, n_labels


def _only(plan: MiniBatches, k: int) -> MiniBatches:
    return MiniBatches(plan.rows[k], plan.real[k], plan.steps[k])


def _slices(x: Array) -> list[tuple[Array, int]]:
    """Cut rows into pieces of one size (the last padded), so that one shape is compiled."""
    size = min(SLICE, round_up(max(len(x), 1)))
    pieces = []
    for a in range(0, max(len(x), 1), size):
        piece = x[a : a + size]
        n = len(piece)
        if n < size:
            piece = np.concatenate([piece, np.zeros((size - n, *x.shape[1:]), x.dtype)])
        pieces.append((piece, n))
    return pieces


# --- pools: the samples as JAX sees them ------------------------------------------------------------------------------

_pools: dict[tuple[int, bool], tuple[Array, Tensor]] = {}


def _pool(x: Array) -> Tensor:
    """Hand an array in memory to JAX once, without a copy where it is aligned."""
    key = (id(x), bool(jax_library().config.jax_enable_x64))
    if key not in _pools:
        if len(_pools) > 8:
            _pools.clear()
        _pools[key] = (x, jax_library().numpy.asarray(x))
    return _pools[key][1]


def _padded(group: Group, plan: MiniBatches, *, keep_steps: bool = False) -> tuple[Tensor, Tensor, Array, Array]:
    """Return (x, y, rows, real), padded to few shapes: steps (unless all are full), and a batch that is all samples."""
    rows, real = plan.rows, plan.real
    *lead, s, b = rows.shape
    long = s if keep_steps else round_up(s)
    wide = round_up(b) if b > 64 and (real < b).any() else b
    if (long, wide) != (s, b):
        ahead = [(0, 0)] * len(lead)
        rows = np.pad(rows, (*ahead, (0, long - s), (0, wide - b)))
        real = np.pad(real, (*ahead, (0, long - s)))
    samples = group.samples
    if isinstance(samples.x, np.memmap):  # far too much to hand over: gather what these parties have
        kept, inverse = np.unique(rows, return_inverse=True)
        some = np.resize(kept, round_up(len(kept)))
        small = inverse.reshape(rows.shape).astype(np.int32)
        return samples.x[some], samples.y[some], small, real.astype(np.int32)
    return _pool(samples.x), _pool(samples.y), rows.astype(np.int32), real.astype(np.int32)


# --- kernels ----------------------------------------------------------------------------------------------------------


def _cut(schema: Schema, v: Tensor) -> dict[str, Tensor]:
    return {name: v[a:b].reshape(shape) for name, a, b, shape in schema.slots()}


def _join(schema: Schema, p: dict[str, Tensor]) -> Tensor:
    return jax_library().numpy.concatenate([p[name].reshape(-1) for name, _ in schema.leaves])


def _keys(model: Model, group: Group) -> Array | None:
    """Return a key for each party, where the network draws as it trains: dropout has an address, too."""
    if not isinstance(model.net, Foreign) or model.net.draw is None:
        return None
    drawn = np.asarray(group.world.public("dropout", group.t, group.me), np.uint64).reshape(len(group), 1)
    return np.concatenate([drawn >> np.uint64(32), drawn & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


def _of(keys: Array | None, k: int) -> Array | None:
    return None if keys is None else keys[k]


def _at(key: Tensor | None, s: Tensor) -> Tensor | None:
    """Return the key of a step."""
    return None if key is None else jax_library().random.fold_in(key, s)


def _row_losses(
    model: Model, p: dict[str, Tensor], x: Tensor, y: Tensor, key: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, right (or squared error) and number of labels of each row."""
    jax = jax_library()
    jnp, net = jax.numpy, model.net
    if isinstance(net, Foreign) and net.own is not None:
        loss = net.losses(p, x, y)
        return loss, jnp.zeros_like(loss), jnp.ones_like(loss)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(model.dtype)
    scores = net.draws(p, x, key) if isinstance(net, Foreign) and key is not None else net.apply(p, x)
    if net.loss == "squared":
        error = (scores - y.reshape(scores.shape)) ** 2
        error = error.reshape(len(x), -1).sum(1)
        return 0.5 * error, error, jnp.ones_like(error)
    if net.loss == "logistic":
        s = scores[:, 0]
        return jax.nn.softplus(s) - y * s, (s > 0) == (y > 0), jnp.ones_like(s)
    y = y.astype(jnp.int32)
    # A product with the one-hot label: picking an entry would make the gradient a scatter, which is slow.
    label = jax.nn.one_hot(y, scores.shape[-1], dtype=scores.dtype)
    loss = jax.nn.logsumexp(scores, axis=-1) - (scores * label).sum(-1)
    right = scores.argmax(-1) == y
    if y.ndim == 1:
        return loss, right, jnp.ones_like(loss)
    counts = jnp.ones_like(loss) if net.ignore is None else (y != net.ignore).astype(loss.dtype)
    inner = tuple(range(1, y.ndim))
    return (loss * counts).sum(inner), (right * counts).sum(inner), counts.sum(inner)


def _mean_loss(
    model: Model, p: dict[str, Tensor], x: Tensor, y: Tensor, count: Tensor | None, key: Tensor | None = None
) -> Tensor:
    """Return the mean over the labels of the first `count` rows (None: of all)."""
    jnp = jax_library().numpy
    loss, _, n = _row_losses(model, p, x, y, key)
    if count is not None:
        real = (jnp.arange(len(x)) < count).astype(loss.dtype)
        loss, n = jnp.where(real > 0, loss, 0), n * real
    return loss.sum() / jnp.maximum(n.sum(), 1)


MovePlan = tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]
StepPlan = tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor, Tensor]]]


def _moves(how: Fit, tilted: bool) -> MovePlan:
    """Return the optimiser's init and its move with a gradient: (p, o, p0, g, lr, linear) to (p, o)."""
    jax = jax_library()
    make = None if how.optimiser.plain else how.optimiser.make()

    def begin(p: Tensor, lr: Tensor) -> Tensor:
        return () if make is None else make(lr).init(p)

    def move(p: Tensor, o: Tensor, p0: Tensor, g: Tensor, lr: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
        if tilted:
            g = jax.tree.map(lambda a, b: a + b, g, linear)
        if how.prox:
            g = jax.tree.map(lambda a, b, c: a + how.prox * (b - c), g, p, p0)
        if make is None:
            return jax.tree.map(lambda a, b: a - lr * b, p, g), o
        change, o_after = make(lr).update(g, o, p)
        return jax.tree.map(lambda a, b: a + b, p, change), o_after

    return begin, move


def _steps(model: Model, how: Fit, tilted: bool, full: bool) -> StepPlan:
    """Return the optimiser's init and one step of local training: (p, o, l, p0, x, y, count, lr, linear) to (p, o, l).

    l adds up the losses of all samples, each as it was when its step began.
    """
    jax = jax_library()
    begin, move = _moves(how, tilted)

    def step(
        p: Tensor, o: Tensor, total: Tensor, p0: Tensor, x: Tensor, y: Tensor, count: Tensor, lr: Tensor,
        linear: Tensor, key: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        loss, g = jax.value_and_grad(partial(_mean_loss, model))(p, x, y, None if full else count, key)
        after = (*move(p, o, p0, g, lr, linear), total + loss * count)
        if full:
            return after
        # A step without samples changes nothing: neither the parameters nor the optimiser's memory.
        keep: tuple[Tensor, Tensor, Tensor] = jax.tree.map(
            lambda a, b: jax.numpy.where(count > 0, a, b), after, (p, o, total)
        )
        return keep

    return begin, step


@lru_cache(maxsize=64)
def _compiled_one(model: Model, how: Fit, tilted: bool, full: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """One party, all steps in one compiled loop that ends after the party's own number of steps."""
    jax, schema = jax_library(), model.schema
    begin, step = _steps(model, how, tilted, full)

    def run(
        w: Tensor, x: Tensor, y: Tensor, rows: Tensor, count: Tensor, steps: Tensor, lr: Tensor, linear: Tensor,
        centre: Tensor, key: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        p0 = _cut(schema, w)
        tilt = _cut(schema, linear) if tilted else None
        middle = p0 if centre is None else _cut(schema, centre)

        def body(s: Tensor, carry: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            return step(*carry, middle, x[rows[s]], y[rows[s]], count[s], lr, tilt, _at(key, s))

        p, _, total = jax.lax.fori_loop(0, steps, body, (p0, begin(p0, lr), jax.numpy.zeros_like(lr)))
        return _join(schema, p), total

    return jax.jit(run)


def _fit_one(
    model: Model, start: FitStart, group: Group, plan: MiniBatches, how: Fit, lr: float, key: Array | None
) -> tuple[Array, Array]:
    full = bool((plan.real[: plan.steps] == plan.rows.shape[1]).all())
    x, y, rows, count = _padded(group, plan)
    kernel = _compiled_one(model, how, start.linear is not None, full)
    rate = np.asarray(lr, model.dtype)
    w, total = kernel(start.w, x, y, rows, count, np.int32(plan.steps), rate, start.linear, start.centre, key)
    return np.asarray(w), mean_loss(total, plan.real)


@lru_cache(maxsize=64)
def _compiled_steps(model: Model, how: Fit, tilted: bool, full: bool) -> tuple[Callable[..., Tensor], ...]:
    """One party, one compiled call a step whose parameters are updated in place."""
    jax, schema = jax_library(), model.schema
    begin, step = _steps(model, how, tilted, full)

    def start(w: Tensor, lr: Tensor, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = _cut(schema, w)
        middle = p if centre is None else _cut(schema, centre)
        return p, begin(p, lr), (jax.tree.map(lambda a: a + 0, middle) if how.prox else None)

    def one(
        p: Tensor, o: Tensor, total: Tensor, p0: Tensor, x: Tensor, y: Tensor, rows: Tensor, count: Tensor,
        s: Tensor, lr: Tensor, linear: Tensor, key: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        tilt = _cut(schema, linear) if tilted else None
        return step(p, o, total, p0, x[rows[s]], y[rows[s]], count[s], lr, tilt, _at(key, s))

    return jax.jit(start), jax.jit(one, donate_argnums=(0, 1, 2)), jax.jit(partial(_join, schema))


def _fit_steps(
    model: Model, begin: FitStart, group: Group, plan: MiniBatches, how: Fit, lr: float, key: Array | None
) -> tuple[Array, Array]:
    full = bool((plan.real[: plan.steps] == plan.rows.shape[1]).all())
    x, y, rows, count = _padded(group, plan)
    start, step, join = _compiled_steps(model, how, begin.linear is not None, full)
    jnp = jax_library().numpy
    rate = jnp.asarray(lr, model.dtype)
    rows, count = jnp.asarray(rows), jnp.asarray(count)
    p, o, p0 = start(begin.w, rate, begin.centre)
    total = jnp.zeros_like(rate)
    for s in range(int(plan.steps)):
        p, o, total = step(p, o, total, p0, x, y, rows, count, np.int32(s), rate, begin.linear, key)
    return np.asarray(join(p)), mean_loss(total, plan.real)


@lru_cache(maxsize=64)
def _compiled_many(
    model: Model, how: Fit, tilted: bool, axes: tuple[int | None, ...], full: bool
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Many parties in one call: every party has its own copy of the parameters, all take a step together.

    `axes` says of w, linear and centre whether each party has its own (0) or all have one (None).
    """
    jax, schema = jax_library(), model.schema
    begin, step = _steps(model, how, tilted, full)
    of_w, of_linear, of_centre = axes

    def one(
        w: Tensor, x: Tensor, y: Tensor, rows: Tensor, count: Tensor, lr: Tensor, linear: Tensor, centre: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        p0 = _cut(schema, w)
        tilt = _cut(schema, linear) if tilted else None
        middle = p0 if centre is None else _cut(schema, centre)

        def body(carry: tuple[Tensor, ...], s: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], None]:
            return step(*carry, middle, x[s[0]], y[s[0]], s[1], lr, tilt, s[2]), None

        keys = None if key is None else jax.vmap(partial(_at, key))(jax.numpy.arange(len(rows)))
        (p, _, total), _ = jax.lax.scan(body, (p0, begin(p0, lr), jax.numpy.zeros_like(lr)), (rows, count, keys))
        return _join(schema, p), total

    return jax.jit(jax.vmap(one, in_axes=(of_w, None, None, 0, 0, None, of_linear, of_centre, 0)))


def _fit_many(
    model: Model, start: FitStart, group: Group, plan: MiniBatches, how: Fit, lr: float, keys: Array | None
) -> Fitted:
    k = len(plan.steps)
    group_size = min(JaxEngine().group_size(model), round_up(k))
    if k > group_size:
        out = []
        for a in range(0, k, group_size):
            some = slice(a, a + group_size)
            part = MiniBatches(*(leaf[some] for leaf in plan))
            out.append(_fit_many(model, start.of(some), group, part, how, lr, None if keys is None else keys[some]))
        return Fitted(*(np.concatenate(column) for column in zip(*out, strict=True)))
    full = bool((plan.real == plan.rows.shape[2]).all()) and k == group_size
    x, y, rows, real = _padded(group, MiniBatches(*(_fill(leaf, group_size) for leaf in plan)), keep_steps=full)
    axes = tuple(None if leaf is None or leaf.ndim == 1 else 0 for leaf in start)
    kernel = _compiled_many(model, how, start.linear is not None, axes, full)
    w, linear, centre = (leaf if leaf is None or leaf.ndim == 1 else _fill(leaf, group_size) for leaf in start)
    keys = None if keys is None else _fill(keys, group_size)
    w, total = kernel(w, x, y, rows, real, np.asarray(lr, model.dtype), linear, centre, keys)
    return Fitted(np.asarray(w)[:k], mean_loss(np.asarray(total)[:k], plan.real[:k]))


def _fill(leaf: Array, group_size: int) -> Array:
    """Add parties that do nothing, so that every group has the same number."""
    if len(leaf) == group_size:
        return leaf
    return np.pad(leaf, ((0, group_size - len(leaf)), *((0, 0) for _ in leaf.shape[1:])))


@lru_cache(maxsize=64)
def _compiled_grad(model: Model) -> Callable[..., tuple[Tensor, Tensor]]:
    jax, schema = jax_library(), model.schema

    def run(w: Tensor, x: Tensor, y: Tensor, rows: Tensor, count: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        loss, g = jax.value_and_grad(partial(_mean_loss, model))(_cut(schema, w), x[rows], y[rows], count, key)
        return _join(schema, g), loss

    return jax.jit(run)


@lru_cache(maxsize=64)
def _compiled_grad_each(model: Model) -> Callable[..., tuple[Tensor, Tensor]]:
    return jax_library().jit(jax_library().vmap(_compiled_grad(model), in_axes=(0, None, None, 0, 0, 0)))


def _grad_many(model: Model, w: Array, group: Group, plan: MiniBatches, keys: Array | None) -> tuple[Array, Array]:
    """Return the gradients and losses of many small models, one a party."""
    kernel, out = _compiled_grad_each(model), []
    size = min(JaxEngine().group_size(model), round_up(len(w)))
    for a in range(0, len(w), size):
        some = MiniBatches(*(_fill(leaf[a : a + size], size) for leaf in plan))
        x, y, rows, count = _padded(group, some)
        part = w[a : a + size]
        drawn = None if keys is None else jax_library().vmap(lambda key: _at(key, 0))(_fill(keys[a : a + size], size))
        found = kernel(_fill(part, size), x, y, rows[:, 0], count[:, 0], drawn)
        out.append([np.asarray(leaf)[: len(part)] for leaf in found])
    g, loss = (np.concatenate(column) for column in zip(*out, strict=True))
    return g, np.asarray(loss, np.float64)


def _by_party(kernel: Callable[..., tuple[Tensor, ...]], w: Array, group: Group, size: int) -> list[Array]:
    """Compute something of every sample at its own party's parameters; return rows, party after party.

    Parties go together, as do slices of their samples: what lies beyond a party's samples is computed in vain.
    """
    size, most = min(size, round_up(len(w))), group.rows.shape[1]
    wide = min(SLICE, round_up(most))
    found = []
    for a in range(0, len(w), size):
        part, rows = w[a : a + size], _fill(group.rows[a : a + size], size)
        slices = []
        for b in range(0, most, wide):
            some = rows[:, b : b + wide]
            some = np.pad(some, ((0, 0), (0, wide - some.shape[1])))
            slices.append(
                [np.asarray(leaf) for leaf in kernel(_fill(part, size), group.samples.x[some], group.samples.y[some])]
            )
        real = np.arange(most) < group.size[a : a + size, None]
        joined = [np.concatenate(column, axis=1)[: len(part), :most] for column in zip(*slices, strict=True)]
        found.append([leaf[real] for leaf in joined])
    return [np.concatenate(column) for column in zip(*found, strict=True)]


@lru_cache(maxsize=64)
def _compiled_scores_each(model: Model) -> Callable[..., tuple[Tensor, ...]]:
    jax = jax_library()
    return jax.jit(jax.vmap(lambda w, x, _: (model.net.apply(_cut(model.schema, w), x),)))


@lru_cache(maxsize=64)
def _compiled_losses_each(model: Model) -> Callable[..., tuple[Tensor, ...]]:
    jax = jax_library()
    return jax.jit(jax.vmap(lambda w, x, y: _row_losses(model, _cut(model.schema, w), x, y)))


@lru_cache(maxsize=64)
def _compiled_scores(model: Model) -> Callable[..., Tensor]:
    return jax_library().jit(lambda w, x: model.net.apply(_cut(model.schema, w), x))


@lru_cache(maxsize=64)
def _compiled_losses(model: Model) -> Callable[..., Tensor]:
    return jax_library().jit(lambda w, x, y: _row_losses(model, _cut(model.schema, w), x, y))
