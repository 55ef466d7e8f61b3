"""The adaptive optimisers of Reddi et al. 2021 (Adaptive Federated Optimization, Algorithm 2), as Optax has its own.

With the mean change Δ, all start at zero:

    m ← β1·m + (1 − β1)·Δ
    v ← v + Δ²  (Adagrad, β1 = 0),  β2·v + (1 − β2)·Δ²  (Adam),  v − (1 − β2)·Δ²·sign(v − Δ²)  (Yogi)
    w ← w + lr·m/(√v + τ)

Optax's Adam and Yogi divide both moments by 1 − βᵗ; `bias_correction` does so here. Optax's Adagrad has τ in the root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from atoll.jit import jax_library
from atoll.models.layers import Tensor

if TYPE_CHECKING:
    import optax


class Moments(NamedTuple):
    """Steps so far, and the two moments."""

    count: Tensor
    m: Tensor
    v: Tensor


def fedadam(
    learning_rate: float, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, bias_correction: bool = False
) -> optax.GradientTransformation:
    corrected = (b1, b2) if bias_correction else None
    return _adaptive(learning_rate, b1, eps, lambda v, gg: b2 * v + (1 - b2) * gg, corrected)


def fedyogi(
    learning_rate: float, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, bias_correction: bool = False
) -> optax.GradientTransformation:
    def second(v: Tensor, gg: Tensor) -> Tensor:
        return v - (1 - b2) * gg * jax_library().numpy.sign(v - gg)

    return _adaptive(learning_rate, b1, eps, second, (b1, b2) if bias_correction else None)


def fedadagrad(learning_rate: float, eps: float = 1e-3) -> optax.GradientTransformation:
    return _adaptive(learning_rate, 0.0, eps, lambda v, gg: v + gg, None)


OPTIMISERS: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "fedadam": fedadam, "fedyogi": fedyogi, "fedadagrad": fedadagrad,
}  # fmt: skip


def _adaptive(
    lr: float,
    b1: float,
    eps: float,
    second: Callable[[Tensor, Tensor], Tensor],
    corrected: tuple[float, float] | None,
) -> optax.GradientTransformation:
    import optax

    jax = jax_library()
    jnp = jax.numpy

    def init(p: Tensor) -> Moments:
        zeros = jax.tree.map(jnp.zeros_like, p)
        return Moments(jnp.zeros([], jnp.int32), zeros, zeros)

    def update(g: Tensor, state: Moments, p: Tensor = None) -> tuple[Tensor, Moments]:
        count = state.count + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.m, g)
        v = jax.tree.map(lambda v, g: second(v, g * g), state.v, g)
        one, two = (1 - b**count for b in corrected) if corrected else (1, 1)
        return jax.tree.map(lambda m, v: -lr * (m / one) / (jnp.sqrt(v / two) + eps), m, v), Moments(count, m, v)

    return optax.GradientTransformation(init, update)
