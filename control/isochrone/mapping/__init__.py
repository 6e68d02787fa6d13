"""Estimates -> latency map: rank, colour, keep calm, compare."""
