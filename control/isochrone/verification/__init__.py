"""Proves by real connections that what the map promises is true."""
