"""The network runtime: one server, parties that only call out, and nothing between them that is not checked."""
