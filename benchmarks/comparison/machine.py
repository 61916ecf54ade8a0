"""Limits of the machine: bytes over loopback, and syncs of the disk."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.comparison.results import Machine

SECONDS = 1.0
PIECE = bytes(1 << 18)
BLOCK = bytes(4096)


def describe() -> Machine:
    """Measure this machine; takes two seconds."""
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        kernel=platform.release(),
        loopback_bytes_per_second=_loopback(),
        syncs_per_second=_syncs(),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _loopback() -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
        received = 0

        def read() -> None:
            nonlocal received
            buffer = bytearray(len(PIECE))
            while size := reader.recv_into(buffer):
                received += size

        thread = threading.Thread(target=read)
        thread.start()
        begun = time.monotonic()
        with client:
            while time.monotonic() - begun < SECONDS:
                client.sendall(PIECE)
        thread.join()
        reader.close()
        return received / (time.monotonic() - begun)


def _syncs() -> float:
    with tempfile.NamedTemporaryFile(prefix="warren-bench-") as file:
        begun = time.monotonic()
        count = 0
        while time.monotonic() - begun < SECONDS:
            os.write(file.fileno(), BLOCK)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.monotonic() - begun)
