"""The server's optimiser: what is done with the mean change. Any optimiser of Optax; plain addition needs none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch
from atoll.methods.schedule import check_rate
from atoll.models.layers import Tensor
from atoll.models.optimiser import Optimiser


@dataclass(frozen=True)
class ServerOptimiser:
    """Give the mean change, as a negative gradient, to an optimiser with this learning rate.

    Args:
        optimiser: any optimiser of Optax; its state is kept over rounds. Default SGD, which adds the change.
        lr: learning rate of the server, above 0. Default 1.0.

    Example:
        >>> import atoll
        >>> server = atoll.ServerOptimiser(atoll.optimiser("adam", eps=1e-3), lr=0.02)
        >>> atoll.FedAvg(atoll.models.softmax(), server=server).server.lr
        0.02
    """

    optimiser: Optimiser = Optimiser()
    lr: float = 1.0

    def __post_init__(self) -> None:
        check_rate(self.lr, "server.lr")
        if not isinstance(self.optimiser, Optimiser):
            raise Mismatch(f"server.optimiser = {self.optimiser!r}: write atoll.optimiser(…) with the name of one")
        self.optimiser.check()

    def start(self, w: Array) -> Tree:
        """Return the optimiser's memory for parameters w, as a flat tree of arrays."""
        if self.optimiser.plain:
            return {}
        import jax

        with jax.enable_x64(w.dtype == np.float64):
            return _leaves(self.optimiser.make()(self.lr).init(w))

    def step(self, w: Array, change: Array, memory: Tree) -> tuple[Array, Tree]:
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


def _leaves(state: Tensor) -> dict[str, Array]:
    import jax

    return {f"{i:03d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
