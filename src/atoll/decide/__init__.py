"""Whether and how to federate: compare federated training with its alternatives, find the noise a budget asks for."""
