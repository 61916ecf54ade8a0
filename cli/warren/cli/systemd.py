"""Notifications to systemd: sd_notify(3), without its library."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state such as `READY=1`, `STOPPING=1` or `WATCHDOG=1`; no effect outside of systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        sock.sendall(state.encode())


def watchdog_seconds() -> float | None:
    """Return the seconds between two watchdog notifications: half of systemd's limit. None without a watchdog."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2_000_000 if microseconds.isdigit() and int(microseconds) else None
