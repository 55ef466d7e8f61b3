"""Optimisers as data: a name that Optax knows, or one of `adaptive`, and its options. Of parties and of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.core.errors import Mismatch, nearest
from atoll.jit import jax_library

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True)
class Optimiser:
    """Any optimiser of Optax by name, with its options; the learning rate comes from the method.

    Args:
        name: of a function of Optax that has a learning rate, or "fedadam", "fedyogi" or "fedadagrad". Default "sgd".
        options: pairs of the name and the value of an option. Default: none.

    Example:
        >>> from atoll.models import Optimiser
        >>> Optimiser("sgd", (("momentum", 0.9),))
        Optimiser(name='sgd', options=(('momentum', 0.9),))
    """

    name: str = "sgd"
    options: tuple[tuple[str, object], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether a step is only w − lr·g."""
        return self.name == "sgd" and not any(value for _, value in self.options)

    def make(self) -> Callable[[float], optax.GradientTransformation]:
        """Return the function from a learning rate to Optax's transformation."""
        import inspect

        import optax

        from atoll.models.adaptive import OPTIMISERS

        known = [*OPTIMISERS, *(n for n in dir(optax) if "learning_rate" in _parameters(getattr(optax, n)))]
        if self.name not in known:
            hint = nearest(self.name, known, f"Optax has {', '.join(known)}")
            raise Mismatch(f"optimiser '{self.name}' is unknown: {hint}")
        options, factory = dict(self.options), OPTIMISERS.get(self.name) or getattr(optax, self.name)
        taken = set(inspect.signature(factory).parameters)
        wrong = sorted(set(options) - taken)
        if wrong:
            hint = nearest(wrong[0], taken, f"it takes {', '.join(sorted(taken))}")
            raise Mismatch(f"optimiser '{self.name}' has no option '{wrong[0]}': {hint}")
        return lambda lr: factory(learning_rate=lr, **options)

    def check(self) -> None:
        """Refuse an optimiser that Optax does not have, or that cannot step with a gradient alone."""
        if self.plain:
            return
        make, jax = self.make(), jax_library()

        def step(g: object, p: object) -> object:
            made = make(0.1)
            return made.update(g, made.init(p), p)

        vector = jax.ShapeDtypeStruct((2,), "float32")
        try:
            jax.eval_shape(step, vector, vector)
        except Exception as error:  # of Optax, or of a value that an option cannot have
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            raise Mismatch(
                f"optimiser '{self.name}' cannot step with a gradient and these options ({why}): use adam, or sgd with "
                "momentum"
            ) from None


def _parameters(thing: object) -> list[str]:
    import inspect

    try:
        return list(inspect.signature(thing).parameters) if inspect.isfunction(thing) else []
    except (TypeError, ValueError):
        return []


def optimiser(name: str = "sgd", **options: object) -> Optimiser:
    """Make an optimiser from a name and its options.

    Args:
        name: of a function of Optax that has a learning rate. Default "sgd".
        **options: of this optimiser, as Optax names them.

    Example:
        >>> import atoll
        >>> atoll.optimiser("adam", b1=0.8)
        Optimiser(name='adam', options=(('b1', 0.8),))
    """
    return Optimiser(name, tuple(sorted(options.items())))
