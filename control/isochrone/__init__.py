"""The control plane of Isochrone: measures, builds the latency map, publishes it, and proves its promises."""

__version__ = "0.1.0"
