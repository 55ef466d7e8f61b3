"""Type hints of parts' fields: which of them hold parts, and of which kind. Nothing is built here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from typing import TypeGuard, get_args, get_origin

from atoll.core.given import options


@lru_cache(maxsize=1)
def kinds() -> Mapping[object, str]:
    """Return the kind of part that a field of each type holds."""
    from atoll.core.method import Method, Select, Stop
    from atoll.core.wire import Combine, Rule, Stage
    from atoll.methods.schedule import Schedule
    from atoll.models.example_dp import ExampleDP
    from atoll.models.model import Model
    from atoll.select.available import Availability

    return {
        Method: "method", Model: "model", Select: "select", Stage: "stage", Combine: "combine", Rule: "rule",
        Stop: "stop", Schedule: "schedule", ExampleDP: "example_dp", Availability: "availability",
    }  # fmt: skip


def is_part(option: object) -> TypeGuard[type]:
    """Whether a type is a kind of part, or a record of its own that a table can be made into."""
    return option in kinds() or (inspect.isclass(option) and is_dataclass(option))


def holds_parts(option: object) -> bool:
    """Whether a type is a list, a tuple or a table of parts."""
    of, within = get_origin(option), [o for arg in get_args(option) for o in options(arg)]
    return (
        inspect.isclass(of) and issubclass(of, Sequence | Mapping) and any(is_part(o) or holds_parts(o) for o in within)
    )
