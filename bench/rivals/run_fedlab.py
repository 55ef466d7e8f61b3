"""FedLab: StandalonePipeline with its FedAvg handler and serial trainer, as in its quick start."""

import logging
import random
from importlib.metadata import version

import torch
import torchvision_stub  # noqa: F401
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline
from harness import Clock, arguments, report
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torch_models import accuracy, network
from workload import load

given = arguments("FedLab", {"2nn": 1, "cnn": 2})
torch.set_num_threads(given.threads)
logging.disable(logging.INFO)
random.seed(0)

work = load(given.workload)
clock = Clock()


class Clients(FedDataset):
    """Its own data sets read a pickle per client and round; tensors in memory are kinder to it."""

    def __init__(self) -> None:
        self.parts = [BaseDataset(*map(torch.as_tensor, pair)) for pair in work.data]
        self.num = len(self.parts)

    def get_dataset(self, id, type="train"):  # noqa: A002
        return self.parts[id]

    def get_dataloader(self, id, batch_size, type="train"):  # noqa: A002
        part = self.parts[id]
        rows = BatchSampler(RandomSampler(part), batch_size, drop_last=False)
        return DataLoader(part, sampler=rows, batch_size=None)  # one gather a batch, not one a sample


class Pipeline(StandalonePipeline):
    """The pipeline calls `evaluate` after each round; here it only looks at the clock."""

    def evaluate(self) -> None:
        clock.tick()


handler = SyncServerHandler(network(given.workload), 1 + given.rounds, sample_ratio=work.cohort / work.clients)
trainer = SGDSerialClientTrainer(network(given.workload), work.clients)
trainer.setup_dataset(Clients())
trainer.setup_optim(work.epochs, work.batch, work.lr)
Pipeline(handler, trainer).main()

report("fedlab", version("fedlab"), given, clock, accuracy(handler.model, work.test))
