"""Optimisers as data: a name that Optax knows and its options. Used on parties and on the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


@dataclass(frozen=True)
class Optimiser:
    """Any optimiser of Optax by name, with its options; the learning rate comes from the method.

    >>> Optimiser("sgd", (("momentum", 0.9),))
    Optimiser(name='sgd', options=(('momentum', 0.9),))
    """

    name: str = "sgd"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether a step is only w − lr·g."""
        return self.name == "sgd" and not any(value for _, value in self.options)

    def make(self) -> Callable[[Any], Any]:
        """Return the function from a learning rate to Optax's transformation."""
        import inspect

        import optax

        known = [n for n in dir(optax) if "learning_rate" in _parameters(getattr(optax, n))]
        if self.name not in known:
            near = get_close_matches(self.name, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"Optax has {', '.join(known)}"
            raise ValueError(f"optimiser '{self.name}' is unknown: {hint}")
        factory, options = getattr(optax, self.name), dict(self.options)
        taken = set(inspect.signature(factory).parameters)
        wrong = sorted(set(options) - taken)
        if wrong:
            near = get_close_matches(wrong[0], taken, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"it takes {', '.join(sorted(taken))}"
            raise ValueError(f"optimiser '{self.name}' has no option '{wrong[0]}': {hint}")
        return lambda lr: factory(learning_rate=lr, **options)


def _parameters(thing: object) -> list[str]:
    import inspect

    try:
        return list(inspect.signature(thing).parameters) if inspect.isfunction(thing) else []
    except (TypeError, ValueError):
        return []


def optimiser(name: str = "sgd", **options: Any) -> Optimiser:
    """Make an optimiser from a name and its options, as in `optimiser("adam", b1=0.9)`."""
    return Optimiser(name, tuple(sorted(options.items())))
