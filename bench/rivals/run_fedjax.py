"""FedJAX: algorithms.fed_avg with its Haiku models and the default (jit) backend, as in its examples."""

import os
import warnings
from importlib.metadata import version

from harness import Clock, arguments, report

given = arguments("FedJAX", {"2nn": 1, "cnn": 2})
if given.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
from workload import load  # noqa: E402


def dense(batch):
    layers = [hk.Linear(200), jax.nn.relu, hk.Linear(200), jax.nn.relu, hk.Linear(10)]
    return hk.Sequential([hk.Flatten(), *layers])(batch["x"])


def convolutional(batch):
    layers = []
    for channels in (32, 64):
        pool = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        layers += [hk.Conv2D(channels, 5, padding="SAME"), jax.nn.relu, pool]
    layers += [hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(10)]
    return hk.Sequential(layers)(batch["x"])


def examples(pair):
    return {"x": pair[0].reshape(-1, 28, 28, 1), "y": pair[1].astype(np.int32)}


work = load(given.workload)
clients = [fedjax.ClientDataset(examples(pair)) for pair in work.data]
model = fedjax.create_model_from_haiku(
    transformed_forward_pass=hk.transform({"2nn": dense, "cnn": convolutional}[given.workload]),
    sample_batch={"x": np.zeros((1, 28, 28, 1), np.float32), "y": np.zeros(1, np.int32)},
    train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
    eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
)
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fedjax.model_grad(model),
    client_optimizer=fedjax.optimizers.sgd(work.lr),
    server_optimizer=fedjax.optimizers.sgd(1.0),
    client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=work.epochs, seed=0),
)
key, start = jax.random.split(jax.random.PRNGKey(0))
state = algorithm.init(model.init(start))

clock = Clock()
for number in range(1 + given.rounds):
    key, *keys = jax.random.split(key, 1 + work.cohort)
    cohort = [(b"%d" % who, clients[who], own) for who, own in zip(work.select(number), keys, strict=True)]
    state, _ = algorithm.apply(state, cohort)
    jax.block_until_ready(state.params)
    clock.tick()

held_out = fedjax.ClientDataset(examples(work.test)).padded_batch(batch_size=1000)
accuracy = float(fedjax.evaluate_model(model, state.params, held_out)["accuracy"])
report("fedjax", version("fedjax"), given, clock, accuracy)
