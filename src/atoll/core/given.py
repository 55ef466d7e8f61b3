"""Checks of what a user gives in Python: each refuses a slip in one sentence that shows the right call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import isclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Literal, NoReturn, Protocol, Self, TypeGuard, Union, get_args, get_origin, get_type_hints

from atoll.core.errors import Mismatch, nearest
from atoll.core.renames import FIELDS, MEMBERS

_WORDS: dict[object, tuple[type, str]] = {
    int: (Integral, "a whole number"), float: (Real, "a number"), str: (str, "text"),
    bool: (bool, "True or False"), NoneType: (NoneType, "None"),
}  # fmt: skip
# Of each kind of part one that fits, for sentences.
_SUCH_AS = {
    "Method": "atoll.FedAvg(atoll.models.softmax())", "Model": "atoll.models.softmax()", "Select": "atoll.Uniform(0.1)",
    "Combine": "atoll.Sum() or atoll.Each(atoll.Median())", "Rule": "atoll.Median()", "Metric": "atoll.metrics.AUC()",
    "Stop": 'atoll.Target("test.accuracy", 0.9)', "Availability": "atoll.Flaky(0.9)", "Schedule": "atoll.Cosine(0.1)",
    "Optimiser": 'atoll.optimiser("adam")', "ExampleDP": "atoll.ExampleDP(1.0, 1.0)", "Stage": "atoll.Weigh()",
    "Program": "atoll.JointMoments()", "Channel": "atoll.Channel([…stages…], atoll.Sum())",
}  # fmt: skip
_SINGLE = (str, bytes, bool, Real, NoneType)


class Part(Protocol):
    """What a job is made of. A call that its fields do not fit is refused before any code of the part runs."""

    def __new__(cls, *given: object, **named: object) -> Self:
        """Check the call. Unpickling and copying give nothing here, and are not checked."""
        known = _hints(cls) if is_dataclass(cls) else dict.fromkeys(named, object)
        for name in named.keys() - known.keys():
            raise Mismatch(f"{cls.__name__} has no field '{name}': {_renamed(cls, name) or nearest(name, known)}")
        for name, value in {**dict(zip(known, given, strict=False)), **named}.items():
            allowed = options(known.get(name, object))
            if not any(_takes(option, value) for option in allowed):
                _refuse(f"{cls.__name__}: {name}", value, allowed)
        return super().__new__(cls)


def number(where: str, value: object, least: int | None = 1) -> int:
    """Return a whole number as Python's; refuse what is none from `least` on.

    Args:
        where: what the value is called, for the message.
        value: what was given.
        least: the smallest number allowed; None: any. Default 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise Mismatch(f"{where} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise Mismatch(f"{where} must be at least {least}, got {value}")
    return int(value)


def part(where: str, value: object, protocol: type) -> None:
    """Refuse what is no part of a kind: a class instead of an instance, a name, a list, or something else.

    Args:
        where: what the value is called, for the message.
        value: what was given.
        protocol: the kind of part, such as `Select`.
    """
    if isinstance(value, type) or not _plays(value, protocol):
        _refuse(where, value, [protocol])


def _missing(value: object, protocol: type) -> set[str]:
    return {name for name in vars(protocol) if name == "__call__" or name[0] != "_"}.difference(dir(value))


def _plays(value: object, protocol: type) -> bool:
    """Whether a value has all that a kind of part has, and is no part of another kind."""
    kinds = type(value).__mro__
    return protocol in kinds or (Part not in kinds and not _missing(value, protocol))


def parts(where: str, value: object, protocol: type) -> None:
    """Refuse what is no list of parts.

    Args:
        where: what the value is called, for the message.
        value: what was given.
        protocol: the kind of part, such as `Select`.
    """
    if not isinstance(value, list | tuple):
        raise Mismatch(f"{where} is a list of parts: write {where}=[{_SUCH_AS[protocol.__name__]}]")
    for k, one in enumerate(value):
        part(f"{where}[{k}]", one, protocol)


def folder_name(where: str, value: object) -> None:
    """Refuse what cannot be the name of a folder.

    Args:
        where: what the value is called, for the message.
        value: what was given.
    """
    if not isinstance(value, str) or value in ("", ".", "..") or {"/", "\\", "\0"} & set(value):
        raise Mismatch(f"{where} = {value!r}: the run folder is called so; give a text without slashes")


def options(hint: object) -> list[object]:
    """Return the types that a hint allows: those of a union, or the only one.

    Args:
        hint: an annotation, as `typing.get_type_hints` returns it.
    """
    hint = getattr(hint, "__value__", hint)  # of an alias: type Rate = float | Schedule
    return [o for arg in get_args(hint) for o in options(arg)] if get_origin(hint) in (Union, UnionType) else [hint]


@cache
def _hints(kind: type) -> Mapping[str, object]:
    """Return the type of every field, in order; `object` where it cannot be read here."""
    if not is_dataclass(kind):
        return {}
    try:
        hints = get_type_hints(kind)
    except NameError:  # a type that only type checkers import
        hints = {}
    return {field.name: hints.get(field.name, object) for field in fields(kind) if field.init}


def _renamed(kind: type, name: str) -> str | None:
    """Say what a field of release 0.1 is called now; job files write the names of parts in small letters."""
    parts = {use.replace("_", ""): now for use, now in FIELDS.items()}
    now = parts.get(kind.__name__.lower(), {}).get(name)
    return f"it is called '{now}' now" if now else None


def _refuse(where: str, value: object, allowed: list[object]) -> NoReturn:
    if isinstance(value, type):
        raise Mismatch(f"{where} is the class {value.__name__}: make a part of it, {value.__name__}(…)")
    for name in sorted(MEMBERS.keys() & dir(value)):
        if any(MEMBERS[name] in _missing(value, option) for option in allowed if _is_part(option)):
            raise Mismatch(f"{where}: '{name}' of {type(value).__name__} is called '{MEMBERS[name]}' now")
    raise Mismatch(f"{where} must be {' or '.join(_word(option) for option in allowed)}, got {value!r}")


def _takes(option: object, value: object) -> bool:
    """Whether a type takes a value. What is no number, text, class or part is the part's own to check."""
    if get_origin(option) is Literal:
        return isinstance(value, _SINGLE) and value in get_args(option)
    if option in _WORDS:
        return isinstance(value, _WORDS[option][0]) and (option is bool or not isinstance(value, bool))
    if _is_part(option):
        return not isinstance(value, (*_SINGLE, type)) and (is_dataclass(option) or _plays(value, option))
    return not (isclass(get_origin(option)) and isinstance(value, _SINGLE))


def _is_part(option: object) -> TypeGuard[type]:
    return isclass(option) and (is_dataclass(option) or Part in option.__mro__)


def _word(option: object) -> str:
    if get_origin(option) is Literal:
        return " or ".join(map(repr, get_args(option)))
    if option in _WORDS:
        return _WORDS[option][1]
    if (of := get_origin(option)) is not None:
        listed = [_SUCH_AS[one.__name__] for one in get_args(option) if isclass(one) and one.__name__ in _SUCH_AS]
        return f"a list such as [{listed[0]}]" if listed and of is Sequence else f"a {of.__name__}"
    name = option.__name__ if isclass(option) else str(option)
    return f"a part such as {_SUCH_AS[name]}" if name in _SUCH_AS else f"a {name}"
