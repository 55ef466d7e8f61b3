"""Networks written elsewhere, as models: Flax, Equinox, PyTorch, or plain functions. No layer of ours lives here.

A module must be a pure function of its parameters and of a row. What else it would keep (the statistics of batch norm)
belongs to no party alone, so it is refused; GroupNorm and LayerNorm need none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.given import number
from atoll.core.tree import Array, Schema
from atoll.jit import jax_library
from atoll.models.layers import Shape, Tensor
from atoll.models.model import Model
from atoll.models.net import Loss

if TYPE_CHECKING:
    import equinox as eqx
    import jax
    from flax import linen, nnx
    from torch import nn

DType = Literal["float32", "float64"]
Scores = Callable[[Tensor, Tensor], Tensor]  # of parameters and rows
RowLosses = Callable[[Tensor, Tensor, Tensor], Tensor]  # of parameters, rows and labels
T = TypeVar("T")
U = TypeVar("U")


def flax(
    module: linen.Module | Callable[[nnx.Rngs], nnx.Module],
    loss: Loss = "cross_entropy",
    *,
    ignore: int | None = None,
    dtype: DType = "float32",
) -> Model:
    """Make a model of a Flax network.

    Args:
        module: a linen Module, or a function from nnx.Rngs to an nnx Module. It must have no state beside its
            parameters. A linen Module whose call has an argument `train`, `training` or `deterministic` is told whether
            it is trained, and gets a key for its dropout then.
        loss: "cross_entropy" (the default), "logistic" (one score, two classes) or "squared" (real targets).
        ignore: labels equal to this do not count, such as padding. Default: all count.
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> from flax import linen
        >>> atoll.models.flax(linen.Dense(10)).bind((64,), 10).size
        650
    """
    from flax import linen

    _check_given(module, _FLAX, loss, ignore)
    kind = Linen if isinstance(module, linen.Module) else Nnx
    return Model(kind(module, loss, ignore), "jax", dtype)


def equinox(
    module: eqx.Module | Callable[[jax.Array], eqx.Module],
    loss: Loss = "cross_entropy",
    *,
    ignore: int | None = None,
    dtype: DType = "float32",
) -> Model:
    """Make a model of an Equinox network.

    Args:
        module: an Equinox module, whose parameters are the start, or a function from a JAX key to a module. It is
            called with one row.
        loss: "cross_entropy" (the default), "logistic" (one score, two classes) or "squared" (real targets).
        ignore: labels equal to this do not count, such as padding. Default: all count.
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> import equinox
        >>> atoll.models.equinox(lambda key: equinox.nn.Linear(64, 10, key=key)).bind((64,), 10).size
        650
    """
    import equinox as eqx

    _check_given(module, _EQUINOX, loss, ignore)
    make = Held(module) if isinstance(module, eqx.Module) else module
    return Model(Equinox(make, loss, ignore), "jax", dtype)


def functions(
    init: Callable[[int], Tensor],
    apply: Scores | None = None,
    losses: RowLosses | None = None,
    *,
    loss: Loss = "cross_entropy",
    ignore: int | None = None,
    dtype: DType = "float32",
) -> Model:
    """Make a model of pure JAX functions. Give `apply`, or `losses`, or both.

    Args:
        init: init(seed) returns the first parameters: any tree of arrays, or one vector.
        apply: apply(parameters, x) returns the scores of rows, of which `loss` is computed.
        losses: losses(parameters, x, y) returns the loss of each row, instead of `loss`.
        loss: "cross_entropy" (the default), "logistic" (one score, two classes) or "squared" (real targets).
        ignore: labels equal to this do not count, such as padding. Default: all count.
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> model = atoll.models.functions(lambda seed: {"w": np.zeros((64, 10))}, lambda p, x: x @ p["w"])
        >>> model.bind((64,), 10).size
        640
    """
    _check_given(init, _FUNCTIONS, loss, ignore)
    for name, function in (("apply", apply), ("losses", losses)):
        if not (function is None or callable(function)):
            raise Mismatch(f"{name} must be a function, got {function!r}")
    if apply is None and losses is None:
        raise Mismatch("functions() can compute nothing yet: give apply(parameters, x) or losses(parameters, x, y)")
    return Model(Functions(init, apply, losses, loss, ignore), "jax", dtype)


def module(
    factory: nn.Module | Callable[[], nn.Module],
    loss: Loss = "cross_entropy",
    *,
    ignore: int | None = None,
    dtype: DType = "float32",
) -> Model:
    """Make a model of a PyTorch network.

    Args:
        factory: a torch Module, whose parameters are the start, or a function without arguments that returns one.
        loss: "cross_entropy" (the default), "logistic" (one score, two classes) or "squared" (real targets).
        ignore: labels equal to this do not count, such as padding. Default: all count.
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> import torch
        >>> atoll.models.module(lambda: torch.nn.Linear(64, 10)).bind((64,), 10).size
        650
    """
    from atoll.models.torch_engine import _torch

    _check_given(factory, _TORCH, loss, ignore)
    make = Held(factory) if isinstance(factory, _torch().nn.Module) else factory
    return Model(Torch(make, loss, ignore), "torch", dtype)


@dataclass(frozen=True, eq=False)
class Held:
    """An object that has no useful equality (it holds arrays), known by its identity."""

    value: object


# --- specs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linen:
    """A Flax linen Module."""

    module: linen.Module
    loss: Loss
    ignore: int | None = None

    def build(self, shape: Shape | None, outputs: int | None) -> Foreign:
        jax = jax_library()
        if shape is None:
            raise Mismatch("a Flax module does not know its data yet: call model.bind(shape, outputs)")

        def start(x: Tensor, seed: int) -> Tensor:
            return self.module.init(jax.random.key(seed), x, **self._training(False))

        inputs = [np.zeros((1, *shape), t) for t in _TYPES]
        x, found = _try(lambda x: jax.eval_shape(lambda: start(x, 0)), inputs, shape)
        others = sorted(set(found) - {"params"})
        if others:
            raise Mismatch(_stateful(f"collection '{others[0]}'"))
        made = _foreign(
            found.get("params", {}),
            lambda seed: start(x, seed).get("params", {}),
            lambda p, x: self.module.apply({"params": p}, x, **self._training(False)),
            self, shape, outputs,
        )  # fmt: skip
        return replace(made, draw=self._draw) if self._training(True) else made

    def _training(self, yes: bool) -> dict[str, bool]:
        """Say to the module, in the word that its call has for it, whether it is trained."""
        words = inspect.signature(type(self.module).__call__).parameters
        return {w: yes != (w == "deterministic") for w in ("train", "training", "deterministic") if w in words}

    def _draw(self, p: Tensor, x: Tensor, key: Tensor) -> Tensor:
        return self.module.apply({"params": p}, x, rngs={"dropout": key}, **self._training(True))


@dataclass(frozen=True)
class Nnx:
    """A function from nnx.Rngs to a Flax nnx Module."""

    make: Callable[[nnx.Rngs], nnx.Module]
    loss: Loss
    ignore: int | None = None

    def build(self, shape: Shape | None, outputs: int | None) -> Foreign:
        jax_library()
        from flax import nnx

        if isinstance(self.make, nnx.Module):
            raise Mismatch(
                "an nnx Module changes in place: give a function that makes it, such as lambda rngs: Net(rngs)"
            )
        first = _made(lambda: nnx.eval_shape(lambda: self.make(nnx.Rngs(0))), nnx.Module, _FLAX)
        graph, found, rest = nnx.split(first, nnx.Param, ...)
        for _, leaf in nnx.to_flat_state(rest):
            raise Mismatch(_stateful(f"state of type {type(leaf).__name__}"))
        return _foreign(
            nnx.to_pure_dict(found),
            lambda seed: nnx.to_pure_dict(nnx.state(self.make(nnx.Rngs(seed)), nnx.Param)),
            lambda p, x: nnx.merge(graph, _nnx_state(found, p))(x),
            self, shape, outputs,
        )  # fmt: skip


def _nnx_state(like: nnx.State, p: Tensor) -> nnx.State:
    from flax import nnx

    state = nnx.clone(like)
    nnx.replace_by_pure_dict(state, p)
    return state


@dataclass(frozen=True)
class Equinox:
    """A function from a JAX key to an Equinox module, or such a module (Held)."""

    make: Held | Callable[[jax.Array], eqx.Module]
    loss: Loss
    ignore: int | None = None

    def build(self, shape: Shape | None, outputs: int | None) -> Foreign:
        jax = jax_library()
        import equinox as eqx

        def made(seed: int) -> eqx.Module:
            return self.make.value if isinstance(self.make, Held) else self.make(jax.random.key(seed))

        first = _made(lambda: made(0), eqx.Module, _EQUINOX)
        leaves = jax.tree.leaves(first, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.StateIndex))
        if any(isinstance(leaf, eqx.nn.StateIndex) for leaf in leaves):
            raise Mismatch(_stateful("an eqx.nn.State"))
        found, rest = eqx.partition(first, eqx.is_inexact_array)
        return _foreign(
            found,
            lambda seed: eqx.filter(made(seed), eqx.is_inexact_array),
            lambda p, x: jax.vmap(eqx.combine(p, rest))(x),
            self, shape, outputs,
        )  # fmt: skip


@dataclass(frozen=True)
class Functions:
    """Pure functions of JAX."""

    start: Callable[[int], Tensor]
    apply: Scores | None
    losses: RowLosses | None
    loss: Loss
    ignore: int | None = None

    def build(self, shape: Shape | None, outputs: int | None) -> Foreign:
        jax_library()
        first = _made(lambda: self.start(0), object, _FUNCTIONS)
        return _foreign(first, self.start, self.apply, self, shape, outputs, self.losses)


@dataclass(frozen=True)
class Torch:
    """A function that makes a torch Module, or such a module (Held)."""

    make: Held | Callable[[], nn.Module]
    loss: Loss
    ignore: int | None = None

    def build(self, shape: Shape | None, outputs: int | None) -> TorchNet:
        net = TorchNet(self.make, self.loss, self.ignore)
        for part in net.module().modules():
            if getattr(part, "running_mean", None) is not None:
                raise Mismatch(_stateful(f"the running statistics of {type(part).__name__}"))
        if shape is not None:
            _probe_torch(net, shape, outputs)
        return net


# --- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Foreign:
    """A network written in JAX elsewhere, on a dictionary of named leaves."""

    schema: Schema
    loss: str
    ignore: int | None
    tree: jax.tree_util.PyTreeDef  # JAX's description of how the leaves nest
    start: Callable[[int], Tensor]
    score: Scores | None
    own: RowLosses | None = None
    draw: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # scores in training, with a key to draw from

    @property
    def heavy(self) -> bool:
        """Whether there are convolutions: what has a kernel of four axes or more."""
        return any(len(shape) >= 4 for _, shape in self.schema.leaves)

    def init(self, seed: int) -> Array:
        leaves = jax_library().tree.leaves(self.start(seed))
        return np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in leaves])

    def apply(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        if self.score is None:
            raise Mismatch("this model has losses but no scores: give functions() an apply(parameters, x) as well")
        return self.score(self._nested(parameters), x)

    def draws(self, parameters: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        assert self.draw is not None
        return self.draw(self._nested(parameters), x, key)

    def losses(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        assert self.own is not None
        return self.own(self._nested(parameters), x, y)

    def _nested(self, parameters: dict[str, Tensor]) -> Tensor:
        return jax_library().tree.unflatten(self.tree, [parameters[name] for name, _ in self.schema.leaves])


@dataclass(frozen=True, eq=False)
class TorchNet:
    """A network written in PyTorch elsewhere; its trainable parameters in the order of named_parameters."""

    make: Held | Callable[[], nn.Module]
    loss: str
    ignore: int | None

    @cached_property
    def _module(self) -> nn.Module:
        return self._made(0)

    def _made(self, seed: int) -> nn.Module:
        from atoll.models.torch_engine import _seeded, _torch

        with _seeded(seed):
            return _made(
                lambda: deepcopy(self.make.value) if isinstance(self.make, Held) else self.make(),
                _torch().nn.Module, _TORCH,
            )  # fmt: skip

    def module(self) -> nn.Module:
        """Return the module; callers replace its parameters at every call and never change it."""
        return self._module

    @cached_property
    def schema(self) -> Schema:
        return Schema(tuple((name, tuple(p.shape)) for name, p in _trained(self._module)))

    @property
    def heavy(self) -> bool:
        return any(len(shape) >= 4 for _, shape in self.schema.leaves)

    def init(self, seed: int) -> Array:
        leaves = [p.detach().numpy().ravel() for _, p in _trained(self._made(seed))]
        return np.concatenate(leaves).astype(np.float32)

    def apply(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        raise Mismatch("a torch module runs in PyTorch only: leave the model's backend as 'torch'")


def _trained(made: nn.Module) -> list[tuple[str, nn.Parameter]]:
    from torch.nn.parameter import is_lazy

    found = [(name, p) for name, p in made.named_parameters() if p.requires_grad]
    if any(is_lazy(p) for _, p in found):
        raise Mismatch(
            "the torch module has a lazy layer, whose size is not known before it sees rows: use one that names its "
            "size, such as torch.nn.Linear(64, 10) for LazyLinear(10)"
        )
    if not found:
        raise Mismatch("the torch module has no parameter that requires a gradient: there is nothing to train")
    return found


# --- what they share --------------------------------------------------------------------------------------------------

# What each function takes, for sentences.
_FLAX = "a linen Module, or a function that makes an nnx Module, such as lambda rngs: nnx.Linear(64, 10, rngs=rngs)"
_EQUINOX = "an Equinox module, or a function that makes one, such as lambda key: equinox.nn.Linear(64, 10, key=key)"
_FUNCTIONS = "a function init(seed) that returns the first parameters"
_TORCH = "a torch Module, or a function without arguments that makes one, such as lambda: torch.nn.Linear(64, 10)"
_TYPES = (np.float32, np.int32)  # rows are numbers or, if the module does not take those, symbols


def _stateful(what: str) -> str:
    return (
        f"the module keeps {what} beside its parameters, which parties cannot average as parameters: "
        "use GroupNorm or LayerNorm instead of batch norm, and leave out layers that draw or remember"
    )


def _check_given(module: object, needed: str, loss: object, ignore: object) -> None:
    """Refuse what can be no module, and settings that no loss has."""
    if not callable(module):
        raise Mismatch(f"a {type(module).__name__} is no module: give {needed}")
    if loss not in get_args(Loss):
        raise Mismatch(f"loss = {loss!r}: use {' or '.join(map(repr, get_args(Loss)))}")
    if ignore is not None:
        number("ignore", ignore, least=None)


def _made(make: Callable[[], object], kind: type[T], needed: str) -> T:
    """Return what a function of the user's makes; refuse one that fails, or makes something else."""
    try:
        found = make()
    except Exception as error:  # code of others raises what it likes
        raise Mismatch(f"the module cannot be made ({_said(error)}): give {needed}") from error
    if not isinstance(found, kind):
        raise Mismatch(f"what should make a module returns a {type(found).__name__}: give {needed}")
    return found


def _said(error: Exception) -> str:
    """Return the first line of an error of others, with its name."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")


def _try(run: Callable[[T], U], inputs: Sequence[T], shape: Shape) -> tuple[T, U]:
    """Return the first input that a module takes, and what it made of it; refuse a module that takes none."""
    failed: list[Exception] = []
    for x in inputs:
        try:
            return x, run(x)
        except Exception as error:  # code of others raises what it likes
            failed.append(error)
    first, why = failed[0], [_said(error) for error in failed]
    if "dropout" in why[0]:
        raise Mismatch(
            "the module draws, and does not say whether it is trained: give its call an argument `train`, as in "
            "nn.Dropout(0.5, deterministic=not train)(x)"
        ) from first
    told = why[0] if why[0] == why[-1] else f"{why[0]}; as whole numbers, {why[-1]}"
    raise Mismatch(
        f"the module fails on the data's rows, which have shape {shape} ({told}): change it so that it takes zeros of "
        f"shape {(2, *shape)}"
    ) from first


def _foreign(
    found: Tensor,
    start: Callable[[int], Tensor],
    score: Scores | None,
    spec: Linen | Nnx | Equinox | Functions,
    shape: Shape | None,
    outputs: int | None,
    own: RowLosses | None = None,
) -> Foreign:
    """Name the leaves of a tree by their path and check what the network gives."""
    jax = jax_library()
    paths, tree = jax.tree_util.tree_flatten_with_path(found)
    names = [jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".") or "w" for path, _ in paths]
    if len(set(names)) < len(names):
        names = [f"{i}.{name}" for i, name in enumerate(names)]
    schema = Schema(tuple((name, tuple(np.shape(leaf))) for name, (_, leaf) in zip(names, paths, strict=True)))
    if not schema.size:
        raise Mismatch("the module has no parameters: there is nothing to train")
    net = Foreign(schema, "own" if own is not None else spec.loss, spec.ignore, tree, start, score, own)
    if own is None and shape is not None:
        leaves = {name: jax.ShapeDtypeStruct(size, np.float32) for name, size in schema.leaves}
        inputs = [jax.ShapeDtypeStruct((2, *shape), t) for t in _TYPES]
        taken, scores = _try(lambda x: jax.eval_shape(net.apply, leaves, x), inputs, shape)
        _check(scores, jax.ShapeDtypeStruct, spec.loss, outputs)
        _check_alone(jax.jit(lambda x: net.apply(_some_parameters(schema), x)), (2, *shape), taken.dtype)
    if own is not None and shape is not None:
        _check_losses(net, shape, outputs)
    return net


def _some_parameters(schema: Schema) -> dict[str, Array]:
    """Return parameters that are not zero, so that nothing of a row is lost on its way."""
    draw = np.random.default_rng(0)
    return {name: draw.normal(0, 0.5, size).astype(np.float32) for name, size in schema.leaves}


def _check_alone(scores: Callable[[Array], Tensor], shape: Shape, dtype: np.dtype) -> None:
    """Refuse a network in which a row depends on those beside it, as batch norm and means over a batch do."""
    rows = np.random.default_rng(0).normal(size=shape)
    one = (rows > 0).astype(dtype) if dtype.kind == "i" else rows.astype(dtype)
    other = one.copy()
    other[1] = 0
    if not np.allclose(np.asarray(scores(one))[0], np.asarray(scores(other))[0], 1e-3, 1e-5, equal_nan=True):
        raise Mismatch(
            "what the model gives for a row depends on the rows beside it in a batch, so padding and the size of the "
            "batch would change it: use GroupNorm or LayerNorm instead of statistics of a batch"
        )


def _check_losses(net: Foreign, shape: Shape, outputs: int | None) -> None:
    """Refuse losses that are not one for each row, by itself; of labels that have an odd shape nothing is known."""
    jax, parameters = jax_library(), _some_parameters(net.schema)
    for y in (np.zeros(2, np.int32), np.zeros(2, np.float32), np.zeros((2, outputs or 1), np.float32)):

        def losses(x: Array, y: Array = y) -> Tensor:
            return net.losses(parameters, x, y)

        found = _shape_of(losses, jax.ShapeDtypeStruct((2, *shape), np.float32))
        if found is not None and found != (2,):
            raise Mismatch(f"losses() gives an array of shape {found} for two rows: give one loss for each row")
        if found is not None:
            return _check_alone(jax.jit(losses), (2, *shape), np.dtype(np.float32))
    return None


def _shape_of(run: Callable[..., Tensor], x: Tensor) -> Shape | None:
    try:
        return tuple(jax_library().eval_shape(run, x).shape)
    except Exception:  # code of others, which takes other labels or rows
        return None


def _check(scores: Tensor, kind: type[Tensor], loss: str, outputs: int | None) -> None:
    """Refuse a network that gives no scores, or other scores than the data asks for."""
    if not isinstance(scores, kind):
        raise Mismatch(f"the module returns a {type(scores).__name__}: return only the scores, as one array")
    shape, needed = tuple(scores.shape), 1 if loss == "logistic" else outputs
    if len(shape) < 2 or shape[0] != 2 or needed not in (None, shape[-1]):
        who = "the loss 'logistic'" if loss == "logistic" else "this data"
        raise Mismatch(
            f"the module makes scores of shape {shape} of two rows, and {who} needs (2, …, {needed}): "
            f"give its last layer {needed} unit(s)"
        )


def _probe_torch(net: TorchNet, shape: Shape, outputs: int | None) -> None:
    """Run two rows through a copy as training would: the scores must fit the data, and no buffer may change."""
    from atoll.models.torch_engine import _seeded, _torch

    torch = _torch()
    copy = deepcopy(net.module()).train()
    before = {name: buffer.clone() for name, buffer in copy.named_buffers()}
    inputs = [torch.zeros(2, *shape), torch.zeros(2, *shape, dtype=torch.int64)]
    with torch.no_grad(), _seeded(0):
        taken, scores = _try(copy, inputs, shape)
    for name, buffer in copy.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise Mismatch(_stateful(f"the changing buffer '{name}'"))
    _check(scores, torch.Tensor, net.loss, outputs)

    def run(rows: Array) -> Array:
        with torch.no_grad(), _seeded(0):
            return np.asarray(copy(torch.as_tensor(rows)))

    _check_alone(run, (2, *shape), np.dtype(np.float32 if taken.is_floating_point() else np.int64))
