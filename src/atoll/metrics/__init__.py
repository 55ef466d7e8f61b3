"""Metrics: how well a model does, as sums over samples that parties can add, and values of the added sums."""

from atoll.metrics.classes import F1, Accuracy, BalancedAccuracy, LogLoss, Perplexity, Recall, TopKAccuracy
from atoll.metrics.evaluate import better, default_metrics, layouts, party_values, totals, values
from atoll.metrics.fairness import jain, spread, worst_fraction
from atoll.metrics.metric import Metric
from atoll.metrics.ranking import AUC, AveragePrecision
from atoll.metrics.real import MAE, MSE, R2

__all__ = [
    "AUC", "F1", "MAE", "MSE", "R2", "Accuracy", "AveragePrecision", "BalancedAccuracy", "LogLoss", "Metric",
    "Perplexity", "Recall", "TopKAccuracy", "better", "default_metrics", "jain", "layouts", "party_values", "spread",
    "totals", "values", "worst_fraction",
]  # fmt: skip
