"""Memory of the machine and of this process."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Final

UNKNOWN_MEMORY: Final = 4 * 1024**3
"""Bytes that a machine is taken to have if its system does not say."""
_STATISTICS: Final = "/proc/self/statm"
_TASK_INFO: Final = 4
"""PROC_PIDTASKINFO of macOS, whose struct proc_taskinfo begins with the virtual and the resident size."""
_TASK_INFO_WORDS: Final = 12


def machine_memory() -> int:
    """Return the bytes of memory that the machine has."""
    try:
        if sys.platform == "win32":
            return _windows_machine_memory() or UNKNOWN_MEMORY
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, AttributeError, ValueError):
        return UNKNOWN_MEMORY


def resident_memory() -> int:
    """Return the bytes of this process that are resident in memory; 0 if the system does not report them."""
    try:
        if sys.platform == "win32":
            return _windows_working_set()
        if sys.platform == "darwin":
            return _macos_resident_size()
        # Not with a file object, which takes five more system calls while a client waits for its confirm.
        descriptor = os.open(_STATISTICS, os.O_RDONLY)
        try:
            pages = int(os.read(descriptor, 100).split()[1])
        finally:
            os.close(descriptor)
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, IndexError, ValueError):
        return 0


def release_memory() -> None:
    """Return unused memory of the allocator to the system, where the C library can (glibc)."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (OSError, AttributeError):
            return


def _macos_resident_size() -> int:
    words = (ctypes.c_uint64 * _TASK_INFO_WORDS)()
    size = ctypes.sizeof(words)
    found = ctypes.CDLL(None).proc_pidinfo(os.getpid(), _TASK_INFO, ctypes.c_uint64(0), words, size)
    return int(words[1]) if found == size else 0


def _windows_machine_memory() -> int:
    class MemoryStatus(ctypes.Structure):  # MEMORYSTATUSEX
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            ("total", ctypes.c_uint64),
            ("others", ctypes.c_uint64 * 6),
        )

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    done = _windows_kernel().GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.total) if done else 0


def _windows_working_set() -> int:
    class MemoryCounters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("faults", ctypes.c_uint32),
            ("peak", ctypes.c_size_t),
            ("working_set", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 6),
        )

    kernel = _windows_kernel()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    counters = MemoryCounters(length=ctypes.sizeof(MemoryCounters))
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    done = kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.length)
    return int(counters.working_set) if done else 0


def _windows_kernel() -> Any:
    return getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009 - only Windows has it


__all__ = ["machine_memory", "release_memory", "resident_memory"]
