"""The job files that come with Atoll."""
