"""For all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, and a busy one is no failure.
settings.register_profile("isochrone", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("isochrone")
