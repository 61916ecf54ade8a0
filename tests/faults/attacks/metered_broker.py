"""`python -m tests.faults.attacks.metered_broker FILE ALLOWED broker ...`: `warren broker ...` that counts its work.

The work of a turn of the event loop, for which all other clients wait, is the number of calls of functions, also of those
in C. That number does not depend on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.faults.attacks.attack import Target
from tests.support.broker_process import BrokerProcess
from tests.support.processes import free_port
from warren.cli.dispatch import main

COUNT: Final = struct.Struct("Q")
STACK_BYTES: Final = 4096


class TurnMeter:
    """Most calls of a turn, and the stack at which a turn had too many, in a file that another process reads.

    :param file: it is created
    :param allowed: calls that a turn may have
    """

    def __init__(self, file: Path, allowed: int) -> None:
        file.write_bytes(bytes(COUNT.size + STACK_BYTES))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 0)
        self._allowed = allowed
        self._calls = 0
        self._run_turn: Any = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def count(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_call"):
            return
        self._calls += 1
        if self._calls == self._allowed and not self._memory[COUNT.size]:
            stack = "".join(traceback.format_stack(frame))[-STACK_BYTES:].encode()[-STACK_BYTES:]
            self._memory[COUNT.size :] = stack.ljust(STACK_BYTES, b"\0")

    def run_turn(self, loop: asyncio.BaseEventLoop) -> None:
        """Run one turn of the loop, and count its calls."""
        self._calls = 0
        sys.setprofile(self.count)
        try:
            self._run_turn(loop)
        finally:
            sys.setprofile(None)
            if self._calls > COUNT.unpack_from(self._memory)[0]:
                COUNT.pack_into(self._memory, 0, self._calls)


class MeteredBroker(BrokerProcess):
    """A broker with an HTTP API whose turns are metered."""

    def __init__(self, folder: Path, allowed: int) -> None:
        """:param allowed: calls of a turn after which its stack is kept"""
        port = free_port()
        # A client that waits for a busy broker, which is slow while it counts, is not refused.
        options = ("--handshake-timeout", "120", "--log-level", "error", "--management-port", str(port))
        super().__init__(folder / "data", *options)
        self._http = f"http://127.0.0.1:{port}"
        self._file = folder / "turns"
        self._allowed = allowed

    @property
    def target(self) -> Target:
        return Target(self.url, self._http)

    def command(self) -> list[str | Path]:
        python, *words = super().command()
        arguments = words[words.index("broker") :]
        return [
            python,
            "-m",
            "tests.faults.attacks.metered_broker",
            self._file,
            str(self._allowed),
            *arguments,
        ]

    def forget_turns(self) -> None:
        with self._file.open("r+b") as file:
            file.write(bytes(COUNT.size + STACK_BYTES))

    def longest_turn(self) -> tuple[int, str]:
        """Return the most calls of a turn since `forget_turns`, and its stack if it had too many."""
        data = self._file.read_bytes()
        return COUNT.unpack_from(data)[0], data[COUNT.size :].rstrip(b"\0").decode()


if __name__ == "__main__":
    meter = TurnMeter(Path(sys.argv[1]), int(sys.argv[2]))
    asyncio.BaseEventLoop._run_once = lambda loop: meter.run_turn(loop)  # type: ignore[attr-defined]
    sys.exit(main(sys.argv[3:]))
