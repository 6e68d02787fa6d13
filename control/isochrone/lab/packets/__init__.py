"""A lab with real packets: two network namespaces, and between them a link whose delay, jitter and loss are ours.

Probes cross actual stacks, with a truth that is known: the link says of every packet when it came and when it went on.
Works wherever namespaces and TUN devices may be made (root, or an unprivileged user namespace); `unavailable()` says why not.
"""

from isochrone.lab.packets.lab import PacketLab, unavailable
from isochrone.lab.packets.paths import Crossing, Path

__all__ = ["Crossing", "PacketLab", "Path", "unavailable"]
