"""Names in job files and the parts they stand for. Parts become tables and tables parts; nothing is imported early."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from importlib import import_module
from operator import or_
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from atoll.core import renames
from atoll.core.errors import AtollError, nearest
from atoll.core.given import options
from atoll.job.hints import holds_parts, is_part, kinds

if TYPE_CHECKING:
    from atoll.job.parts import Entry
    from atoll.methods.server import ServerOptimiser
    from atoll.models.optimiser import Optimiser

T = TypeVar("T", bool, int, str)

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
        "oversample": "atoll.select.sample:Oversample",
        "round_robin": "atoll.select.sample:RoundRobin",
        "batches": "atoll.select.batches:Batches",
        "partition": "atoll.select.batches:Partition",
        "least_served": "atoll.select.batches:LeastServed",
    },
    "stage": {
        "weigh": "atoll.stages.weigh:Weigh",
        "average": "atoll.stages.weigh:Average",
        "clip": "atoll.stages.clip:Clip",
        "train_loss": "atoll.stages.loss:TrainLoss",
        "ring": "atoll.stages.ring:Ring",
        "gaussian": "atoll.stages.noise:Gaussian",
        "tree_noise": "atoll.stages.noise:TreeNoise",
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
        "target": "atoll.stop.stops:Target",
        "budget": "atoll.stop.stops:Budget",
        "patience": "atoll.stop.stops:Patience",
        "converged": "atoll.stop.stops:Converged",
        "wall_time": "atoll.stop.stops:WallTime",
    },
    "availability": {
        "always": "atoll.select.available:Always",
        "flaky": "atoll.select.available:Flaky",
        "diurnal": "atoll.select.available:Diurnal",
        "trace": "atoll.select.available:Trace",
    },
    "example_dp": {"example_dp": "atoll.models.example_dp:ExampleDP"},
    "schedule": {
        "exponential": "atoll.methods.schedule:Exponential",
        "steps": "atoll.methods.schedule:Steps",
        "cosine": "atoll.methods.schedule:Cosine",
    },
    "metric": {
        "accuracy": "atoll.metrics.classes:Accuracy",
        "balanced_accuracy": "atoll.metrics.classes:BalancedAccuracy",
        "recall": "atoll.metrics.classes:Recall",
        "f1": "atoll.metrics.classes:F1",
        "log_loss": "atoll.metrics.classes:LogLoss",
        "perplexity": "atoll.metrics.classes:Perplexity",
        "top_k_accuracy": "atoll.metrics.classes:TopKAccuracy",
        "auc": "atoll.metrics.ranking:AUC",
        "average_precision": "atoll.metrics.ranking:AveragePrecision",
        "mse": "atoll.metrics.real:MSE",
        "mae": "atoll.metrics.real:MAE",
        "r2": "atoll.metrics.real:R2",
    },
    "program": {"joint_moments": "atoll.programs.vertical.moments:JointMoments"},
}

REWRITE = "`atoll migrate FILE` rewrites a file"
ALL = "all"  # how a file says batch = None: TOML has no nothing

Gate = Callable[["Entry", str], None]
"""Asked, before a part of another package is imported for a text of a peer, whether it may be; refuses by raising."""


class BadJob(AtollError, ValueError):
    """A job file that cannot be: the sentence names the key, what is wrong, and the nearest thing that is right."""

    code = "bad_job"


class OldName(BadJob):
    """A job file with a name of release 0.1; the sentence has today's, and how to rewrite the file."""

    code = "old_name"


def find(kind: str, name: str, where: str = "", gate: Gate | None = None) -> Callable[..., object]:
    """Return what a name stands for: a part of Atoll, of an installed package, or module:Name of one's own.

    Args:
        kind: The kind of the part, as in `PARTS`.
        name: Its name in a job file.
        where: The key that names it, for sentences.
        gate: What decides on parts of other packages; None: the text is of this machine and may import anything.
    """
    where = where or kind
    if name in PARTS.get(kind, {}):
        module, attribute = PARTS[kind][name].split(":")
        return getattr(import_module(module), attribute)
    from atoll.job.parts import installed, load, load_own

    if ":" in name:
        if gate is not None:
            raise BadJob(
                f"{where}: '{name}' is imported by a job file of one's own machine only: between parties, install it "
                f"as a package with an entry point of atoll.parts, and use its name there"
            )
        return _checked(load_own(name, where), name, where)
    entry = installed().get((kind, name))
    if entry is None:
        raise _unknown(kind, name, where)
    if gate is not None:
        gate(entry, where)
    return _checked(load(entry.path, where), name, where)


def _unknown(kind: str, name: str, where: str) -> BadJob:
    now = renames.PARTS.get(kind, {}).get(name)
    if now:
        return renamed(f"{where}: ", name, now)
    return BadJob(f"{where}: there is no {kind} '{name}'; {nearest(name, names(kind))}")


def renamed(where: str, name: str, now: str) -> OldName:
    """Say what a name of release 0.1 is called now."""
    return OldName(f"{where}'{name}' is called '{now}' now; {REWRITE}")


def _checked(factory: object, name: str, where: str) -> Callable[..., object]:
    """Refuse what could not be written to a job file again."""
    if inspect.isfunction(factory):
        return factory
    if not (inspect.isclass(factory) and is_dataclass(factory) and factory.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise BadJob(f"{where}: {name} is no part: write it as a class with @dataclass(frozen=True)")
    return factory


def names(kind: str) -> list[str]:
    """Return the names that a job file can use for a kind of part."""
    from atoll.job.parts import installed

    return [*PARTS.get(kind, {}), *(name for of, name in installed() if of == kind)]


def plain(said: Mapping[str, object], key: str, default: T) -> T:
    """Return the whole number, the text or the yes or no that a file has under a key, or the default."""
    value = said.get(key, default)
    if type(value) is not type(default):
        needed = {bool: "true or false", int: "a whole number", str: "a text"}[type(default)]
        raise BadJob(f"{key} = {value!r}: {needed} is needed")
    return value


def build(kind: str, table: object, where: str | None = None, gate: Gate | None = None) -> Any:
    """Make a part from a job file's table ({use = "clip", norm = 1.0}) or bare name ("sum")."""
    where = where or kind
    if isinstance(table, str):
        table = {"use": table}
    if not isinstance(table, Mapping) or "use" not in table:
        raise BadJob(f'{where}: say which part to use, as in {where} = {{ use = "{next(iter(names(kind)), "…")}" }}')
    use = str(table["use"])
    factory = find(kind, use, where, gate)
    if kind == "model" and inspect.isclass(factory):
        return _model(factory, table, where, gate)
    return _make(factory, use, {key: value for key, value in table.items() if key != "use"}, where, gate)


def _make(factory: Callable[..., object], use: str, said: Mapping[str, object], where: str, gate: Gate | None) -> Any:
    """Call a factory with what a table says of its fields."""
    known = parameters(factory)
    given = {}
    for key, value in said.items():
        if key not in known:
            raise _no_field(use, key, known, f"{where}.{key}: ")
        hint, default = known[key]
        nothing = value == ALL and default is not None and NoneType in options(hint)
        given[key] = None if nothing else read(value, hint, f"{where}.{key}", gate)
    missing = [name for name, (_, default) in known.items() if default is inspect.Parameter.empty and name not in given]
    if missing:
        raise BadJob(f"{where}: {use} needs '{missing[0]}'")
    try:
        return factory(**given)
    except (ValueError, TypeError) as error:
        raise BadJob(f"{where}: {error}") from None


def _no_field(use: str, key: str, known: Mapping[str, object], where: str) -> BadJob:
    now = renames.FIELDS.get(use, {}).get(key)
    if now and now in known:
        return renamed(where, key, now)
    return BadJob(f"{where}{use} has no such field; {nearest(key, known)}")


def _model(spec: Callable[..., object], said: Mapping[str, object], where: str, gate: Gate | None) -> object:
    """Make a model of a spec: what is not a field of the spec says how the model is computed."""
    from atoll.models.model import Model

    how = {key: said[key] for key in ("backend", "dtype") if key in said}
    rest = {key: value for key, value in said.items() if key not in ("use", *how)}
    known = parameters(Model)
    backend = {key: read(value, known[key][0], f"{where}.{key}", gate) for key, value in how.items()}
    return Model(_make(spec, str(said["use"]), rest, where, gate), **backend)


def parameters(factory: Callable[..., object]) -> dict[str, tuple[object, object]]:
    """Return name -> (type, default) of a part's fields; extra settings of a function are those of what it returns."""
    try:
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except NameError as error:
        raise BadJob(f"{factory.__qualname__}: its type hints are read at run time, and {error}: import it") from None
    found: dict[str, tuple[object, object]] = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            taken = {"server": "server_lr", "prox": "mu"}  # what the name itself decides
            more = parameters(hints["return"]).items() if inspect.isclass(hints.get("return")) else ()
            found = {**{n: p for n, p in more if taken.get(n) not in found}, **found}
            continue
        found[name] = (hints.get(name, Any), parameter.default)
    return found


# --- nested parts: what a type hint asks for --------------------------------------------------------------------------


def read(value: object, hint: object, where: str, gate: Gate | None = None) -> Any:
    """Make of a file's value what a type hint asks for; a part stands as a table, or as its name where no text can."""
    allowed = [option for option in options(hint) if option is not NoneType]
    parts = [option for option in allowed if is_part(option)]
    groups = [option for option in allowed if holds_parts(option)]
    plain = [option for option in allowed if option not in parts and option not in groups]
    for group in groups:
        wanted = Mapping if issubclass(get_origin(group) or object, Mapping) else list
        if isinstance(value, wanted) and not _names_part(value):
            return _group(value, group, where, gate)
    if parts and (isinstance(value, Mapping) or not plain):
        return _part(value, parts, where, gate)
    if groups and not plain:
        raise BadJob(f"{where} = {value!r}: a list of tables is needed, as in {where} = [{{ use = … }}]")
    return _plain(value, reduce(or_, plain) if parts or groups else hint, where)


def _names_part(value: object) -> bool:
    return isinstance(value, Mapping) and "use" in value


# How a job file writes what is no part.
_WRITE: dict[object, str] = {
    int: "a whole number, such as 5", float: "a number, such as 0.5", bool: "true or false", str: 'a text in quotes',
}  # fmt: skip


def _plain(value: object, hint: object, where: str) -> object:
    import msgspec

    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        if get_origin(hint) is Literal:
            *some, last = (f"'{choice}'" for choice in get_args(hint))
            raise BadJob(f"{where} = {value!r}: use {', '.join(some)} or {last}") from None
        words = [_WRITE[option] for option in options(hint) if option in _WRITE]
        what = f"write {' or '.join(words)}" if words else f"{str(error)[0].lower()}{str(error)[1:]}"
        raise BadJob(f"{where} = {value!r}: {what}") from None
    except TypeError:
        return value


def _group(value: object, group: object, where: str, gate: Gate | None) -> object:
    """Make a list, tuple or table of parts."""
    of, args = get_origin(group), get_args(group)
    if isinstance(value, Mapping):
        return {key: read(item, args[1], f"{where}.{key}", gate) for key, item in value.items()}
    assert isinstance(value, list)
    hints = list(args) if of is tuple and Ellipsis not in args else [args[0]] * len(value)
    if len(hints) != len(value):
        raise BadJob(f"{where}: {len(value)} parts are given, and {len(hints)} are needed")
    made = [read(item, hint, f"{where}.{i}", gate) for i, (item, hint) in enumerate(zip(value, hints, strict=True))]
    return made if of is list else tuple(made)


def _part(value: object, allowed: list[type], where: str, gate: Gate | None) -> object:
    """Make a part of one of these types: that which knows the name, or the first."""
    from atoll.methods.server import ServerOptimiser
    from atoll.models.optimiser import Optimiser

    use = value.get("use") if isinstance(value, Mapping) else value
    option = next((o for o in allowed if len(allowed) > 1 and _knows(o, use)), allowed[0])
    if option is Optimiser:
        return _optimiser(value, where)
    if option is ServerOptimiser:
        return _server(value, where)
    if option in kinds():
        return build(kinds()[option], value, where, gate)
    return _instance(option, value, where, gate)


def _knows(option: type, use: object) -> bool:
    return use in names(kinds()[option]) if option in kinds() else use in _called(option)


def _instance(kind: type, value: object, where: str, gate: Gate | None) -> object:
    """Make what a hint names as a class of its own; its table may leave `use` out. The class is there already."""
    said = {"use": value} if isinstance(value, str) else value
    if not isinstance(said, Mapping):
        raise BadJob(f"{where} = {value!r}: a table with the fields of {kind.__name__} is needed")
    use = said.get("use", _called(kind)[0])
    if use not in _called(kind):
        raise BadJob(f"{where}: {use} is given, and {_called(kind)[0]} is needed")
    return _make(kind, use, {key: item for key, item in said.items() if key != "use"}, where, gate)


def _called(kind: type) -> tuple[str, ...]:
    """Return what a job file calls a class."""
    return _name(kind), f"{kind.__module__}:{kind.__qualname__}"


def _named(value: object, where: str) -> dict[str, object]:
    if isinstance(value, str):
        return {"use": value}
    if not isinstance(value, Mapping):
        raise BadJob(f'{where} = {value!r}: say which, as in {where} = {{ use = "adam" }}')
    return dict(value)


def _optimiser(value: object, where: str) -> Optimiser:
    from atoll.models.optimiser import optimiser

    table = _named(value, where)
    made = optimiser(str(table.pop("use", "sgd")), **table)
    try:
        made.check()
    except ValueError as error:
        raise BadJob(f"{where}: {error}") from None
    return made


def _server(value: object, where: str) -> ServerOptimiser:
    from atoll.methods.server import ServerOptimiser

    table = _named(value, where)
    lr: Any = table.pop("lr", 1.0)
    try:
        return ServerOptimiser(_optimiser(table, where), lr)
    except BadJob:
        raise
    except (ValueError, TypeError) as error:
        raise BadJob(f"{where}: {error}") from None


# --- from parts to tables ---------------------------------------------------------------------------------------------


def table(part: object) -> object:  # noqa: PLR0911 - one a kind
    """Turn a part back into what a job file says of it: its name and all its fields."""
    from atoll.methods.server import ServerOptimiser
    from atoll.models.model import Model
    from atoll.models.optimiser import Optimiser

    if isinstance(part, ServerOptimiser):
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
    if isinstance(part, Mapping):
        return {key: table(value) for key, value in part.items()}
    if part is None or isinstance(part, str | int | float | np.generic):
        return part
    # A function or module of the user's own: a file can name it, though not build it again.
    home = part if callable(part) and hasattr(part, "__qualname__") else type(part)
    return f"{home.__module__}:{home.__qualname__}"


def _fields(part: object) -> dict[str, object]:
    """Say the fields of a part. One that a later release added (`metadata={"since": …}`) is said where it was chosen:
    a text that does not choose it stays the same text, with the same hash.
    """
    assert is_dataclass(part)
    said = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if "since" in field.metadata and value == field.default:
            continue
        if value is None and field.default is not None:
            value = ALL
        if value is not None and field.init:
            said[field.name] = table(value)
    return said


def name_of(part: object) -> str:
    """Return what a job file calls a part: its name in the catalogue or of its entry point, else module:Name."""
    return _name(type(part))


def _name(kind: type) -> str:
    from atoll.models.zoo import SPECS

    path = f"{kind.__module__}:{kind.__qualname__}"
    for name, spec in SPECS.items():
        if spec is kind:
            return name
    for known in PARTS.values():
        for name, home in known.items():
            if home == path:
                return name
    top = kind.__module__.partition(".")[0]
    if top == "atoll":
        return kind.__name__  # a part that only Python can make
    from atoll.job.parts import installed

    # An entry point may lead to a module that re-exports the class. Nothing is imported to give a name.
    of = (entry.name for entry in installed().values() if entry.path == path or _loaded(entry.path) is kind)
    return next(of, path)


def _loaded(path: str) -> object:
    module, _, name = path.partition(":")
    found: object = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    return found


def entries(kind: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (name, one-line purpose, fields with their defaults) of every part of a kind."""
    from atoll.job.parts import installed

    for name in names(kind):
        entry = installed().get((kind, name))
        label = f"{name} (from {entry.package} {entry.version})" if entry else name
        try:
            factory = find(kind, name)
            shown = [_shown(field, default) for field, (_, default) in parameters(factory).items()]
        except BadJob as error:  # of another package: the others are listed all the same
            yield label, str(error), []
            continue
        yield label, (inspect.getdoc(factory) or "").split("\n")[0], shown


def _shown(field: str, default: object) -> str:
    if default is inspect.Parameter.empty:
        return field
    value = table(default)
    return f"{field} = {value['use'] if isinstance(value, Mapping) else value}"
