"""Names in job files and the parts they stand for. Parts become tables and tables parts; nothing is imported early."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, get_type_hints

import numpy as np

PARTS: dict[str, dict[str, str]] = {
    "method": {
        "fedavg": "atoll.methods.fedavg:FedAvg",
        "fedsgd": "atoll.methods.fedsgd:FedSGD",
        "fedprox": "atoll.methods.fedavg:FedProx",
        "fedavgm": "atoll.methods.fedavg:fedavgm",
        "fedadam": "atoll.methods.fedavg:fedadam",
        "fedyogi": "atoll.methods.fedavg:fedyogi",
        "fedadagrad": "atoll.methods.fedavg:fedadagrad",
    },
    "model": {
        "softmax": "atoll.models.zoo:softmax",
        "logistic": "atoll.models.zoo:logistic",
        "linear": "atoll.models.zoo:linear",
        "mlp": "atoll.models.zoo:mlp",
        "cnn": "atoll.models.zoo:cnn",
        "lenet": "atoll.models.zoo:lenet",
        "char_lstm": "atoll.models.zoo:char_lstm",
    },
    "select": {
        "all": "atoll.select.sample:All",
        "uniform": "atoll.select.sample:Uniform",
        "count": "atoll.select.sample:Count",
        "poisson": "atoll.select.sample:Poisson",
        "by_size": "atoll.select.sample:BySize",
        "over": "atoll.select.sample:Over",
        "in_turn": "atoll.select.sample:InTurn",
        "batches": "atoll.select.batches:Batches",
        "partition": "atoll.select.batches:Partition",
        "least_served": "atoll.select.batches:LeastServed",
    },
    "stage": {
        "weigh": "atoll.stages.weigh:Weigh",
        "average": "atoll.stages.weigh:Average",
        "clip": "atoll.stages.clip:Clip",
        "ring": "atoll.stages.ring:Ring",
        "gaussian": "atoll.stages.noise:Gaussian",
        "tree": "atoll.stages.noise:Tree",
        "top_k": "atoll.stages.sparsify:TopK",
        "random_k": "atoll.stages.sparsify:RandomK",
        "quantise": "atoll.stages.quantise:Quantise",
        "sign": "atoll.stages.quantise:Sign",
        "rotate": "atoll.stages.rotate:Rotate",
        "low_rank": "atoll.stages.low_rank:LowRank",
    },
    "combine": {
        "sum": "atoll.combine.each:Sum",
        "each": "atoll.combine.each:Each",
        "buffered": "atoll.combine.buffered:Buffered",
        "secure_sum": "atoll.combine.secure:SecureSum",
        "light_sum": "atoll.combine.light:LightSum",
        "encrypted_sum": "atoll.combine.encrypted:EncryptedSum",
    },
    "rule": {
        "mean": "atoll.combine.rules:Mean",
        "median": "atoll.combine.rules:Median",
        "trimmed_mean": "atoll.combine.rules:TrimmedMean",
    },
    "stop": {
        "target": "atoll.stop:Target",
        "budget": "atoll.stop:Budget",
        "patience": "atoll.stop:Patience",
        "still": "atoll.stop:Still",
        "wall_time": "atoll.stop:WallTime",
    },
    "availability": {
        "always": "atoll.select.available:Always",
        "flaky": "atoll.select.available:Flaky",
        "diurnal": "atoll.select.available:Diurnal",
        "trace": "atoll.select.available:Trace",
    },
    "private": {"example_dp": "atoll.models.private:ExampleDP"},
    "schedule": {
        "exponential": "atoll.methods.schedule:Exponential",
        "steps": "atoll.methods.schedule:Steps",
        "cosine": "atoll.methods.schedule:Cosine",
    },
}

ALL = "all"  # how a file says batch = None: TOML has no nothing

# A field of this name holds a part of this kind.
NESTED = {"model": "model", "lr": "schedule", "rule": "rule", "select": "select", "private": "private"}


class BadJob(ValueError):
    """A job file that cannot be: the sentence names the key, what is wrong, and the nearest thing that is right."""


def find(kind: str, name: str, where: str = "") -> Callable[..., Any]:
    """Return what a name stands for."""
    known = PARTS[kind]
    if name not in known:
        raise BadJob(f"{where or kind}: there is no {kind} '{name}'; {nearest(name, known)}")
    module, attribute = known[name].split(":")
    return getattr(import_module(module), attribute)


def nearest(name: str, known: Any) -> str:
    """Say which known name was probably meant."""
    close = get_close_matches(str(name), list(known), 1, 0.5)
    return f"did you mean '{close[0]}'?" if close else f"there are {', '.join(sorted(known))}"


def build(kind: str, table: Any, where: str | None = None) -> Any:
    """Make a part from a job file's table ({use = "clip", norm = 1.0}) or bare name ("sum")."""
    where = where or kind
    if isinstance(table, str):
        table = {"use": table}
    if not isinstance(table, Mapping) or "use" not in table:
        raise BadJob(f'{where}: say which part to use, as in {where} = {{ use = "{next(iter(PARTS[kind]))}" }}')
    factory = find(kind, str(table["use"]), where)
    known = parameters(factory)
    given = {}
    for key, value in table.items():
        if key == "use":
            continue
        if key not in known:
            raise BadJob(f"{where}.{key}: {table['use']} has no such field; {nearest(key, known)}")
        given[key] = _value(key, value, known[key], f"{where}.{key}")
    missing = [name for name, (_, default) in known.items() if default is inspect.Parameter.empty and name not in given]
    if missing:
        raise BadJob(f"{where}: {table['use']} needs '{missing[0]}'")
    try:
        return factory(**given)
    except (ValueError, TypeError) as error:
        raise BadJob(f"{where}: {error}") from None


def parameters(factory: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return name -> (type, default) of a part's fields; extra settings of a named method are FedAvg's own."""
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    found: dict[str, tuple[Any, Any]] = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            from atoll.methods.fedavg import FedAvg

            taken = {"server": "server_lr", "prox": "mu"}  # what the name itself decides
            more = parameters(FedAvg).items()
            found = {**{n: p for n, p in more if taken.get(n) not in found}, **found}
            continue
        found[name] = (hints.get(name, Any), parameter.default)
    return found


def _value(key: str, value: Any, about: tuple[Any, Any], where: str) -> Any:
    import msgspec

    if key == "optimiser":
        return _optimiser(value, where)
    if key == "server":
        return _server(value, where)
    if key in NESTED and (isinstance(value, Mapping) or key != "lr"):
        return build(NESTED[key], value, where)
    if key == "batch" and value == ALL:
        return None
    hint = float if key == "lr" else about[0]
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise BadJob(f"{where} = {value!r}: {str(error)[0].lower()}{str(error)[1:]}") from None
    except TypeError:
        return value


def _named(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"use": value}
    if not isinstance(value, Mapping):
        raise BadJob(f'{where} = {value!r}: say which, as in {where} = {{ use = "adam" }}')
    return dict(value)


def _optimiser(value: Any, where: str) -> Any:
    from atoll.models.optimiser import optimiser

    table = _named(value, where)
    made = optimiser(table.pop("use", "sgd"), **table)
    if not made.plain:
        try:
            made.make()
        except ValueError as error:
            raise BadJob(f"{where}: {error}") from None
    return made


def _server(value: Any, where: str) -> Any:
    from atoll.methods.server import Server

    table = _named(value, where)
    lr: Any = table.pop("lr", 1.0)
    try:
        return Server(_optimiser(table, where), lr)
    except (ValueError, TypeError) as error:
        raise BadJob(f"{where}: {error}") from None


# --- from parts to tables ---------------------------------------------------------------------------------------------


def table(part: Any) -> Any:  # noqa: PLR0911 - one a kind
    """Turn a part back into what a job file says of it: its name and all its fields."""
    from atoll.methods.server import Server
    from atoll.models.model import Model
    from atoll.models.optimiser import Optimiser

    if isinstance(part, Server):
        return {"use": part.optimiser.name, "lr": part.lr, **dict(part.optimiser.options)}
    if isinstance(part, Optimiser):
        return {"use": part.name, **dict(part.options)}
    if isinstance(part, Model):
        extra = {k: v for k, v in (("backend", part.backend), ("dtype", part.dtype)) if v not in ("jax", "float32")}
        return {"use": name_of(part.spec), **_fields(part.spec), **extra}
    if is_dataclass(part) and not isinstance(part, type):
        return {"use": name_of(part), **_fields(part)}
    if isinstance(part, list | tuple):
        return [table(p) for p in part]
    if part is None or isinstance(part, str | int | float | np.generic):
        return part
    # A function or module of the user's own: a file can name it, though not build it again.
    home = part if callable(part) and hasattr(part, "__qualname__") else type(part)
    return f"{home.__module__}:{home.__qualname__}"


def _fields(part: Any) -> dict[str, Any]:
    said = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "batch" and value is None:
            value = ALL
        if value is not None:
            said[field.name] = table(value)
    return said


def name_of(part: Any) -> str:
    from atoll.models.zoo import SPECS

    kind = type(part)
    for name, spec in SPECS.items():
        if spec is kind:
            return name
    path = f"{kind.__module__}:{kind.__qualname__}"
    for names in PARTS.values():
        for name, known in names.items():
            if known == path:
                return name
    return kind.__name__


def entries(kind: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (name, one-line purpose, fields with their defaults) of every part of a kind."""
    for name in PARTS[kind]:
        factory = find(kind, name)
        purpose = (inspect.getdoc(factory) or "").split("\n")[0]
        shown = []
        for field, (_, default) in parameters(factory).items():
            value = None if default is inspect.Parameter.empty else table(default)
            shown.append(field if default is inspect.Parameter.empty else f"{field} = {_short(value)}")
        yield name, purpose, shown


def _short(value: Any) -> str:
    return str(value["use"]) if isinstance(value, Mapping) else str(value)
