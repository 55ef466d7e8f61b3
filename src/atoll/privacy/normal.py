"""Normal numbers for simulations, drawn by address and quickly: hashed counters through the inverse of the normal law.

Whatever the address and the size, the number at a place is the same; it is good to single precision, up to 6.3
deviations out. This is for simulated noise only; what really hides anybody is in `discrete`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.keys import draw
from atoll.core.tree import Array

if TYPE_CHECKING:
    import jax

_SPLIT = 5.0  # of w = −log v(2 − v), where the two polynomials meet
_DEGREE = 8


def normal(size: int, *address: object) -> Array:
    """Return standard normal numbers (float32) at an address."""
    return np.asarray(_kernels()[0](draw(*address).view(np.uint32), size=size))


def plus_normal(x: Array, sigma: float, *address: object) -> Array:
    """Add the same numbers times sigma, as whole ones, to integers of 32 bits, modulo 2³²."""
    return np.asarray(_kernels()[1](x, draw(*address).view(np.uint32), np.float32(sigma)))


def hashed(key: jax.Array, size: int) -> jax.Array:
    """Return 32 random bits for each place, by a key of two such numbers (inside a compiled call)."""
    import jax.numpy as jnp

    return _mix(_mix(jnp.arange(size, dtype=jnp.uint32) + key[0]) ^ key[1])


@lru_cache(maxsize=1)
def _kernels() -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    from atoll.jit import jax_library

    return jax_library().jit(_normal, static_argnames="size"), jax_library().jit(_plus_normal)


def _normal(key: jax.Array, size: int) -> jax.Array:
    """Let 31 bits be the chance v of anything further out, and one the sign."""
    import jax.numpy as jnp

    bits = hashed(key, size)
    v = ((bits >> 1).astype(jnp.float32) + 0.5) * 2.0**-31
    w = -jnp.log(v * (2 - v))
    near, far = _polynomials()
    ratio = jnp.where(w < _SPLIT, _value(near, w - _SPLIT / 2), _value(far, jnp.sqrt(w) - 3.4))
    return jnp.where(bits & 1, ratio, -ratio) * (1 - v)


def _plus_normal(x: jax.Array, key: jax.Array, sigma: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return x + jnp.rint(_normal(key, len(x)) * sigma).astype(jnp.int32).view(x.dtype)


def _mix(x: jax.Array) -> jax.Array:
    """Stir 32 bits so that each depends on all (the constants are those of C. Wellons' lowbias32)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _value(polynomial: list[float], x: jax.Array) -> jax.Array:
    total = polynomial[-1]
    for coefficient in polynomial[-2::-1]:
        total = total * x + coefficient
    return total


@lru_cache(maxsize=1)
def _polynomials() -> tuple[list[float], list[float]]:
    """Fit z/(1 − v), where z is exceeded with chance v/2: in w near the middle, in √w far from it."""
    w = np.concatenate([np.linspace(1e-3, _SPLIT, 400), np.linspace(_SPLIT, 22.0, 400)])
    x = np.sqrt(-np.expm1(-w))  # 1 − v
    z = np.array([-NormalDist().inv_cdf(v / 2) for v in np.exp(-w) / (1 + x)])
    fit = np.polynomial.polynomial.polyfit
    near, far = w <= _SPLIT, w >= _SPLIT
    return (
        fit(w[near] - _SPLIT / 2, (z / x)[near], _DEGREE).tolist(),
        fit(np.sqrt(w[far]) - 3.4, (z / x)[far], _DEGREE).tolist(),
    )
