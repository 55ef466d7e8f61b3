"""All parties on this machine: a simulator, and the processes that work for it."""
