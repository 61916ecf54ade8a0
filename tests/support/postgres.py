"""A private PostgreSQL: its own free loopback port and folder, unprivileged, fast because nothing of it need last.

initdb refuses root, so under root it runs as its package's user `postgres`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import PATIENCE, wait_until
from tests.support.processes import Child, free_port

USER = "postgres"
ROLE = "warren"

NEW_CLUSTER = [
    *("-U", ROLE, "-A", "trust", "-E", "UTF8"),
    *("--locale=C", "--no-sync", "--no-instructions"),
]
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "32MB",
    # A crash of the machine may take it all; what a crash of the server leaves, the system's cache has.
    "fsync": "off",
    "full_page_writes": "off",
}


class PostgreSQL:
    """A server that can be stopped, killed and started again on its folder and port."""

    def __init__(self, folder: Path, port: int, settings: Sequence[str]) -> None:
        self.url = f"postgresql://{ROLE}@127.0.0.1:{port}/postgres"
        self._folder = folder
        self._port = port
        options = {**SETTINGS, "port": str(port), "unix_socket_directories": str(folder)}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        words += [word for setting in settings for word in ("-c", setting)]
        self._command = [_program("postgres"), "-D", str(folder / "data"), *words]
        self._server: Child | None = None

    @property
    def running(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        """Start the broker and wait until it accepts connections."""
        assert self._server is None, "PostgreSQL runs already"
        server = self._server = Child(_unprivileged(self._command), cwd=self._folder)
        wait_until(lambda: self._answers() or not server.running, "PostgreSQL accepts connections")
        assert server.running, server.errors

    def stop(self) -> None:
        """Shut it down: sessions are ended, what they had not committed is rolled back."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End it at once, in the middle of whatever it does; its next start recovers (immediate shutdown)."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None and server.running:
            os.kill(server.pid, number)
            server.wait(PATIENCE)

    def _answers(self) -> bool:
        """Return whether the server accepts sessions; while it recovers, it answers with error 57P03."""
        startup = b"\x00\x03\x00\x00user\x00%s\x00database\x00postgres\x00\x00" % ROLE.encode()
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as client:
                client.sendall((len(startup) + 4).to_bytes(4, "big") + startup)
                answered = client.recv(1) == b"R"
                client.sendall(b"X\x00\x00\x00\x04")
                return answered
        except OSError:
            return False


def installed() -> bool:
    """Return whether this machine has Debian's postgresql, which `make test` installs."""
    return _programs() is not None


@contextmanager
def postgres_server(*settings: str) -> Iterator[PostgreSQL]:
    """Run one for as long as the block lasts.

    :param settings: further ones, as `name=value`; they win
    :raises FileNotFoundError: if it is not installed (`make test` installs it)
    """
    # Not one of pytest's folders: they are closed to other users, and this one belongs to the server's.
    with tempfile.TemporaryDirectory(prefix="warren-postgres-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        made = subprocess.run(
            _unprivileged([_program("initdb"), "-D", str(folder / "data"), *NEW_CLUSTER]),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        server = PostgreSQL(folder, free_port(), settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _programs() -> Path | None:
    """Return the newest version's folder: Debian keeps several side by side, outside the path."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def _program(name: str) -> str:
    programs = _programs()
    if programs is None:
        raise FileNotFoundError("PostgreSQL is not installed: make test, or apt-get install postgresql")
    return str(programs / name)


def _unprivileged(command: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return command
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *command]
