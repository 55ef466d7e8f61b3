"""The layers in JAX. Only what a compiled call does; no loop over samples, no training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from atoll.models.layers import Conv, Dense, Embed, Flatten, Image, Layer, Lstm, Pool, Relu, Tensor
from atoll.models.net import Net

FEW = 16  # rows
LARGE = 10_000  # numbers of a matrix


def apply(net: Net, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Run rows through the network."""
    shape = net.shape
    by_layer: dict[int, dict[str, Tensor]] = {}
    for leaf, i, name, _ in net.parameters:
        by_layer.setdefault(i, {})[name] = parameters[leaf]
    for i, layer in enumerate(net.layers):
        out, _ = layer.shapes(shape)
        x = _layer(layer, by_layer.get(i, {}), x, out)
        shape = out
    return x


def _layer(layer: Layer, p: dict[str, Tensor], x: Tensor, out: tuple[int, ...]) -> Tensor:  # noqa: PLR0911 - one a layer
    match layer:
        case Image() | Flatten():
            return x.reshape(len(x), *out)
        case Dense():
            if x.ndim == 2:
                few = 1 < len(x) <= FEW and p["w"].size > LARGE
                return (few_rows(x.astype(p["w"].dtype), p["w"]) if few else x @ p["w"]) + p["b"]
            rows = product(x.reshape(-1, x.shape[-1]), p["w"])
            return rows.reshape(*x.shape[:-1], -1) + p["b"]
        case Relu():
            return jax.nn.relu(x)
        case Conv(padding=padding):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = x.astype(p["w"].dtype)  # images may come as bytes
            return lax.conv_general_dilated(x, p["w"], (1, 1), padding.upper(), dimension_numbers=numbers) + p["b"]
        case Pool():
            return pool(x)
        case Embed():
            return p["w"][x.astype(jnp.int32)]
        case Lstm():
            return lstm(x, p)


@jax.custom_vjp  # type: ignore[untyped-decorator] # JAX's own
def pool(x: Tensor) -> Tensor:
    """Take the maximum of every 2 × 2 square."""
    return _pool(x)[0]


def _pool(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, w = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    a, b, c, d = x[:, :h:2, :w:2], x[:, :h:2, 1:w:2], x[:, 1:h:2, :w:2], x[:, 1:h:2, 1:w:2]
    top = jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))
    # Which of the four it was: one small integer a square, so that a tie has one winner, as in every framework.
    which = jnp.where(a == top, 0, jnp.where(b == top, 1, jnp.where(c == top, 2, 3))).astype(jnp.int8)
    return top, (which, jnp.zeros((x.shape[1], x.shape[2], 0), x.dtype))


def _unpool(saved: tuple[Tensor, Tensor], g: Tensor) -> tuple[Tensor]:
    which, size = saved
    n, h, w, c = g.shape
    four = [jnp.where(which == i, g, 0) for i in range(4)]
    rows = [jnp.stack(four[:2], 3), jnp.stack(four[2:], 3)]
    full = jnp.stack(rows, 2).reshape(n, 2 * h, 2 * w, c)
    return (jnp.pad(full, ((0, 0), (0, size.shape[0] - 2 * h), (0, size.shape[1] - 2 * w), (0, 0))),)


pool.defvjp(_pool, _unpool)


def _gram(x: Tensor, d: Tensor) -> Tensor:
    """Return xᵀd. The transposed matrix is written down first: XLA's own product with one takes twice as long."""
    return lax.optimization_barrier(x.T) @ d


@jax.custom_vjp  # type: ignore[untyped-decorator] # JAX's own
def product(x: Tensor, w: Tensor) -> Tensor:
    """Multiply many rows by a matrix."""
    return x @ w


product.defvjp(lambda x, w: (x @ w, (x, w)), lambda saved, d: (d @ saved[1].T, _gram(saved[0], d)))


@jax.custom_vjp  # type: ignore[untyped-decorator] # JAX's own
def few_rows(x: Tensor, w: Tensor) -> Tensor:
    """Multiply a few rows by a large matrix."""
    return x @ w


def _outer_sum(x: Tensor, d: Tensor) -> Tensor:
    """Return xᵀd, row by row: the sum becomes one loop with the step that uses it, and is never written down.

    Its factors must be, or the loop makes each of them anew for every number. XLA fuses nothing into a condition; this
    one asks what changes nothing, since a step with a NaN makes all parameters NaN anyway.
    """
    lost = lambda rows: jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), rows)  # noqa: E731
    x, d = lax.cond(jnp.isnan(d[0, 0]), lost, lambda rows: rows, (x, d))
    total = x[0][:, None] * d[0]
    for k in range(1, len(x)):
        total = total + x[k][:, None] * d[k]
    return total


few_rows.defvjp(lambda x, w: (x @ w, (x, w)), lambda saved, d: (d @ saved[1].T, _outer_sum(saved[0], d)))


def lstm(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """Run an LSTM over (batch, time, features); give all its outputs.

    The input projections of all steps are one product, and the gradient of the recurrent weights is one product after
    the backward pass instead of one a step.
    """
    steps = x.transpose(1, 0, 2)
    t, n, f = steps.shape
    z = (product(steps.reshape(t * n, f), p["wi"]) + p["b"]).reshape(t, n, -1)
    h = _recur_peep(z, p["wh"], p["peep"]) if "peep" in p else _recur(z, p["wh"])
    return h.transpose(1, 0, 2)


def _sigmoid(x: Tensor) -> Tensor:
    return 0.5 * jnp.tanh(0.5 * x) + 0.5  # one vectorised tanh instead of an exponential and a division


def _cells(z: Tensor, wh: Tensor, peep: Tensor | None) -> tuple[Tensor, ...]:
    units = wh.shape[0]

    def step(carry: tuple[Tensor, Tensor], zi: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        h, c = carry
        zi = zi + h @ wh
        i, f, g, o = (zi[:, k * units : (k + 1) * units] for k in range(4))
        if peep is not None:
            i, f = i + peep[0] * c, f + peep[1] * c
        i, f, g = _sigmoid(i), _sigmoid(f), jnp.tanh(g)
        new = f * c + i * g
        o = _sigmoid(o if peep is None else o + peep[2] * new)
        squashed = jnp.tanh(new)
        h = o * squashed
        return (h, new), (h, new, squashed, i, f, g, o)

    zero = jnp.zeros((z.shape[1], units), z.dtype)
    return lax.scan(step, (zero, zero), z)[1]


def _before(x: Tensor) -> Tensor:
    """Shift a sequence by one step: what was there before each step."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


def _backward(saved: tuple[Tensor, ...], wh: Tensor, peep: Tensor | None, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of all pre-activations, of the recurrent weights, and the old cells."""
    h, c, squashed, i, f, g, o = saved
    old = _before(c)
    # Everything that does not depend on the carried gradient, in one fused pass over all steps.
    to_c, to_o = o * (1 - squashed * squashed), squashed * o * (1 - o)
    to_i, to_f, to_g = g * i * (1 - i), old * f * (1 - f), i * (1 - g * g)
    # Transposed once, for all steps: left alone, XLA transposes inside every product, which takes twice as long.
    back = lax.optimization_barrier(wh.T)

    def step(carry: tuple[Tensor, Tensor], s: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        dh, dc = carry
        above, to_c, to_o, to_i, to_f, to_g, f = s
        dh = dh + above
        do = dh * to_o
        dc = dc + dh * to_c
        if peep is not None:
            dc = dc + do * peep[2]
        di, df = dc * to_i, dc * to_f
        dz = jnp.concatenate([di, df, dc * to_g, do], 1)
        down = dc * f
        if peep is not None:
            down = down + di * peep[0] + df * peep[1]
        return (dz @ back, down), dz

    zero = jnp.zeros_like(h[0])
    _, dz = lax.scan(step, (zero, zero), (dh, to_c, to_o, to_i, to_f, to_g, f), reverse=True)
    t, n, units = h.shape
    return dz, _gram(_before(h).reshape(t * n, units), dz.reshape(t * n, -1)), old


@jax.custom_vjp  # type: ignore[untyped-decorator] # JAX's own
def _recur(z: Tensor, wh: Tensor) -> Tensor:
    return _cells(z, wh, None)[0]


def _recur_forward(z: Tensor, wh: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    saved = _cells(z, wh, None)
    return saved[0], (saved, wh)


def _recur_backward(residual: tuple[Tensor, Tensor], dh: Tensor) -> tuple[Tensor, Tensor]:
    saved, wh = residual
    dz, dwh, _ = _backward(saved, wh, None, dh)
    return dz, dwh


_recur.defvjp(_recur_forward, _recur_backward)


@jax.custom_vjp  # type: ignore[untyped-decorator] # JAX's own
def _recur_peep(z: Tensor, wh: Tensor, peep: Tensor) -> Tensor:
    return _cells(z, wh, peep)[0]


def _recur_peep_forward(z: Tensor, wh: Tensor, peep: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    saved = _cells(z, wh, peep)
    return saved[0], (saved, wh, peep)


def _recur_peep_backward(residual: tuple[Tensor, Tensor, Tensor], dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    saved, wh, peep = residual
    dz, dwh, old = _backward(saved, wh, peep, dh)
    di, df, _, do = jnp.split(dz, 4, -1)
    total = [(di * old).sum((0, 1)), (df * old).sum((0, 1)), (do * saved[1]).sum((0, 1))]
    return dz, dwh, jnp.stack(total)


_recur_peep.defvjp(_recur_peep_forward, _recur_peep_backward)
