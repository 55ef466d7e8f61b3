"""fluke: its FedAVG (CentralizedFL) run from Python with its fast in-memory loader, as in its tutorials."""

from importlib.metadata import version

import torch
import torchvision_stub  # noqa: F401
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from harness import Clock, arguments, report
from torch_models import accuracy, network
from workload import load

given = arguments("fluke", {"2nn": 1, "cnn": 2})
torch.set_num_threads(given.threads)

work = load(given.workload)
clock = Clock()


def loader(pair):
    x, y = map(torch.as_tensor, pair)
    return FastDataLoader(x, y, num_labels=work.classes, batch_size=work.batch, shuffle=True)


class Tick(FederationObserver):
    def end_round(self, round):  # noqa: A002
        clock.tick()


environment = FlukeENV()
environment.set_seed(0)
environment.set_device("cpu")
environment.set_inmemory(True)
environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)

container = DummyDataContainer([loader(pair) for pair in work.data], [None] * work.clients, None, work.classes)
federation = FedAVG(
    n_clients=work.clients,
    data_splitter=DataSplitter(dataset=container, distribution="iid"),
    hyper_params=DDict(
        client=DDict(
            batch_size=work.batch,
            local_epochs=work.epochs,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", gamma=1.0, step_size=1),
        ),
        server=DDict(weighted=True),
        model=network(given.workload),
    ),
)
federation.set_callbacks(Tick())
federation.run(n_rounds=1 + given.rounds, eligible_perc=work.cohort / work.clients)

report("fluke", version("fluke-fl"), given, clock, accuracy(federation.server.model, work.test))
