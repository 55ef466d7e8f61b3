"""Data: what parties hold, where it comes from, how it is dealt out."""
