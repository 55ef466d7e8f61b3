"""Networks from elsewhere are models like our own."""

from __future__ import annotations

import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from atoll.core.party import Group
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.models import ExampleDP, Fit, Model, cnn, linear, mlp, softmax
from atoll.models.adapters import equinox, flax, functions, module

SHAPE, OUTPUTS = (6,), 3


def group(shape: tuple[int, ...] = SHAPE, outputs: int = OUTPUTS, kind: str = "classes") -> Group:
    rng = np.random.default_rng(0)
    sizes = (7, 12, 3)
    n = sum(sizes)
    x = rng.normal(size=(n, *shape)).astype(np.float32)
    y: Any = rng.integers(0, outputs, n).astype(np.int32)
    if kind == "text":
        x = rng.integers(0, outputs, (n, *shape)).astype(np.uint8)
        y = np.roll(x, -1, 1).astype(np.int32)
    return Group(np.arange(3), Silos(x, y, np.array([0, 7, 19, 22])), np.arange(3), World(0), 0)


def own() -> tuple[Model, np.ndarray]:
    model = mlp((5, 4)).bind(SHAPE, OUTPUTS)
    return model, model.init(0) + 0.1 * np.random.default_rng(1).normal(size=model.size).astype(np.float32)


def arranged(w: np.ndarray, model: Model, names: list[str], turned: bool = False) -> np.ndarray:
    """Give our mlp's vector in the order of another model's leaves: w and b of every layer, by name."""
    ours, _ = own()
    leaves = {name: w[a:b].reshape(shape) for name, a, b, shape in ours.schema.slots()}
    parts = [leaves[name].T if turned else leaves[name] for name in names]
    assert [part.shape for part in parts] == [shape for _, shape in model.schema.leaves]
    return np.concatenate([part.ravel() for part in parts])


W1, B1, W2, B2, W3, B3 = (f"{i}.dense.{name}" for i in (1, 3, 5) for name in "wb")


def equals_own(model: Model, order: list[str], turned: bool = False) -> None:
    """Train both from the same weights."""
    ours, w = own()
    there = arranged(w, model, order, turned)
    g = group()
    a, b = ours.fit(w, g, Fit(2, 5), 0.1), model.fit(there, g, Fit(2, 5), 0.1)
    for k in range(len(g)):
        np.testing.assert_allclose(arranged(a[k], model, order, turned), b[k], atol=1e-4)
    np.testing.assert_allclose(ours.evaluate(w, g)["loss"], model.evaluate(there, g)["loss"], atol=1e-4)
    np.testing.assert_array_equal(ours.evaluate(w, g)["correct"], model.evaluate(there, g)["correct"])
    first = model.init(3)
    assert first.dtype == np.float32
    assert first.shape == (model.size,)
    assert (first == model.init(3)).all()


class Linen(linen.Module):
    hidden: tuple[int, ...] = (5, 4)

    @linen.compact
    def __call__(self, x: Any) -> Any:
        for units in self.hidden:
            x = linen.relu(linen.Dense(units)(x))
        return linen.Dense(OUTPUTS)(x)


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.a, self.b, self.c = nnx.Linear(6, 5, rngs=rngs), nnx.Linear(5, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.c(nnx.relu(self.b(nnx.relu(self.a(x)))))


def eqx_mlp(key: Any) -> eqx.Module:
    a, b, c = jax.random.split(key, 3)
    layers = [eqx.nn.Linear(6, 5, key=a), jax.nn.relu, eqx.nn.Linear(5, 4, key=b), jax.nn.relu]
    return eqx.nn.Sequential(
        [eqx.nn.Lambda(layer) if layer is jax.nn.relu else layer for layer in layers] + [eqx.nn.Linear(4, 3, key=c)]
    )


def torch_mlp() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def start(seed: int) -> dict[str, Any]:
    return {name: np.random.default_rng(seed).normal(size=shape) for name, shape in own()[0].schema.leaves}


def run(p: dict[str, Any], x: Any) -> Any:
    h = jax.nn.relu(x @ p[W1] + p[B1])
    return jax.nn.relu(h @ p[W2] + p[B2]) @ p[W3] + p[B3]


def nll(p: dict[str, Any], x: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(run(p, x)), y[:, None], 1)[:, 0]


def test_linen() -> None:
    model = flax(Linen()).bind(SHAPE, OUTPUTS)
    assert [name for name, _ in model.schema.leaves][:2] == ["Dense_0.bias", "Dense_0.kernel"]
    equals_own(model, [B1, W1, B2, W2, B3, W3])
    tree = Linen().init(jax.random.key(3), jnp.zeros((1, 6)))["params"]
    np.testing.assert_array_equal(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]), model.init(3))


def test_nnx() -> None:
    equals_own(flax(Nnx).bind(SHAPE, OUTPUTS), [B1, W1, B2, W2, B3, W3])


def test_equinox_and_its_start() -> None:
    model = equinox(eqx_mlp).bind(SHAPE, OUTPUTS)
    equals_own(model, [W1, B1, W2, B2, W3, B3], turned=True)
    made = equinox(eqx_mlp(jax.random.key(7))).bind(SHAPE, OUTPUTS)
    assert (made.init(0) == model.init(7)).all()
    assert (made.init(0) != model.init(0)).any()


def test_functions() -> None:
    scored, order = functions(start, run).bind(SHAPE, OUTPUTS), [B1, W1, B2, W2, B3, W3]
    equals_own(scored, order)
    model, g = functions(start, losses=nll).bind(SHAPE, OUTPUTS), group()
    w = arranged(own()[1], model, order)
    np.testing.assert_allclose(model.fit(w, g, Fit(2, 5), 0.1), scored.fit(w, g, Fit(2, 5), 0.1), atol=1e-6)
    np.testing.assert_allclose(model.evaluate(w, g)["loss"], scored.evaluate(w, g)["loss"], rtol=1e-5)
    with pytest.raises(ValueError, match="losses but no scores"):
        model.scores(w, group().samples.x)
    with pytest.raises(ValueError, match=r"give apply\(parameters, x\) or losses"):
        functions(start)


def test_a_flat_vector_is_a_model_too() -> None:
    def one(seed: int) -> Any:
        return np.zeros(6)

    model = functions(one, lambda w, x: (x @ w)[:, None], loss="squared", dtype="float64").bind(SHAPE, 1)
    assert model.schema.leaves == (("w", (6,)),)
    ours = linear(dtype="float64").bind(SHAPE, 1)
    g = group()
    np.testing.assert_allclose(model.grad(np.zeros(6), g), ours.grad(np.zeros(7), g)[:, :6], atol=1e-12)


def test_torch_module() -> None:
    model = module(torch_mlp).bind(SHAPE, OUTPUTS)
    assert model.backend == "torch"
    equals_own(model, [W1, B1, W2, B2, W3, B3], turned=True)
    before = torch.get_rng_state()
    model.init(5)
    model.fit(model.init(5), group(), Fit(1, 5), 0.1)
    assert (torch.get_rng_state() == before).all()


def test_a_torch_instance_starts_as_it_is_and_stays() -> None:
    made = torch_mlp()
    w = torch.cat([p.detach().flatten() for p in made.parameters()]).numpy().copy()
    model = module(made).bind(SHAPE, OUTPUTS)
    assert (model.init(0) == w).all()
    assert abs(model.fit(w, group(), Fit(1, 5), 0.1) - w).max() > 0
    assert (torch.cat([p.detach().flatten() for p in made.parameters()]).numpy() == w).all()


def test_frozen_and_unused_parameters_and_dropout() -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.back, self.out, self.unused = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3), torch.nn.Linear(2, 2)
            self.back.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.out(torch.nn.functional.dropout(self.back(x), 0.5, self.training))

    model = module(Odd).bind(SHAPE, OUTPUTS)
    assert model.size == 4 * 3 + 3 + 6
    w, g = model.init(0), group()
    first = model.fit(w, g, Fit(1, 5), 0.1)
    assert (first == model.fit(w, g, Fit(1, 5), 0.1)).all()  # dropout has an address
    assert (first[1] == model.fit(w, g.only(1), Fit(1, 5), 0.1)[0]).all()
    assert (first[:, 15:] == w[15:]).all()
    assert (model.scores(w, g.samples.x) == model.scores(w, g.samples.x)).all()


class Dropped(linen.Module):
    """Half of the features are left out in training; a `wide` one is too large to be trained with others in a call."""

    wide: int = 4

    @linen.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = linen.Dropout(0.5, deterministic=not train)(linen.Dense(self.wide)(x))
        return linen.Dense(OUTPUTS)(x)


class Deterministic(linen.Module):
    @linen.compact
    def __call__(self, x: Any, deterministic: bool) -> Any:
        return linen.Dense(OUTPUTS)(linen.Dropout(0.5)(x, deterministic=deterministic))


class Careless(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(OUTPUTS)(linen.Dropout(0.5, deterministic=False)(x))


@pytest.mark.parametrize("module", [Dropped(), Dropped(2000), Deterministic()], ids=["many", "one", "deterministic"])
def test_dropout_of_flax_gets_its_key(module: Any) -> None:
    """The address is the round and the party: the same in a group and alone, another in the next round."""
    model, g = flax(module).bind(SHAPE, OUTPUTS), group()
    w = model.init(0)
    first = model.fit(w, g, Fit(2, 5), 0.1)
    assert (first == model.fit(w, g, Fit(2, 5), 0.1)).all()
    assert first[1] == pytest.approx(model.fit(w, g.only(1), Fit(2, 5), 0.1)[0], abs=1e-6)
    later = Group(g.me, g.samples, g.at, g.world, 1)
    gradients = [model.grad(w, some) for some in (g, g, later)]
    assert (gradients[0] == gradients[1]).all()
    assert not np.allclose(gradients[0], gradients[2], atol=1e-3), "the full batch is the same, the mask is not"
    assert (model.scores(w, g.samples.x) == model.scores(w, g.samples.x)).all()
    plain = flax(Deterministic()).bind(SHAPE, OUTPUTS)
    if isinstance(module, Deterministic):
        by_hand = g.samples.x @ w[3:].reshape(6, 3) + w[:3]
        assert np.allclose(plain.scores(w, g.samples.x), by_hand, atol=1e-5), "nothing is dropped in evaluation"


def test_dropout_that_never_ends_is_refused() -> None:
    with pytest.raises(ValueError, match=r"draws, and does not say whether it is trained: give its call an argument"):
        _ = flax(Careless()).bind(SHAPE, OUTPUTS).size
    model = flax(Dropped()).bind(SHAPE, OUTPUTS)
    with pytest.raises(ValueError, match="example_dp trains without dropout"):
        model.fit(model.init(0), group(), Fit(1, 5, example_dp=ExampleDP(1.0, 1.0)), 0.1)


def test_convolutions_are_heavy_and_symbols_are_integers() -> None:
    class Images(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.Conv(2, (3, 3))(x.reshape(len(x), 4, 4, 1))
            return linen.Dense(OUTPUTS)(x.reshape(len(x), -1))

    class Text(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(5)(linen.Embed(5, 4)(x))

    class TorchText(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.e, self.o = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5)

        def forward(self, x: Any) -> Any:
            return self.o(self.e(x))

    images = flax(Images()).bind((16,), OUTPUTS)
    assert images.net.heavy
    assert not flax(Linen()).bind(SHAPE, OUTPUTS).net.heavy
    assert module(lambda: torch.nn.Conv2d(1, 1, 3)).net.heavy
    assert images.fit(images.init(0), group((16,)), Fit(1, 5), 0.1).shape == (3, images.size)
    for unbound in (flax(Text(), ignore=4), module(TorchText, ignore=4)):
        model = unbound.bind((7,), 5)
        assert model.fit(model.init(0), group((7,), 5, "text"), Fit(1, 5), 0.1).shape == (3, model.size)


class Normed(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(OUTPUTS)(linen.BatchNorm(use_running_average=False)(x))


class NormedNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm, self.out = nnx.BatchNorm(6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.norm(x))


class Counts(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return self.out(x)


@pytest.mark.parametrize(
    "model",
    [
        flax(Normed()),
        flax(NormedNnx),
        equinox(lambda key: eqx.nn.Sequential([eqx.nn.BatchNorm(6, "batch", mode="batch"), eqx_mlp(key)])),
        module(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))),
        module(Counts),
    ],
    ids=["linen", "nnx", "equinox", "torch", "buffer"],
)
def test_batch_norm_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match=r"beside its parameters.*use GroupNorm or LayerNorm"):
        _ = model.bind(SHAPE, OUTPUTS).size


class Centred(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(OUTPUTS)(x - x.mean(0))


def centred(parameters: Any, x: Any) -> Any:
    return run(parameters, x / (1 + jnp.abs(x).sum(0)))


def batch_losses(parameters: Any, x: Any, y: Any) -> Any:
    scores = run(parameters, x - x.mean(0))
    return -jax.nn.log_softmax(scores)[jnp.arange(len(y)), y.astype(int)]


@pytest.mark.parametrize(
    "model",
    [
        flax(Centred()),
        functions(start, centred),
        functions(start, losses=batch_losses),
        module(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(6, track_running_stats=False), torch.nn.Linear(6, 3))),
    ],
    ids=["linen", "functions", "losses", "torch"],
)
def test_a_model_of_the_whole_batch_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match=r"depends on the rows beside it in a batch.*use GroupNorm or LayerNorm"):
        _ = model.bind(SHAPE, OUTPUTS).size


def test_losses_are_one_for_each_row() -> None:
    with pytest.raises(ValueError, match=r"shape \(\) for two rows: give one loss for each row"):
        _ = functions(start, losses=lambda p, x, y: batch_losses(p, x, y).mean()).bind(SHAPE, OUTPUTS).size


def test_group_norm_is_fine() -> None:
    model = module(lambda: torch.nn.Sequential(torch.nn.GroupNorm(2, 6), torch.nn.Linear(6, 3))).bind(SHAPE, OUTPUTS)
    assert model.fit(model.init(0), group(), Fit(1, 5), 0.1).shape == (3, model.size)


@pytest.mark.parametrize(
    "model", [flax(Linen()), flax(Nnx), equinox(eqx_mlp), functions(start, run), module(torch_mlp)]
)
def test_what_does_not_fit_the_data_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match=r"scores of shape \(2, 3\).*give its last layer 4 unit"):
        _ = model.bind(SHAPE, 4).size


def test_a_network_stays_with_its_framework() -> None:
    from dataclasses import replace

    w = np.zeros(own()[0].size, np.float32)
    with pytest.raises(ValueError, match="written in JAX"):
        replace(flax(Nnx), backend="torch").bind(SHAPE, OUTPUTS).scores(w, group().samples.x)
    with pytest.raises(ValueError, match="runs in PyTorch only"):
        replace(module(torch_mlp), backend="jax").bind(SHAPE, OUTPUTS).scores(w, group().samples.x)


@pytest.mark.parametrize(
    "model", [flax(Linen()), flax(Nnx), equinox(eqx_mlp), functions(start, run), module(torch_mlp)]
)
def test_specs_travel_to_workers_and_stay_equal(model: Model) -> None:
    there = pickle.loads(pickle.dumps(model))
    assert there == model
    assert hash(there) == hash(model)


def test_our_own_models_have_both_backends() -> None:
    for model in (softmax, mlp, cnn):
        assert model(backend="torch").backend == "torch"
