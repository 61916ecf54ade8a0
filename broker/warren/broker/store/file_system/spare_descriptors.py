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
SPARES: Final = 10
"""Descriptors that are held open to be given up for files."""
BRIEF_SPARES: Final = 4
"""Spare descriptors that are given up only for files that are closed again at once: one for each thread that reads files."""


class SpareDescriptors:
    """Descriptors that are held open, and given up when a file cannot be opened without one.

    When a file is closed, its descriptor becomes a spare one again before anything else, such as a socket, can take its
    number. All threads of a process share them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._null = -1
        """Descriptor of the null device, of which spare ones are made; -1 before there is one."""
        self._short = False

    def open(self, path: str, flags: int, mode: int = 0o600, *, stays_open: bool) -> int:
        """Open a file, with a spare descriptor if there is no other one.

        :param flags: flags of os.open.
        :param mode: mode of a file that is created.
        :param stays_open: False for a file that is closed again at once; the last spare descriptors are kept for those.
        :raises OSError: the file cannot be opened.
        """
        needed_spare = False
        while True:
            try:
                descriptor = os.open(path, flags | BINARY, mode)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR_ERRORS or not self._give_up(stays_open):
                    raise
                needed_spare = True
            else:
                if self._short and not needed_spare:
                    self._note_recovery()
                return descriptor

    def close(self, descriptor: int) -> None:
        """Close a file, and hold its descriptor as a spare one if some were given up."""
        if len(self._held) == SPARES or not self._keep(descriptor):
            os.close(descriptor)
        self.refill()

    def _keep(self, descriptor: int) -> bool:
        """Close a file and hold its descriptor, in one system call; return False if that is not possible or not needed."""
        with self._lock:
            if len(self._held) == SPARES or self._null < 0:
                return False
            try:
                os.dup2(self._null, descriptor, inheritable=False)
            except OSError:
                # The limit was lowered: the number is beyond it.
                return False
            self._held.append(descriptor)
            return True

    def refill(self) -> None:
        """Hold the full number of spare descriptors, as far as there are any."""
        if len(self._held) == SPARES:
            return
        with self._lock:
            while len(self._held) < SPARES:
                try:
                    if self._null < 0:
                        self._null = os.open(os.devnull, os.O_RDONLY)
                    self._held.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    return

    def _note_recovery(self) -> None:
        with self._lock:
            if self._short and len(self._held) == SPARES:
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
