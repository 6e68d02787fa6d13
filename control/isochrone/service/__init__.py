"""The daemon: schedule, HTTP API, metrics."""
