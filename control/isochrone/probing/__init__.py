"""Measures round-trip times: one file per method behind one small protocol."""
