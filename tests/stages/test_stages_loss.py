"""The mean training loss travels inside the channel: it is right, hidden and noised with the vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.wire import Combine, DecodeContext, EncodeContext, Mismatch, Stage, Wire, chain
from atoll.core.world import World
from atoll.data.federated import Federated
from atoll.job.file import from_table, parse, to_table
from atoll.testing import check_stage

CHANNELS: dict[str, tuple[Sequence[Stage], Combine]] = {
    "weighted": ([atoll.Weigh()], atoll.Sum()),
    "unweighted": ([atoll.Average()], atoll.Sum()),
    "clipped": ([atoll.Clip(0.5), atoll.Average("expected")], atoll.Sum()),
    "adaptive": ([atoll.Clip(0.5, quantile=0.5), atoll.Average()], atoll.Sum()),
    "bounded weights": ([atoll.Clip(0.5), atoll.Weigh(max_weight=200)], atoll.Sum()),
    "median": ([atoll.Average()], atoll.Each(atoll.Median())),
    "trimmed": ([atoll.Average()], atoll.Each(atoll.TrimmedMean(2))),
    "top k": ([atoll.Weigh(), atoll.TopK(0.1)], atoll.Sum()),
    "top k first": ([atoll.TopK(0.1), atoll.Average()], atoll.Sum()),
    "low rank": ([atoll.Weigh(), atoll.LowRank(2)], atoll.Sum()),
    "quantised": ([atoll.Weigh(), atoll.Quantise(8)], atoll.Sum()),
    "buffered": ([atoll.Weigh()], atoll.Buffered(10)),
}
RINGS: dict[str, tuple[Sequence[Stage], Combine]] = {
    "secure": ([atoll.Clip(0.5), atoll.Weigh(max_weight=200), atoll.Ring()], atoll.SecureSum()),
    "light": ([atoll.Clip(0.5), atoll.Average(), atoll.Ring()], atoll.LightSum()),
}


@pytest.fixture(scope="module")
def ten() -> Federated:
    return atoll.data.load("digits").split(10, by="power", seed=0)


def job(channel: tuple[Sequence[Stage], Combine], **more: object) -> atoll.Job:
    method = atoll.FedAvg(atoll.models.softmax(), batch=None, lr=0.1)
    return atoll.Job(method, atoll.All(), atoll.Channel(*channel), rounds=2, **more)  # type: ignore[arg-type]


# The untrained softmax says 1/10 of every class: the loss of every sample is the same.
UNTRAINED = float(np.log(10))


@pytest.mark.parametrize("name", [*CHANNELS, *RINGS])
def test_the_first_loss_is_that_of_the_untrained_model(name: str, ten: Federated) -> None:
    run = atoll.simulate(job({**CHANNELS, **RINGS}[name]), ten, workers=0)
    close = 2e-3 if name in RINGS else 5e-6  # a ring rounds; a bounded weight is 8 units in the last place below 1
    assert run.curve("train_loss")[1][0] == pytest.approx(UNTRAINED, abs=close)
    assert run.curve("train_loss")[1][1] < run.curve("train_loss")[1][0]


@pytest.mark.parametrize("name", CHANNELS)
def test_telling_the_loss_changes_no_model(name: str, ten: Federated) -> None:
    told = atoll.simulate(job(CHANNELS[name]), ten, workers=0)
    silent = atoll.simulate(job(CHANNELS[name], train_loss=False), ten, workers=0)
    assert np.array_equal(told.vector, silent.vector)
    assert "train_loss" not in next(f for f in silent.facts if f["what"] == "round")
    up = [f["bytes_up"] for run in (told, silent) for f in run.facts if f["what"] == "round"]
    assert up[0] > up[-1], "it is a number that is sent, and counted"


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("model", ["softmax", "mlp", "logistic", "linear"])
def test_one_full_batch_step_has_the_loss_at_its_start(backend: str, model: str) -> None:
    """For full batches the training loss of a round is the loss of the model that the round began with."""
    if backend == "torch":
        pytest.importorskip("torch")
    name = {"logistic": "breast_cancer", "linear": "diabetes"}.get(model, "digits")
    data = atoll.data.load(name).split(4, by="power", seed=1)
    data = replace(data, test=data.train, local=None)  # what is trained on is evaluated, too
    made = getattr(atoll.models, model)(backend=backend)
    for method in (
        atoll.FedAvg(made, batch=None, lr=0.01),
        atoll.FedSGD(made, lr=0.01),
        atoll.FedSGD(made, lr=0.01, by="weights"),
    ):
        run = atoll.simulate(atoll.Job(method, atoll.All(), rounds=3), data, workers=0)
        assert run.curve("train_loss")[1] == pytest.approx(run.curve("test.loss")[1][:3], rel=2e-5)


@given(losses=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6), norm=st.floats(1e-3, 1e3))
def test_a_bounded_loss_is_cut_and_decoded(losses: list[float], norm: float) -> None:
    n = len(losses)
    wire, codec = chain(atoll.Clip(norm), atoll.TrainLoss(bound=5.0), atoll.Average())(Wire.of(3, n, "float64"))
    context = EncodeContext(np.ones(n), World(0), 0, np.arange(n), {}, np.array(losses))
    rows = codec.encode(np.full((n, 3), norm), {}, context).x
    assert wire.l2 is not None
    assert (np.linalg.norm(rows, axis=1) <= wire.l2).all()
    x, _, facts = codec.decode(rows.sum(0), {}, DecodeContext(n, World(0), 0))
    assert facts["train_loss"] == pytest.approx(np.clip(losses, -5, 5).mean(), abs=1e-9)
    assert x.shape == (3,)


@pytest.mark.parametrize("loss", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_spoils_nothing(loss: float) -> None:
    for first in ((), (atoll.Clip(1.0),)):
        _, codec = chain(*first, atoll.TrainLoss(), atoll.Average())(Wire.of(3, 2))
        context = EncodeContext(np.ones(2), World(0), 0, np.arange(2), {}, np.array([loss, 1.0]))
        assert np.isfinite(codec.encode(np.zeros((2, 3), np.float32), {}, context).x).all()


def test_it_is_a_stage_like_others() -> None:
    for first in ((), (atoll.Clip(1.0),), (atoll.Clip(1.0, quantile=0.5),)):
        check_stage(atoll.TrainLoss(), first=first)


def test_under_noise_it_is_told_only_where_the_job_says_so(ten: Federated) -> None:
    noisy = [atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(0.5)]
    silent = atoll.assemble(job((noisy, atoll.Sum())), ten)
    assert silent.job.channel.stages == tuple(noisy)
    said = [noisy[0], atoll.TrainLoss(), *noisy[1:]]
    told = atoll.assemble(job((said, atoll.Sum())), ten)
    assert told.wire.noise == silent.wire.noise, "the noise is scaled to the larger bound"
    assert told.wire.l2 is not None
    assert silent.wire.l2 is not None
    assert told.wire.l2 / silent.wire.l2 == pytest.approx(1.01**0.5)
    losses = [
        atoll.simulate(job((said, atoll.Sum())), ten, seed, workers=0).curve("train_loss")[1][0] for seed in range(40)
    ]
    # Noise of 0.5 × √1.01 on a sum of ten numbers in units of 0.1 / 10.
    assert np.std(losses) == pytest.approx(0.5 * 1.01**0.5 * 100 / 10, rel=0.35)
    assert np.mean(losses) == pytest.approx(UNTRAINED, abs=4 * 5 / 40**0.5)


def test_losses_of_private_examples_are_never_told(ten: Federated) -> None:
    method = atoll.FedAvg(atoll.models.softmax(), example_dp=atoll.ExampleDP(1.0, 1.0))
    run = atoll.simulate(atoll.Job(method, atoll.All(), rounds=1), ten, workers=0)
    assert "train_loss" not in next(f for f in run.facts if f["what"] == "round")
    channel = atoll.Channel([atoll.TrainLoss(), atoll.Weigh()])
    with pytest.raises(Mismatch, match="not their losses: take TrainLoss"):
        atoll.assemble(atoll.Job(method, atoll.All(), channel), ten)


def test_job_files_say_it(ten: Federated) -> None:
    text = 'name = "x"\ndata = "digits"\nmethod = { use = "fedavg", model = "softmax" }\n'
    assert parse(text, "job").job.train_loss
    off = parse(text + "train_loss = false\n", "job").job
    assert not off.train_loss
    assert not from_table(to_table(off, {"use": "digits"}, 0)).job.train_loss
    with pytest.raises(ValueError, match="train_loss = 1: true or false is needed"):
        parse(text + "train_loss = 1\n", "job")
    named = parse(text + 'stages = [{ use = "train_loss", bound = 4.0 }, "weigh"]\n', "job").job
    assert atoll.assemble(named, ten).job.channel.stages == (atoll.TrainLoss(4.0), atoll.Weigh())


def test_a_resumed_run_tells_it_once(ten: Federated, tmp_path: Path) -> None:
    data = atoll.data.build({"use": "digits", "clients": 4, "by": "iid"}, 0)
    first = atoll.simulate(job(CHANNELS["weighted"]), data, out=tmp_path, workers=0)
    assert first.folder is not None
    again = atoll.simulate(job(CHANNELS["weighted"]), data, resume=first.folder, workers=0)
    assert again.job.channel.stages == (atoll.TrainLoss(), atoll.Weigh())


def test_it_stands_after_no_mean() -> None:
    with pytest.raises(Mismatch, match="put it before them"):
        chain(atoll.Average(), atoll.TrainLoss())(Wire.of(3, 4))
