"""PyTorch and JAX are one backend in two frameworks: same vectors, same batches, same numbers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from atoll.core.party import Group
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.models import Fit, Model, Optimiser, char_lstm, cnn, lenet, linear, logistic, mlp, optimiser, softmax
from atoll.models.layers import Conv, Dense, Flatten, Image, Lstm, Pool, Relu
from atoll.models.net import Net
from atoll.models.torch_engine import OPTIMISERS, _blocks, _descend, _feed, _layout, _optimiser, _sgd_steps, batches
from atoll.models.torch_layers import forward, stages

SIZES = (7, 23, 1, 12)  # unequal parties, ragged batches


def silos(shape: tuple[int, ...], outputs: int, kind: str = "classes", sizes: tuple[int, ...] = SIZES) -> Silos:
    rng = np.random.default_rng(3)
    n = sum(sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = rng.normal(size=(n, *shape)).astype(np.float32)
    if kind == "text":
        x = rng.integers(0, outputs, (n, *shape)).astype(np.uint16)
        return Silos(x, np.roll(x, -1, 1).astype(np.int32), offsets)
    if kind == "real":
        return Silos(x, rng.normal(size=n).astype(np.float32), offsets)
    return Silos(x, rng.integers(0, outputs, n).astype(np.int32), offsets)


def group(samples: Silos, t: int = 0, me: list[int] | None = None) -> Group:
    chosen = np.arange(len(samples)) if me is None else np.array(me)
    return Group(chosen, samples, chosen, World(0), t)


def both(model: Model, shape: tuple[int, ...], outputs: int) -> tuple[Model, Model]:
    bound = model.bind(shape, outputs)
    return bound, replace(bound, backend="torch")


def near(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-4) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert np.isfinite(a).all()
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def started(model: Model) -> np.ndarray:
    """Start from somewhere without symmetry, convex models too."""
    noise = np.random.default_rng(1).normal(size=model.size).astype(model.dtype)
    return model.init(0) + np.asarray(0.05 * noise, model.dtype)


CASES = {
    "mlp": (mlp((16, 12)), (20,), 5, "classes", 0.1),
    "squared mlp": (mlp((8,), "squared"), (6,), 1, "real", 0.05),
    "softmax": (softmax(), (4, 5), 5, "classes", 0.1),
    "linear": (linear(), (6,), 1, "real", 0.05),
    "logistic": (logistic(), (6,), 2, "classes", 0.3),
    "lenet": (lenet(), (28 * 28,), 10, "classes", 0.02),
    "cnn": (cnn((3, 4), 10), (81,), 4, "classes", 0.05),
    "lstm": (char_lstm(8, 4, peephole=False), (6,), 9, "text", 0.5),
    "peephole": (char_lstm(8, 4), (6,), 9, "text", 0.5),
}


@pytest.mark.parametrize("case", CASES)
class TestTwins:
    def test_fit(self, case: str) -> None:
        model, shape, outputs, kind, lr = CASES[case]
        a, b = both(model, shape, outputs)
        g = group(silos(shape, outputs, kind))
        w = started(a)
        how = Fit(2, 5)
        found = b.fit(w, g, how, lr)
        near(a.fit(w, g, how, lr), found)
        assert abs(found - w).max() > 1e-4

    def test_evaluate(self, case: str) -> None:
        model, shape, outputs, kind, _ = CASES[case]
        a, b = both(model, shape, outputs)
        w, g = started(a), group(silos(shape, outputs, kind))
        ours, theirs = a.evaluate(w, g), b.evaluate(w, g)
        assert ours.keys() == theirs.keys()
        for name in ours:
            near(ours[name], theirs[name], 1e-3)

    def test_one_step_is_the_gradient_tilt_and_pull(self, case: str) -> None:
        model, shape, outputs, kind, _ = CASES[case]
        model = replace(model, backend="torch", dtype="float64").bind(shape, outputs)
        w, g = started(model), group(silos(shape, outputs, kind))
        tilt = np.random.default_rng(5).normal(size=(len(SIZES), model.size))
        slope = model.grad(w, g)
        near(model.fit(w, g, Fit(), 0.1), w - 0.1 * slope, 1e-12)
        near(model.fit(w, g, Fit(prox=0.5), 0.1, tilt), w - 0.1 * (slope + tilt), 1e-12)
        near(model.fit(w, g, Fit(), 0.1, tilt[1]), w - 0.1 * (slope + tilt[1]), 1e-12)
        two = model.fit(w, g, Fit(2, prox=0.5), 0.1, tilt)
        for k in range(len(SIZES)):
            v = w - 0.1 * (slope[k] + tilt[k])
            v = v - 0.1 * (model.grad(v, g.only(k))[0] + tilt[k] + 0.5 * (v - w))
            near(two[k], v, 1e-12)


@pytest.mark.parametrize("case", ["mlp", "softmax"])
def test_tilt_pull_and_memory(case: str) -> None:
    model, shape, outputs, kind, lr = CASES[case]
    a, b = both(model, shape, outputs)
    w, samples = started(a), silos(shape, outputs, kind)
    g = group(samples)
    tilt = np.random.default_rng(5).normal(size=(len(SIZES), a.size)).astype(np.float32) * 0.1
    how = Fit(1, 5, optimiser("sgd", momentum=0.9), prox=0.3)
    near(a.fit(w, g, how, lr / 4, tilt), b.fit(w, g, how, lr / 4, tilt))
    near(a.grad(w, g), b.grad(w, g), 1e-5)
    near(a.scores(w, samples.x), b.scores(w, samples.x))


def test_five_rounds_of_averaging() -> None:
    sizes = (60, 35, 41, 8)
    samples = silos((784,), 10, sizes=sizes)
    a, b = both(mlp(), (784,), 10)
    w = {"jax": a.init(0), "torch": a.init(0)}
    share = np.array(sizes) / sum(sizes)
    for t in range(5):
        for model in (a, b):
            w[model.backend] = (share @ model.fit(w[model.backend], group(samples, t), Fit(1, 10), 0.05)).astype("f")
    near(w["jax"], w["torch"])
    assert abs(w["jax"] - a.init(0)).max() > 0.01


OPTIONS = [
    optimiser("sgd"),
    optimiser("sgd", momentum=0.9),
    optimiser("sgd", momentum=0.8, nesterov=True),
    optimiser("adam"),
    optimiser("adam", b1=0.8, b2=0.99, eps=1e-4, eps_root=1e-6),
    optimiser("adam", nesterov=True),
    optimiser("adamw", weight_decay=0.1),
    optimiser("adagrad"),
    optimiser("adagrad", initial_accumulator_value=0.0, eps=1e-3),
    optimiser("rmsprop", initial_scale=0.1),
    optimiser("rmsprop", initial_scale=1.0, centered=True, momentum=0.5, nesterov=True),
    optimiser("rmsprop", eps_in_sqrt=False, eps=1e-3, bias_correction=True),
]


@pytest.mark.parametrize("which", OPTIONS, ids=lambda o: f"{o.name}{dict(o.options)}")
def test_optimisers_are_those_of_optax(which: Optimiser) -> None:
    rng = np.random.default_rng(0)
    start, slopes = rng.normal(size=8), rng.normal(size=(6, 8))
    v = torch.tensor(start)
    fill, update = _optimiser(which)
    memory = [torch.full_like(v, value) for value in fill]
    with jax.enable_x64(True):
        optax = which.make()(0.02)

        @jax.jit
        def run(w: Any) -> Any:
            state, out = optax.init(w), []
            for g in slopes:
                change, state = optax.update(jax.numpy.asarray(g), state, w)
                w = w + change
                out.append(w)
            return jax.numpy.stack(out)

        expected = np.asarray(run(start))
    for t, g in enumerate(slopes, 1):
        update(v, torch.tensor(g), memory, t, 0.02)
        np.testing.assert_allclose(v.numpy(), expected[t - 1], atol=1e-9)


@pytest.mark.parametrize("model", [mlp((6,)), softmax()], ids=["one", "many"])
def test_adam_in_a_fit(model: Model) -> None:
    a, b = both(model, (5,), 3)
    w, g = started(a), group(silos((5,), 3))
    how = Fit(3, 5, optimiser("adam"))
    near(a.fit(w, g, how, 0.02), b.fit(w, g, how, 0.02))


@pytest.mark.parametrize(
    ("which", "says"),
    [
        (optimiser("lion"), "not in the torch backend, which has sgd, adam, adamw, adagrad, rmsprop.*backend='jax'"),
        (optimiser("adam", mass=0.9), "no option 'mass' in torch: it takes b1, b2"),
    ],
)
def test_unknown_optimisers_are_refused(which: object, says: str) -> None:
    _, b = both(mlp((6,)), (5,), 3)
    with pytest.raises(ValueError, match=says):
        b.fit(b.init(0), group(silos((5,), 3)), Fit(1, 5, which), 0.1)  # type: ignore[arg-type]


NETS = {
    "2nn": Net((Flatten(), Dense(9), Relu(), Dense(7), Relu(), Dense(4)), (9, 9)),
    "cnn": Net((Image(), Conv(3), Pool(), Relu(), Conv(4, 3), Pool(), Relu(), Flatten(), Dense(4)), (81,)),
    "relu first": Net((Relu(), Conv(3, 3, "valid"), Relu(), Pool(), Flatten(), Relu(), Dense(4)), (9, 9, 1)),
    "channels": Net((Image(3), Conv(4, 3), Relu(), Flatten(), Dense(4)), (75,)),
}


class Fixed:
    """A spec that is a network already."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def build(self, shape: object, outputs: object) -> Net:
        return self.net


@pytest.mark.parametrize("name", NETS)
def test_the_backward_pass_by_hand_is_autograds(name: str) -> None:
    net = NETS[name]
    model = Model(Fixed(net), "torch", "float64", net.shape, 4)
    samples = silos(net.shape, 4)
    g = group(samples, me=[1])
    plan = batches(g, 2, 5)
    layout = _layout(model)
    x = samples.x.copy()
    v, u = layout.load(started(model)), layout.load(started(model))
    _descend(model, v, _blocks(model, g, plan.rows[0], plan.real[0]), 0.05)
    _sgd_steps(model, u, _feed(model, g, plan.rows[0], plan.real[0]), 0.05)
    near(layout.store(v), layout.store(u), 1e-12)
    if name == "channels":
        twin = replace(model, backend="jax")
        near(model.evaluate(started(model), g)["loss"], twin.evaluate(started(model), g)["loss"], 1e-6)
    assert (samples.x == x).all()


def test_even_kernels_pad_as_in_jax() -> None:
    net = Net((Image(), Conv(2, 4), Pool(), Flatten(), Dense(3)), (49,))
    a = Model(Fixed(net), "jax", shape=(49,), outputs=3)
    x = silos((49,), 3).x
    near(a.scores(started(a), x), replace(a, backend="torch").scores(started(a), x))


def test_equal_lstms_in_one_call_are_those_one_by_one() -> None:
    net = Net((Lstm(5), Lstm(4), Lstm(4), Dense(3)), (6, 2))
    model = Model(Fixed(net), "torch", "float64", (6, 2), 3)
    tensors = _layout(model).views(_layout(model).load(started(model)))
    leaves = {name: leaf for (name, _), leaf in zip(net.schema.leaves, tensors, strict=True)}
    chain, x = stages(net, leaves), torch.randn(4, 6, 2, dtype=torch.float64)
    one_by_one = x
    for stage in chain:
        one_by_one = forward([stage], one_by_one)
    torch.testing.assert_close(forward(chain, x), one_by_one)


HOW = {"jax": (Fit(2, 5),), "torch": (Fit(2, 5), Fit(2, None), Fit(1, 5, optimiser("adam")))}  # JAX compiles each


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        (mlp((6,)), "jax"), (softmax(), "jax"),
        (mlp((6,)), "torch"), (softmax(), "torch"), (cnn((2, 3), 5), "torch"), (char_lstm(4, 3), "torch"),
    ],
    ids=lambda thing: thing if isinstance(thing, str) else type(thing.spec).__name__,
)  # fmt: skip
def test_padding_changes_nothing(model: Model, backend: str) -> None:
    """Parties beside a larger one get steps without samples and rows beyond their own; one has no samples at all."""
    kind = "text" if model.spec == char_lstm(4, 3).spec else "classes"
    model = replace(model, backend=backend).bind((16,), 5)  # type: ignore[arg-type]
    w, samples = started(model), silos((16,), 5, kind, (5, 7, 0, 4, 33))
    for how in HOW[backend]:
        together = model.fit(w, group(samples), how, 0.05)
        near(model.fit(w, group(samples, me=[0, 1, 3]), how, 0.05), together[[0, 1, 3]], 1e-6)
        near(model.fit(w, group(samples, me=[1]), how, 0.05), together[[1]], 1e-6)
        assert (together[2] == w).all()
    grads = model.grad(w, group(samples))
    assert not grads[2].any()
    if backend == "torch":
        near(grads[[1, 3]], model.grad(w, group(samples, me=[1, 3])), 1e-6)


def test_the_same_kernel_gives_the_same_bits_beside_other_parties() -> None:
    model = softmax().bind((16,), 3)
    w = started(model)
    samples = silos((16,), 3, sizes=(5, 5, 4))
    first = model.fit(w, group(samples, me=[0, 1]), Fit(2, 5), 0.05)
    assert (first == model.fit(w, group(samples, me=[0, 1, 2]), Fit(2, 5), 0.05)[:2]).all()


def test_read_only_and_mapped_arrays_are_fine(tmp_path: object) -> None:
    samples = silos((16,), 3)
    np.save(f"{tmp_path}/x.npy", samples.x)
    mapped = np.load(f"{tmp_path}/x.npy", mmap_mode="r")
    labels = samples.y.copy()
    labels.flags.writeable = False
    frozen = Silos(mapped, labels, samples.offsets)
    for unbound in (mlp((6,), backend="torch"), softmax(backend="torch")):
        model = unbound.bind((16,), 3)
        w = started(model)
        w.flags.writeable = False
        assert (model.fit(w, group(frozen), Fit(1, 5), 0.1) == model.fit(w, group(samples), Fit(1, 5), 0.1)).all()
        assert (model.scores(w, mapped) == model.scores(w, samples.x)).all()
        assert (model.evaluate(w, group(frozen))["loss"] == model.evaluate(w, group(samples))["loss"]).all()


def test_more_rows_than_one_slice_and_more_parties_than_one_call() -> None:
    a, b = both(softmax(), (3,), 4)
    samples = silos((3,), 4, sizes=tuple(range(1, 10)) * 30)
    w, g = started(a), group(samples)
    near(a.fit(w, g, Fit(1, 4), 0.1), b.fit(w, g, Fit(1, 4), 0.1))
    near(a.grad(w, g), b.grad(w, g))
    for ours, theirs in zip(
        a.engine.losses(a, w, samples.x, samples.y), b.engine.losses(b, w, samples.x, samples.y), strict=True
    ):
        assert ours.dtype == theirs.dtype == np.float64
        near(ours, theirs, 1e-5)


def test_counts_of_parameters() -> None:
    assert mlp().bind((784,), 10).size == 199_210
    assert cnn().bind((784,), 10).size == 1_663_370
    assert lenet().bind((784,), 10).size == 21_840
    assert char_lstm().bind((80,), 258).size == 866_578


def test_widths() -> None:
    assert softmax(backend="torch").bind((784,), 10).group_size == 125
    assert softmax(backend="torch").bind((2000,), 10).group_size == 1
    assert mlp((4,), backend="torch").bind((5,), 2).group_size == 1
    assert sorted(OPTIMISERS) == ["adagrad", "adam", "adamw", "rmsprop", "sgd"]


def test_torch_is_imported_only_where_it_computes() -> None:
    code = (
        "import sys, atoll.models, atoll.models.adapters, atoll.models.torch_engine\n"
        "model = atoll.models.mlp(backend='torch').bind((4,), 2)\n"
        "model.group_size, model.init(0)\n"
        "assert not {'torch', 'jax', 'flax', 'equinox'} & set(sys.modules)\n"
        "sys.modules['torch'] = None\n"
        "try: model.scores(model.init(0), None)\n"
        "except ImportError as error: assert \"pip install 'atoll[torch]'\" in str(error)\n"
        "else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_rows_give_no_scores_and_no_losses() -> None:
    model = mlp((6,), backend="torch").bind((5,), 3)
    samples = silos((5,), 3, sizes=(0, 4))
    assert model.scores(model.init(0), samples.x[:0]).shape == (0, 3)
    assert model.evaluate(model.init(0), group(samples, me=[0]))["n"].tolist() == [0.0]
