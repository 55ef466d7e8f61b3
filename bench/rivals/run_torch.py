"""Plain PyTorch, eager, one process: what one writes by hand without a federated-learning library."""

import torch
from harness import Clock, arguments, report
from torch_models import accuracy, network, train
from workload import load

given = arguments("torch", {"2nn": 1, "cnn": 2, "lstm": 2, "softmax": 1, "tiny": 1})
torch.set_num_threads(given.threads)

work = load(given.workload)
data = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in work.data]
model = network(given.workload)
server = {name: value.clone() for name, value in model.state_dict().items()}

clock = Clock()
for number in range(1 + given.rounds):
    clients = work.select(number)
    samples = sum(len(data[client][0]) for client in clients)
    mean = {name: torch.zeros_like(value) for name, value in server.items()}
    for client in clients:
        x, y = data[client]
        model.load_state_dict(server)
        train(model, x, y, lr=work.lr, batch=work.batch, epochs=work.epochs)
        for name, value in model.state_dict().items():
            mean[name].add_(value, alpha=len(x) / samples)
    server = mean
    clock.tick()

model.load_state_dict(server)
report("torch", torch.__version__, given, clock, accuracy(model, work.test))
