"""The interpreter's switch interval: how long a busy event loop keeps other threads waiting."""

from __future__ import annotations

import sys
import threading
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""Switch interval of the interpreter (`sys.setswitchinterval`) while the log's writer thread is to run soon.

The thread needs the interpreter's lock some four times for each write that it syncs. A busy event loop keeps the lock
for the whole interval each time: with the default of 5 ms, the confirm of a persistent message took 20 ms longer for
every write before its own. Always so short, it costs a persistent message 4 to 7 % more processor time.
"""


class SwitchInterval:
    """The interpreter's switch interval, which is short while any user of the process asks for it.

    Brokers on event loops of several threads may use it at once. The interval applies to the whole process, so nothing
    changes until the process allows it: `warren broker` does, and an application that embeds a broker keeps its own.
    """

    def __init__(self, *, is_allowed: bool = False) -> None:
        self.is_allowed = is_allowed
        """True if the process belongs to the broker. Set it before a broker starts."""
        self._lock = threading.Lock()
        self._users = 0
        self._usual = 0.0

    def shorten(self) -> None:
        """Let other threads run sooner, until `restore` has been called as often."""
        if not self.is_allowed:
            return
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, SWITCH_SECONDS))

    def restore(self) -> None:
        """End one `shorten`."""
        if not self.is_allowed:
            return
        with self._lock:
            self._users -= 1
            if not self._users:
                sys.setswitchinterval(self._usual)


SWITCH_INTERVAL: Final = SwitchInterval()

__all__ = ["SWITCH_INTERVAL", "SwitchInterval"]
