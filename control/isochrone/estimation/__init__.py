"""Samples -> estimates of the round-trip time for every (cell, origin)."""
