"""Flower's FedAvg over clients that send back what they were given, NumPy alone; the end of each round is noted."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    parties, rounds = context.run_config["parties"], context.run_config["rounds"]
    ends = []

    class Timed(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            if len(replies) != parties or any(reply.has_error() for reply in replies):
                raise RuntimeError(f"{len(replies)} of {parties} clients answered, or one failed")
            merged = super().aggregate_train(server_round, replies)
            ends.append(time.time())
            return merged

    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=parties, min_available_nodes=parties)
    start = ArrayRecord([np.zeros(context.run_config["size"], np.float32)])
    report = Path(context.run_config["report"])
    try:
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
    finally:  # a run that failed is noted too, or it would be waited for
        report.with_suffix(".part").write_text(json.dumps(ends))
        report.with_suffix(".part").rename(report)
