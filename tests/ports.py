"""A port for a server that is started again on the same one."""

import contextlib
import random
import socket


def free_port() -> int:
    """Free for TCP and UDP, and below those that the system gives to clients: nobody takes it between two starts."""
    for _ in range(200):
        port = random.randint(20_000, 31_999)
        with (
            contextlib.suppress(OSError),
            socket.socket() as tcp,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        ):
            tcp.bind(("127.0.0.1", port))
            udp.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
