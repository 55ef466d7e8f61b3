"""Every pipeline with every combine: it gives the mean it should, or is refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.effects import drive
from atoll.core.keys import rng
from atoll.core.wire import Combine, DecodeContext, EncodeContext, Mismatch, Setting, Stage, Wire, chain
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.testing import Echo, Loopback

N, D = 6, 256
CLIP, MEAN = atoll.Clip(100.0), atoll.Average("expected")
PIPELINES: dict[str, tuple[Stage, ...]] = {
    "weigh": (atoll.Weigh(),),
    "average": (MEAN,),
    "clip": (CLIP, MEAN),
    "adaptive clip": (atoll.Clip(100.0, quantile=0.5), MEAN),
    "bounded weight": (CLIP, atoll.Weigh(max_weight=1e6)),
    "ring": (CLIP, MEAN, atoll.Ring(24)),
    "ring of weights": (CLIP, atoll.Weigh(max_weight=60), atoll.Ring(24, width=64)),
    "local noise": (CLIP, MEAN, atoll.Gaussian(1e-6, "local")),
    "central noise": (CLIP, MEAN, atoll.Gaussian(1e-6)),
    "noise in shares": (CLIP, MEAN, atoll.Ring(24), atoll.Gaussian(1e-6, "distributed")),
    "tree": (CLIP, MEAN, atoll.TreeNoise(1e-6, 2)),
    "top k": (MEAN, atoll.TopK(1.0, feedback=False)),
    "random k": (MEAN, atoll.RandomK(1.0, feedback=False)),
    "quantise": (MEAN, atoll.Quantise(16)),
    "rotate": (MEAN, atoll.Rotate()),
    "low rank": (MEAN, atoll.LowRank(16, feedback=False)),
    "rotate in a ring": (CLIP, MEAN, atoll.Rotate(), atoll.Ring(24)),
    "random k in a ring": (CLIP, MEAN, atoll.RandomK(1.0, feedback=False), atoll.Ring(24)),
    "top k in a ring": (CLIP, MEAN, atoll.TopK(1.0, feedback=False), atoll.Ring(24)),
}
COMBINES: dict[str, Combine] = {
    "sum": atoll.Sum(),
    "median": atoll.Each(atoll.Median()),
    "secure": atoll.SecureSum(),
    "light": atoll.LightSum(),
    "encrypted": atoll.EncryptedSum(),
}
HIDDEN = {"secure", "light", "encrypted"}
RINGS = {"ring", "ring of weights", "noise in shares", "rotate in a ring", "random k in a ring"}


def expected(pipeline: str, combine: str) -> bool:
    """Say what must be possible: written by hand, so that a refusal that is lost, or one too many, is seen."""
    if pipeline == "top k in a ring":  # single owners of a coordinate would show
        return False
    if combine in HIDDEN:
        return pipeline in RINGS
    if combine == "median":
        return (
            not ({"weigh", "bounded weight"} & {pipeline})
            and pipeline not in RINGS
            and "noise" not in pipeline
            and (pipeline != "tree")
        )
    return pipeline != "noise in shares"


def outcome(pipeline: str, combine: str) -> np.ndarray:
    wire, codec = chain(*PIPELINES[pipeline])(Wire.of(D, N, shapes=((16, 16),)))
    world = World.simulated(0)
    gather = COMBINES[combine].gather(wire, Setting("model", world))
    row = rng(0, "pairs").normal(size=D).astype(np.float32)
    about = EncodeContext(
        np.full(N, 50, np.float32), world, 0, np.arange(N), {n: codec.start[n] for n in codec.stage_state}
    )
    sent, *_ = codec.encode(np.repeat(row[None], N, 0), {}, about)
    samples = Silos(np.zeros((N, 1), np.float32), np.zeros(N, np.int32), np.arange(N + 1))
    vector, replies = drive(
        gather(np.arange(N), {"rows": sent, "t": 0}, None), Loopback({"model/contribute": Echo()}, samples)
    )
    mean, *_ = codec.decode(vector, codec.start, DecodeContext(len(replies), world, 0))
    return np.asarray(mean) - row


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_pair_is_right_or_refused(pipeline: str, combine: str) -> None:
    if expected(pipeline, combine):
        assert np.abs(outcome(pipeline, combine)).max() < 0.01
        return
    with pytest.raises(Mismatch) as refusal:
        outcome(pipeline, combine)
    assert "\n" not in str(refusal.value)
    assert ":" in str(refusal.value), "a refusal holds a remedy"
