"""Pytest plugin that shows Warren's modules no more of the system than Windows has: `pytest -p tests.support.windows_like`.

Only modules of Warren are affected; Python's own and those of other packages see the whole system. What Windows lacks is
absent, event loops refuse what its default one (IOCP) refuses, folders cannot be opened, and files that are open can be
neither renamed nor deleted. `install` does the same in a program; call it before Warren is imported.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import importlib
import os
import pathlib
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

ABSENT_MODULES: Final = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
ABSENT: Final = {
    os: "O_CLOEXEC O_DIRECTORY O_DIRECT O_DSYNC O_NOFOLLOW O_SYNC copy_file_range eventfd fchmod fchown fdatasync fork"
    " forkpty getgid geteuid getpgid getuid initgroups killpg lockf mkfifo nice posix_fadvise posix_fallocate posix_spawn"
    " pread preadv pwrite pwritev readv register_at_fork sched_getaffinity sched_yield sendfile setgid setpriority setsid"
    " setuid splice statvfs sysconf uname wait4 waitid writev",
    select: "epoll EPOLLIN EPOLLOUT EPOLLRDHUP EPOLLHUP EPOLLERR poll kqueue",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGCHLD pthread_sigmask pthread_kill SIG_BLOCK SIG_SETMASK sigwait",
    socket: "AF_UNIX SO_REUSEPORT SCM_RIGHTS SO_PEERCRED TCP_INFO MSG_DONTWAIT MSG_NOSIGNAL",
    time: "CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime pthread_getcpuclockid tzset",
}
REFUSED: Final = (
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "add_signal_handler",
    "remove_signal_handler",
    "create_unix_server",
    "create_unix_connection",
)
"""Methods of event loops that the default one of Windows does not have."""


class View(ModuleType):
    """A module with some names taken away or replaced; all others are read and written through."""

    def __init__(self, module: ModuleType, absent: str = "", **replaced: object) -> None:
        super().__init__(module.__name__)
        object.__setattr__(self, "_view", (module, frozenset(absent.split()), replaced))

    def __getattribute__(self, name: str) -> Any:
        module, absent, replaced = object.__getattribute__(self, "_view")
        if name in absent:
            raise AttributeError(f"Windows has no {module.__name__}.{name}")
        return replaced[name] if name in replaced else getattr(module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_view")[0], name, value)


def install() -> None:
    """Show what Windows has to all modules of Warren that are imported from now on."""
    views: dict[str, ModuleType] = {module.__name__: View(module, names) for module, names in ABSENT.items()}
    views["os"] = View(
        os,
        ABSENT[os],
        name="nt",
        open=open_file,
        unlink=unlink,
        remove=unlink,
        replace=replace,
        rename=replace,
    )
    views["sys"] = View(sys, platform="win32")
    views["msvcrt"] = locking_module()
    views["importlib"] = View(importlib, import_module=lambda name: imported(name, views))
    whole = builtins.__import__

    def narrowed(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0 and is_warren(globals or {}):
            root = name.partition(".")[0]
            if root in ABSENT_MODULES:
                raise ModuleNotFoundError(f"Windows has no module {root}", name=root)
            if root in views and (name == root or not fromlist):
                return views[root]
        return whole(name, globals, locals, fromlist, level)

    builtins.__import__ = narrowed
    asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # type: ignore[attr-defined]
    for method in REFUSED:
        setattr(asyncio.SelectorEventLoop, method, refusing(getattr(asyncio.SelectorEventLoop, method)))
    for method in ("unlink", "rename", "replace"):
        setattr(pathlib.Path, method, checking_open_files(getattr(pathlib.Path, method)))


def is_warren(names: Mapping[str, object]) -> bool:
    return str(names.get("__name__", "")).startswith("warren.")


def imported(name: str, views: Mapping[str, ModuleType]) -> ModuleType:
    if name in ABSENT_MODULES:
        raise ModuleNotFoundError(f"Windows has no module {name}", name=name)
    return views.get(name) or importlib.import_module(name)


def refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if is_warren(sys._getframe(1).f_globals):
            raise NotImplementedError
        return method(*arguments, **options)

    return call


def checking_open_files(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: pathlib.Path, *arguments: Any, **options: Any) -> Any:
        if is_warren(sys._getframe(1).f_globals):
            for each in (path, *arguments[:1]):
                refuse_open(each)
        return method(path, *arguments, **options)

    return call


def refuse_open(path: Any) -> None:
    """Raise what Windows raises for a file that this process has open."""
    try:
        found = os.stat(path)
    except (OSError, TypeError):
        return
    if not stat.S_ISREG(found.st_mode):
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            held = os.fstat(int(name))
        except OSError:
            continue
        if (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino):
            raise PermissionError(errno.EACCES, "open in this process, so Windows refuses this", str(path))


def open_file(path: Any, flags: int, mode: int = 0o777) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Windows opens no folders", str(path))
    return os.open(path, flags, mode)


def unlink(path: Any) -> None:
    refuse_open(path)
    os.unlink(path)


def replace(path: Any, target: Any) -> None:
    refuse_open(path)
    refuse_open(target)
    os.replace(path, target)


def locking_module() -> ModuleType:
    """Return the part of `msvcrt` that locks files."""
    import fcntl

    def locking(handle: int, mode: int, size: int) -> None:
        try:
            # A lock of the open file, not of the process: the same process must not get it twice.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(*error.args) from None

    module = ModuleType("msvcrt")
    module.__dict__.update(locking=locking, LK_NBLCK=2)
    return module


def pytest_addoption() -> None:
    """Install the view with the first hook of all: later ones come after the import of Warren by plugins and conftest."""
    install()
