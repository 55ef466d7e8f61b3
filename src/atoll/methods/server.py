"""The server's optimiser: what is done with the mean change. Any optimiser of Optax; plain addition needs none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.tree import Array
from atoll.methods.schedule import check_rate
from atoll.models.optimiser import Optimiser


@dataclass(frozen=True)
class Server:
    """Take the mean change for a negative gradient and give it to an optimiser with this learning rate."""

    optimiser: Optimiser = Optimiser()
    lr: float = 1.0

    def __post_init__(self) -> None:
        check_rate(self.lr, "server.lr")

    def start(self, w: Array) -> Mapping[str, Any]:
        """Return the optimiser's memory for parameters w, as a flat tree of arrays."""
        if self.optimiser.plain:
            return {}
        import jax

        with jax.enable_x64(w.dtype == np.float64):
            return _leaves(self.optimiser.make()(self.lr).init(w))

    def step(self, w: Array, change: Array, memory: Mapping[str, Any]) -> tuple[Array, Mapping[str, Any]]:
        """Move w by the change."""
        if self.optimiser.plain:
            return (w + change if self.lr == 1 else w + np.asarray(self.lr, w.dtype) * change), memory
        import jax
        import optax

        with jax.enable_x64(w.dtype == np.float64):
            make = self.optimiser.make()(self.lr)
            shape = jax.tree.structure(make.init(w))
            state = jax.tree.unflatten(shape, [memory[name] for name in sorted(memory)])
            updates, state = make.update(-change, state, w)
            return np.asarray(optax.apply_updates(w, updates)), _leaves(state)


def _leaves(state: Any) -> dict[str, Array]:
    import jax

    return {f"{i:03d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
