"""Flower's ClientApp. It lives in a module that Ray's actors import by name, so that each loads the data only once."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_models import network
from torch_models import train as fit
from workload import load

app = ClientApp()


@cache
def prepared(workload: str, threads: int):
    """The data and a model to train in, kept for the life of an actor."""
    torch.set_num_threads(threads)
    work = load(workload)
    return work, network(workload)


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    work, model = prepared(config["workload"], config["threads"])
    x, y = map(torch.as_tensor, work.data[context.node_config["partition-id"]])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    fit(model, x, y, lr=work.lr, batch=work.batch, epochs=work.epochs)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(content), reply_to=message)
