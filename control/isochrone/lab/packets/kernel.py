"""Network namespaces and TUN devices, through the system calls that Python 3.11 has no names for. Linux."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
from pathlib import Path

from isochrone.probing.stamps import stamp_arrivals

CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_ETH_P_ALL = 3
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_BUFFER = 16 << 20
#: Only what leaves: load the packet's type, keep it if it is PACKET_OUTGOING (4). Classic BPF: code, jt, jf, k.
_OUTGOING = b"".join(
    struct.pack("=HBBI", *line)
    for line in ((0x20, 0, 0, 0xFFFFF004), (0x15, 0, 1, 4), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0))
)
_libc = ctypes.CDLL(None, use_errno=True)


def unshare_network() -> None:
    """Move this thread into a new network namespace. Raises OSError."""
    _checked(_libc.unshare(CLONE_NEWNET))


def enter_network(namespace: int) -> None:
    """Move this thread into the namespace of a descriptor. Raises OSError."""
    _checked(_libc.setns(namespace, CLONE_NEWNET))


def open_tun(name: str) -> int:
    """A TUN device in this namespace: the descriptor of its other end, non-blocking. Raises OSError."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("=16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_tap(device: str) -> socket.socket:
    """A socket that sees each packet that leaves through the device, with the kernel's time at which it did."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
    code = ctypes.create_string_buffer(_OUTGOING, len(_OUTGOING))
    tap.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("HxxxxxxP", len(_OUTGOING) // 8, ctypes.addressof(code)),
    )
    try:
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    except OSError:  # in a user namespace
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    stamp_arrivals(tap)
    tap.bind((device, 0))
    tap.setblocking(False)
    return tap


def ip(*arguments: str) -> None:
    """Run iproute2's program in this namespace. Raises subprocess.CalledProcessError, with what it said in `stderr`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def set_network(key: str, value: str) -> None:
    """Set /proc/sys/net/`key` of this namespace. Raises OSError."""
    Path("/proc/sys/net", key).write_text(value)


def have_ipv6() -> bool:
    """Whether this namespace speaks IPv6."""
    try:
        return Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").read_text().strip() == "0"
    except OSError:
        return False


def be_punctual(priority: int, *, beside_the_link: bool = False) -> bool:
    """Run before all ordinary processes, where that is allowed; at least wake without the usual slack. Whether it was.

    `beside_the_link`: on the core that the link keeps awake, where no idle core has to be woken for a packet.
    """
    if beside_the_link:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError:
        return False
    return True


def end_with_parent(how: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when whoever started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
