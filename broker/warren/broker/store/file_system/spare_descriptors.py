"""Spare file descriptors, with which the store opens files even when this process has no other descriptor left.

A broker keeps descriptors from its connections, but other code of the process may use them up all the same.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from typing import Final

from warren.core.operating_system.files import BINARY

logger = logging.getLogger(__name__)

NO_DESCRIPTOR_ERRORS: Final = (errno.EMFILE, errno.ENFILE)
"""Error numbers that mean that this process, or the system, has no descriptor left."""
SPARES: Final = 8
"""Descriptors that are held open to be given up for files."""
BRIEF_SPARES: Final = 2
"""Spare descriptors that are given up only for files that are closed again at once, such as those that are read."""


class SpareDescriptors:
    """Descriptors that are held open, and given up when a file cannot be opened without one.

    They are opened again when files are closed. All threads of a process share them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._short = False

    def open(self, path: str, flags: int, mode: int = 0o600, *, stays_open: bool) -> int:
        """Open a file, with a spare descriptor if there is no other one.

        :param flags: flags of os.open.
        :param mode: mode of a file that is created.
        :param stays_open: False for a file that is closed again at once; the last spare descriptors are kept for those.
        :raises OSError: the file cannot be opened.
        """
        while True:
            try:
                return os.open(path, flags | BINARY, mode)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR_ERRORS or not self._give_up(stays_open):
                    raise

    def refill(self) -> None:
        """Hold the full number of spare descriptors again, as far as there are any; called when a file was closed."""
        if len(self._held) == SPARES:
            return
        with self._lock:
            while len(self._held) < SPARES:
                try:
                    self._held.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    return
            if self._short:
                self._short = False
                logger.warning("event=store.descriptors_recovered")

    def _give_up(self, stays_open: bool) -> bool:
        with self._lock:
            if not self._short:
                self._short = True
                logger.error("event=store.descriptors_short spare=%d", len(self._held))
            if len(self._held) <= (BRIEF_SPARES if stays_open else 0):
                return False
            os.close(self._held.pop())
            return True


__all__ = ["NO_DESCRIPTOR_ERRORS", "SpareDescriptors"]
