"""Debian's rabbitmq-server, started by hand: own ports, own folder, loopback only, unprivileged.

RabbitMQ refuses root, so under root it runs as its package's user `rabbitmq`. Its epmd is a child as well,
on a port of its own: nothing is left running.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import wait_until
from tests.support.processes import Child, free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CTL = SERVER.with_name("rabbitmqctl")
USER = "rabbitmq"

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.relative = 0.4
log.file.level = warning
handshake_timeout = 120000
"""
"""On a busy machine, a client may stand still for longer than the default of ten seconds."""


class RabbitMQ:
    """A running server: where it listens, and the process that does its work."""

    def __init__(
        self, url: str, port: int, pid: int, environment: Mapping[str, str], management_port: int
    ) -> None:
        self.url = url
        self.management_url = f"http://127.0.0.1:{management_port}"
        """Of its HTTP API, if it has the plugin `rabbitmq_management`."""
        self.port = port
        self.pid = pid
        self._environment = environment

    @property
    def folder(self) -> Path:
        """Folder that RabbitMQ's user may read and write."""
        return Path(self._environment["HOME"])

    def command(self) -> list[str]:
        """Return the shell command that runs `rabbitmqctl`."""
        return ["env", *(f"{k}={v}" for k, v in self._environment.items()), *_unprivileged([str(CTL)])]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`rabbitmqctl WORDS`: its status and all that it says. It takes from a third of a second to two."""
        return subprocess.run(
            _unprivileged([str(CTL), *words]),
            env={**os.environ, **self._environment},
            cwd=self._environment["HOME"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ctl(self, *words: str) -> str:
        """Run `rabbitmqctl` with these words; return its output."""
        done = self.run("--quiet", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def installed() -> bool:
    """Return whether this machine has Debian's rabbitmq-server, which `make test` installs."""
    return SERVER.exists() and shutil.which("epmd") is not None


@contextmanager
def rabbitmq_server(
    timeout: float = 90.0,
    *,
    configuration: Sequence[str] = (),
    definitions: Mapping[str, object] | None = None,
    plugins: Sequence[str] = (),
    files: Mapping[str, Path] | None = None,
    ports: Sequence[int] = (),
) -> Iterator[RabbitMQ]:
    """Run one for as long as the block lasts; `guest:guest` on the virtual host `/`.

    :param configuration: further lines of rabbitmq.conf; `{folder}` stands for the server's folder
    :param definitions: what it loads when it starts: users, virtual hosts, permissions and the rest (then it makes no guest)
    :param files: copied into the server's folder under these names
    :param ports: of further listeners that `configuration` names; they are up when the block begins
    :param timeout: seconds until it must accept connections (5-7 on an idle machine)
    :raises FileNotFoundError: if it is not installed; ask `installed()` first
    """
    if not installed():
        raise FileNotFoundError("rabbitmq-server is not installed: apt-get install rabbitmq-server")
    port, epmd_port, management_port = free_port(), free_port(), free_port()
    # Not one of pytest's folders: they are closed to other users, and this one belongs to the server's.
    with tempfile.TemporaryDirectory(prefix="warren-rabbitmq-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "rabbitmq.conf").write_text(CONFIGURATION.format(port=port))
        lines = [line.replace("{folder}", name) for line in configuration]
        if "rabbitmq_management" in plugins:
            lines += [f"management.tcp.port = {management_port}", "management.tcp.ip = 127.0.0.1"]
        if definitions is not None:
            (folder / "definitions.json").write_text(json.dumps(definitions))
            lines.append(f"load_definitions = {folder / 'definitions.json'}")
        with (folder / "rabbitmq.conf").open("a") as conf:
            conf.write("".join(line + "\n" for line in lines))
        for target, source in (files or {}).items():
            shutil.copy(source, folder / target)
        (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, USER)
        environment = _environment(folder, epmd_port)
        with Child(
            _unprivileged(["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)]), cwd=folder
        ) as epmd:
            wait_until(lambda: _listens(epmd_port) or not epmd.running, "epmd listens")
            with Child(_unprivileged([str(SERVER)]), env=environment, cwd=folder) as server:
                wait_until(lambda: _listens(port) or not server.running, "RabbitMQ listens", timeout)
                assert server.running, "\n".join(server.lines[-40:]) + server.errors
                wait_until(lambda: _answers(port), "RabbitMQ speaks AMQP", timeout)
                wait_until(lambda: all(map(_listens, ports)), f"RabbitMQ listens on {ports}", timeout)
                pid = _beam(folder, server.pid)
                yield RabbitMQ(
                    f"amqp://guest:guest@127.0.0.1:{port}/", port, pid, environment, management_port
                )


def _environment(folder: Path, epmd_port: int) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"warren{epmd_port}@localhost",
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


def _unprivileged(command: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return command
    # No login shell, and the environment stays: only the user changes.
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *command]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(port: int) -> bool:
    """Return whether the server answers a protocol header with a method: its port opens earlier."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            return client.recv(1) == b"\x01"
    except OSError:
        return False


def _beam(folder: Path, launcher: int) -> int:
    text = (folder / "pid").read_text().strip() if (folder / "pid").exists() else ""
    return int(text) if text else launcher
