"""All parties on a Ray cluster."""
