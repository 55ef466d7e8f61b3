"""pfl-research: FederatedAveraging on SimulatedBackend, with PyTorch models, as in its tutorials."""

import logging
from importlib.metadata import version

import torch
from harness import Clock, arguments, report
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from torch_models import accuracy, network
from workload import load

given = arguments("pfl-research", {"2nn": 1, "cnn": 2})
torch.set_num_threads(given.threads)
logging.disable(logging.WARNING)

work = load(given.workload)
total = 1 + given.rounds
module = network(given.workload)
module.loss = lambda x, y, **_: cross_entropy(module(x), y)
module.metrics = lambda *_, **__: {}

users = {client: PyTorchTensorDataset(tuple(map(torch.as_tensor, pair))) for client, pair in enumerate(work.data)}
order = iter([client for number in range(total) for client in work.select(number)])
cohorts = FederatedDataset(users.__getitem__, lambda: next(order))
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
clock = Clock()


class Tick(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.tick()
        return False, Metrics()


FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=total,
        evaluation_frequency=10 * total,  # iteration 0 evaluates all the same, on metrics that are empty
        train_cohort_size=work.cohort,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=cohorts, val_data=None),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
    ),
    callbacks=[Tick()],
    send_metrics_to_platform=False,
)
report("pfl", version("pfl"), given, clock, accuracy(module, work.test))
