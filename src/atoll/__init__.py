"""Federated learning. The public names of Atoll live here and nothing else."""
