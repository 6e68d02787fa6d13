"""Samples and state that must survive."""
