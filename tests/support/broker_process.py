"""`warren broker` as a child process that can be stopped, killed and started again on its folder and port."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.polling import PATIENCE
from tests.support.processes import Child, free_port

READY = "warren broker ready: "
PATIENT = ("--handshake-timeout", "120", "--login-failure-delay", "0")
"""On a busy machine, a client may stand still for longer than the default of ten seconds. No test waits for refusals."""


def warren(*arguments: str | Path) -> list[str | Path]:
    """Return the command line of `warren ARGUMENTS` with the interpreter of the tests."""
    return [sys.executable, "-m", "warren.cli.dispatch", *arguments]


class BrokerProcess:
    """A `warren broker` on a data folder. It keeps its port over restarts, so that `url` stays valid."""

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        port: int = 0,
        python: str | Path = sys.executable,
        env: Mapping[str, str] | None = None,
        descriptors: int | None = None,
    ) -> None:
        """
        :param options: further arguments of `warren broker`
        :param port: 0 picks a free one at the first start
        :param python: the interpreter whose Warren is run
        :param env: added to this process's environment
        :param descriptors: file descriptors that the process may have open; None leaves this process's limit
        """
        self.data_dir = data_dir
        self.options: Sequence[str] = options
        self.port = port
        self.python = python
        self.env = env
        self.descriptors = descriptors
        self.url = ""
        self.child: Child | None = None

    @property
    def pid(self) -> int:
        assert self.child is not None, "the broker is not running"
        return self.child.pid

    def command(self) -> list[str | Path]:
        words = warren("broker", "--port", str(self.port), "--data-dir", self.data_dir, *self.options)
        limits = [] if self.descriptors is None else ["prlimit", f"--nofile={self.descriptors}"]
        return [*limits, self.python, *words[1:]]

    def start(self, timeout: float = PATIENCE) -> None:
        """Start the broker and wait until it accepts connections."""
        assert self.child is None, "the broker runs already"
        # Not any that the system would give: while the broker is down, it would give the port to a connection.
        self.port = self.port or free_port()
        child = Child(self.command(), env=self.env)
        try:
            self.url = child.wait_for_line(READY, timeout).removeprefix(READY)
        except BaseException:
            child.kill()
            raise
        self.port = int(self.url.rpartition(":")[2].rstrip("/"))
        self.child = child

    def stop(self) -> int:
        """Stop the broker with SIGTERM; return its exit status."""
        child, self.child = self.child, None
        return child.stop() if child is not None else 0

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        assert self.child is not None, "the broker is not running"
        self.child.kill()
        self.child = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
