"""Flower: FedAvg on the Ray simulation engine, one actor per core, as in its PyTorch quick start."""

import logging
import os
import warnings
from importlib.metadata import version

from harness import Clock, arguments, report

given = arguments("Flower", {"2nn": 1, "cnn": 1})  # threads in each actor; there is an actor on every core
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
warnings.simplefilter("ignore")

import flower_client  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch_models import accuracy, network  # noqa: E402
from workload import load  # noqa: E402

logging.getLogger("flwr").setLevel(logging.ERROR)
work = load(given.workload)
model = network(given.workload)
clock = Clock()
server = ServerApp()


class TimedFedAvg(FedAvg):
    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if failed := [reply for reply in replies if reply.has_error()]:
            raise RuntimeError(failed[0].error.reason)
        if len(replies) != work.cohort:
            raise RuntimeError(f"{len(replies)} clients took part instead of {work.cohort}")
        merged = super().aggregate_train(server_round, replies)
        clock.tick()
        return merged


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = TimedFedAvg(
        fraction_train=work.cohort / work.clients,
        fraction_evaluate=0.0,
        min_train_nodes=work.cohort,  # the fraction alone is taken of the nodes there are before they have connected
        min_available_nodes=work.clients,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"workload": given.workload, "threads": given.threads}),
        num_rounds=1 + given.rounds,
    )
    model.load_state_dict(result.arrays.to_torch_state_dict())


run_simulation(
    server,
    flower_client.app,
    num_supernodes=work.clients,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR},
    },
)

report("flower", version("flwr"), given, clock, accuracy(model, work.test))
