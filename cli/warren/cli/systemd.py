"""What systemd wants to hear of a service: sd_notify(3), without its library."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Tell it, if it asked for it: `READY=1`, `STOPPING=1`, `WATCHDOG=1`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        sock.sendall(state.encode())


def watchdog_seconds() -> float | None:
    """How often it wants a sign of life: half of what it waits; None if it wants none."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2_000_000 if microseconds.isdigit() and int(microseconds) else None
