"""The gradients that jax_layers writes out itself are those of the plain definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll.models.jax_layers import FEW, few_rows, lstm, pool


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def plain_lstm(x: Any, p: dict[str, Any]) -> Any:
    """Write the equations down one step after the other."""
    units = p["wh"].shape[0]
    peep = p.get("peep", jnp.zeros((3, units)))
    h = c = jnp.zeros((len(x), units))
    out = []
    for t in range(x.shape[1]):
        i, f, g, o = jnp.split(x[:, t] @ p["wi"] + h @ p["wh"] + p["b"], 4, 1)
        new = jax.nn.sigmoid(f + peep[1] * c) * c + jax.nn.sigmoid(i + peep[0] * c) * jnp.tanh(g)
        h = jax.nn.sigmoid(o + peep[2] * new) * jnp.tanh(new)
        c = new
        out.append(h)
    return jnp.stack(out, 1)


def plain_pool(x: Any) -> Any:
    n, h, w, c = x.shape
    return x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def weights(peephole: bool, features: int = 3, units: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"wi": (features, 4 * units), "wh": (units, 4 * units), "b": (4 * units,)}
    if peephole:
        shapes["peep"] = (3, units)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def differences(f: Any, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Differentiate numerically."""
    g = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        g[at] = (f(up) - f(down)) / (2 * step)
    return g


@pytest.mark.parametrize("peephole", [False, True])
def test_lstm(peephole: bool) -> None:
    rng = np.random.default_rng(1)
    x, above = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 4))
    p = weights(peephole)

    def loss(run: Any) -> Any:
        return lambda x, p: (run(x, p) * above).sum()

    (here, ours), (there, theirs) = (jax.jit(jax.value_and_grad(loss(run), (0, 1)))(x, p) for run in (lstm, plain_lstm))
    np.testing.assert_allclose(here, there, atol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), ours, theirs)
    compiled = jax.jit(loss(lstm))
    np.testing.assert_allclose(ours[0], differences(lambda x: float(compiled(x, p)), x), atol=1e-7)
    for name in p:
        numeric = differences(lambda leaf, name=name: float(compiled(x, {**p, name: leaf})), p[name])
        np.testing.assert_allclose(ours[1][name], numeric, atol=1e-7)


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (1, 5, 7, 2)])
def test_pool(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x = rng.permutation(np.prod(shape)).reshape(shape) * 0.1  # no ties
    above = rng.normal(size=(shape[0], shape[1] // 2, shape[2] // 2, shape[3]))

    def loss(run: Any) -> Any:
        return lambda x: (run(x) * above).sum()

    np.testing.assert_array_equal(jax.jit(pool)(x), plain_pool(x))
    ours, theirs = (jax.jit(jax.grad(loss(run)))(x) for run in (pool, plain_pool))
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    compiled = jax.jit(loss(pool))
    np.testing.assert_allclose(ours, differences(lambda x: float(compiled(x)), x), atol=1e-7)


def test_a_tie_in_a_pool_has_one_winner_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(3).integers(0, 2, (2, 6, 6, 3)).astype(float)
    g = jax.jit(jax.grad(lambda x: pool(x).sum()))(x)
    assert float(g.sum()) == 2 * 3 * 3 * 3
    other = torch.tensor(x.transpose(0, 3, 1, 2).copy(), requires_grad=True)
    torch.nn.functional.max_pool2d(other, 2).sum().backward()
    np.testing.assert_array_equal(np.asarray(g).transpose(0, 3, 1, 2), other.grad.numpy())


@pytest.mark.parametrize("rows", [2, 10, FEW])
def test_a_product_of_few_rows_has_the_gradients_of_a_product(rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, w, g = (rng.normal(size=s) for s in ((rows, 120), (120, 90), (rows, 90)))
    few, plain = (jax.jit(jax.grad(lambda x, w, f=f: (f(x, w) * g).sum(), (0, 1))) for f in (few_rows, jnp.matmul))
    for a, b in zip(few(x, w), plain(x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
