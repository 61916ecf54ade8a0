"""Child processes with deadlines: start, read lines, stop by process id; and free ports."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tests.support.polling import PATIENCE

PORTS = (10_000, 32_768)
"""Ports below those that Linux assigns itself (net.ipv4.ip_local_port_range)."""


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free at this moment.

    None of those that the system gives to connections: one of many others could get it before a server that takes long
    to start.
    """
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a TCP port of the loopback interface on which no process listens during the block."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


class Child:
    """A process in its own session. Standard output is collected as lines, standard error as text.

    Leaving the `with` block stops it.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """:param env: added to this process's environment"""
        self.arguments = [str(word) for word in arguments]
        self.lines: list[str] = []
        self._arrived = threading.Condition()
        self._ended = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child, closed by _release
        self._process = subprocess.Popen(
            self.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"stdout of {self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        """Standard error of the child so far."""
        if self._errors.closed:
            return self._last_errors
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    def wait_for_line(self, start: str, timeout: float = PATIENCE) -> str:
        """Wait for a line of standard output that begins with `start`; return it.

        :raises AssertionError: with the child's output, if it ends first or `timeout` seconds pass
        """
        with self._arrived:
            self._arrived.wait_for(lambda: self._ended or self._line(start) is not None, timeout)
            line = self._line(start)
        assert line is not None, (
            f"no line {start!r} from {' '.join(self.arguments)} (status {self._process.poll()}); "
            f"standard output {self.lines[-20:]}; standard error:\n{self.errors[-4000:]}"
        )
        return line

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of the process; return its exit status, negative for a signal."""
        status = self._process.wait(timeout)
        self._release()
        return status

    def stop(self, timeout: float = PATIENCE) -> int:
        """Stop the process and its children (SIGTERM, after `timeout` seconds SIGKILL); return the exit status."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        return self.wait()

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL."""
        self._signal(signal.SIGKILL)
        self.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The group, because a server may be the grandchild of a launcher; start_new_session made it ours.
        if self.running:
            os.killpg(self.pid, number)

    def _line(self, start: str) -> str | None:
        return next((line for line in self.lines if line.startswith(start)), None)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                with self._arrived:
                    self.lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def _release(self) -> None:
        self._reader.join(PATIENCE)
        if not self._errors.closed:
            self._last_errors = self.errors
            self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process in KiB (Linux)."""
    return _kib(pid, "VmRSS:")


def peak_kib(pid: int) -> int:
    """Return the most resident memory that a process has had since `reset_peak`, in KiB (Linux)."""
    return _kib(pid, "VmHWM:")


def reset_peak(pid: int) -> None:
    """Let `peak_kib` begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _kib(pid: int, name: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(name)]
    return int(line.split()[1])
