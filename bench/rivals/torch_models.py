"""The workloads' models in PyTorch and the loop one writes by hand: for the rivals built on it, and the baseline."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d, relu


class TwoNN(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.dense = nn.Linear(3136, 512)
        self.out = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = max_pool2d(relu(self.conv1(x.view(-1, 1, 28, 28))), 2)
        x = max_pool2d(relu(self.conv2(x)), 2)
        return self.out(relu(self.dense(x.flatten(1))))


class CharLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(90, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.out = nn.Linear(256, 90)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embed(x))[0])


def network(workload: str) -> nn.Module:
    """A fresh model of a workload, always from the same weights."""
    torch.manual_seed(0)
    makers = {
        "2nn": TwoNN,
        "cnn": CNN,
        "lstm": CharLSTM,
        "softmax": lambda: nn.Linear(784, 10),
        "tiny": lambda: nn.Linear(60, 10),
    }
    return makers[workload]()


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, lr: float, batch: int, epochs: int) -> None:
    """Local SGD, eager, in place. Batches are slices of tensors in memory: no DataLoader in the way."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimiser.zero_grad()
            scores = model(x[rows])
            cross_entropy(scores.flatten(0, -2), y[rows].flatten()).backward()
            optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple | None) -> float | None:
    """The share of held-out samples that the model gets right."""
    if test is None:
        return None
    x, y = map(torch.as_tensor, test)
    hits = [(model(a).argmax(-1) == b).sum() for a, b in zip(x.split(1000), y.split(1000), strict=True)]
    return (sum(hits) / len(y)).item()
