"""Debian's rabbitmq-server, started by hand: own ports, own folder, loopback only, unprivileged.

RabbitMQ refuses root, so under root it runs as its package's user `rabbitmq`. Its epmd is a child as well,
on a port of its own: nothing is left running.

Version 3.10 is the package of Debian 12. Version 4.3 is that of a newer Debian: it is installed on such a machine, or
`.ci/rabbitmq4` has put it into a folder with a root file system of its own, in which root can run it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import PATIENCE, wait_until
from tests.support.processes import Child, free_port

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
CTL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
USER = "rabbitmq"
VERSIONS = ("4.3", "3.10")
INSTALLED_IN = Path(__file__).parents[2] / ".ci/rabbitmq4"
"""Script that installs version 4.3 into a folder, and prints the folder's path."""
PRIVATE_MOUNTS = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$@"'
"""Shell commands that enter a root file system. Their mounts are private to the process, and gone with it."""

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.relative = 0.4
log.file.level = warning
handshake_timeout = 120000
"""
"""On a busy machine, a client may stand still for longer than the default of ten seconds."""

DEAD_LETTER_RETRY = "-rabbit dead_letter_worker_publisher_confirm_timeout 10000"
"""Milliseconds after which at-least-once dead-lettering tries a message again that had no target. The default is three
minutes."""


class Installation:
    """An installed RabbitMQ.

    :param root: folder of its root file system; `/` for a package of this machine.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def version(self) -> str:
        """Version, such as `4.3.6`; empty if it is not installed."""
        found = sorted((self.root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return found[-1].name.partition("-")[2] if found and (self.root / SERVER[1:]).exists() else ""

    @property
    def scratch(self) -> Path | None:
        """Folder for the folders of servers, which must be inside of the root file system; None for the system's own."""
        return None if self.root == Path("/") else self.root / "tmp"

    def inside(self, path: Path) -> str:
        """Return a path as a process within the root file system sees it."""
        return str(Path("/") / path.relative_to(self.root))

    def command(self, *words: str) -> list[str]:
        """Return the command that runs a program of the installation as an unprivileged user."""
        if self.root != Path("/"):
            user = f"--userspec={USER}:{USER}"
            enter = ["unshare", "--mount", "sh", "-c", PRIVATE_MOUNTS, str(self.root)]
            return [*enter, user, str(self.root), *words]
        if os.geteuid() != 0:
            return list(words)
        # No login shell, and the environment stays: only the user changes.
        return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *words]


class RabbitMQ:
    """A running server: where it listens, and the process that does its work."""

    def __init__(
        self,
        installation: Installation,
        url: str,
        port: int,
        pid: int,
        environment: Mapping[str, str],
        management_port: int,
    ) -> None:
        self.version = installation.version
        self.url = url
        self._installation = installation
        self.management_url = f"http://127.0.0.1:{management_port}"
        """Of its HTTP API, if it has the plugin `rabbitmq_management`."""
        self.port = port
        self.pid = pid
        self._environment = environment
        self._restarted: Child | None = None

    @property
    def folder(self) -> Path:
        """Folder that RabbitMQ's user may read and write."""
        return self._installation.root / self._environment["HOME"][1:]

    def inside(self, path: Path) -> str:
        """Return a path in `folder` as the server and `rabbitmqctl` see it."""
        return self._installation.inside(path)

    def kill(self) -> None:
        """Kill the server, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not listens(self.port), "RabbitMQ is gone")
        if self._restarted is not None:
            self._restarted.kill()

    def start(self, timeout: float = 90.0) -> None:
        """Start the server again on its folder; `stop` ends it."""
        (self.folder / "pid").unlink(missing_ok=True)
        server = Child(self._installation.command(SERVER), env=self._environment, cwd=self.folder)
        self._restarted = server
        wait_until(lambda: listens(self.port) or not server.running, "RabbitMQ listens again", timeout)
        assert server.running, "\n".join(server.lines[-40:]) + server.errors
        wait_until(lambda: answers(self.port), "RabbitMQ speaks AMQP again", timeout)
        self.pid = beam_pid(self.folder, server.pid)

    def stop(self) -> None:
        """Stop the server if `start` has started it again."""
        if self._restarted is not None:
            self._restarted.stop()

    def command(self) -> list[str]:
        """Return the shell command that runs `rabbitmqctl`."""
        return ["env", *(f"{k}={v}" for k, v in self._environment.items()), *self._installation.command(CTL)]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`rabbitmqctl WORDS`: its status and all that it says. It takes from a third of a second to two."""
        return subprocess.run(
            self._installation.command(CTL, *words),
            env={**os.environ, **self._environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def ctl(self, *words: str) -> str:
        """Run `rabbitmqctl` with these words; return its output."""
        done = self.run("--quiet", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def find_installation(version: str = "3.10") -> Installation | None:
    """Return the installed RabbitMQ of a version; None if there is none that this user can run.

    :param version: one of VERSIONS.
    """
    here = Installation(Path("/"))
    if f"{here.version}.".startswith(f"{version}.") and shutil.which("epmd") is not None:
        return here
    if os.geteuid() == 0 and shutil.which("unshare") is not None:
        folder = subprocess.run([INSTALLED_IN, "folder"], capture_output=True, text=True, check=True).stdout
        beside = Installation(Path(folder.strip()))
        if f"{beside.version}.".startswith(f"{version}."):
            return beside
    return None


def installed(version: str = "3.10") -> bool:
    """Return whether this machine has a RabbitMQ of a version, which `make conformance` installs."""
    return find_installation(version) is not None


@contextmanager
def rabbitmq_server(
    timeout: float = 240.0,
    *,
    configuration: Sequence[str] = (),
    definitions: Mapping[str, object] | None = None,
    plugins: Sequence[str] = (),
    files: Mapping[str, Path] | None = None,
    ports: Sequence[int] = (),
    version: str = "3.10",
) -> Iterator[RabbitMQ]:
    """Run one for as long as the block lasts; `guest:guest` on the virtual host `/`.

    :param configuration: further lines of rabbitmq.conf; `{folder}` stands for the server's folder
    :param definitions: what it loads when it starts: users, virtual hosts, permissions and the rest (then it makes no guest)
    :param files: copied into the server's folder under these names
    :param ports: of further listeners that `configuration` names; they are up when the block begins
    :param timeout: seconds until it must accept connections (5-20 on an idle machine)
    :param version: one of VERSIONS
    :raises FileNotFoundError: if it is not installed; ask `installed()` first
    """
    installation = find_installation(version)
    if installation is None:
        raise FileNotFoundError(f"RabbitMQ {version} is not installed: .ci/system rabbitmq rabbitmq4")
    port, epmd_port, management_port = free_port(), free_port(), free_port()
    # Not one of pytest's folders: they are closed to other users, and this one belongs to the server's.
    with tempfile.TemporaryDirectory(
        prefix="warren-rabbitmq-", dir=installation.scratch, ignore_cleanup_errors=True
    ) as name:
        folder, inside = Path(name), Path(installation.inside(Path(name)))
        (folder / "rabbitmq.conf").write_text(CONFIGURATION.format(port=port))
        lines = [line.replace("{folder}", str(inside)) for line in configuration]
        if "rabbitmq_management" in plugins:
            lines += [f"management.tcp.port = {management_port}", "management.tcp.ip = 127.0.0.1"]
        if definitions is not None:
            (folder / "definitions.json").write_text(json.dumps(definitions))
            lines.append(f"load_definitions = {inside / 'definitions.json'}")
        with (folder / "rabbitmq.conf").open("a") as conf:
            conf.write("".join(line + "\n" for line in lines))
        for target, source in (files or {}).items():
            shutil.copy(source, folder / target)
        (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                give_to_user(path, installation)
        environment = _environment(inside, epmd_port)
        epmd_command = installation.command("epmd", "-address", "127.0.0.1", "-port", str(epmd_port))
        with Child(epmd_command, cwd=folder) as epmd:
            wait_until(lambda: listens(epmd_port) or not epmd.running, "epmd listens")
            with Child(installation.command(SERVER), env=environment, cwd=folder) as server:
                wait_until(lambda: listens(port) or not server.running, "RabbitMQ listens", timeout)
                assert server.running, "\n".join(server.lines[-40:]) + server.errors
                wait_until(lambda: answers(port), "RabbitMQ speaks AMQP", timeout)
                wait_until(lambda: all(map(listens, ports)), f"RabbitMQ listens on {ports}", timeout)
                pid = beam_pid(folder, server.pid)
                url = f"amqp://guest:guest@127.0.0.1:{port}/"
                running = RabbitMQ(installation, url, port, pid, environment, management_port)
                try:
                    yield running
                finally:
                    running.stop()


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
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} {DEAD_LETTER_RETRY}",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


def give_to_user(path: Path, installation: Installation) -> None:
    """Give a file to RabbitMQ's user, whose number another root file system may have chosen differently."""
    owner = (installation.root / "var/lib/rabbitmq").stat()
    os.chown(path, owner.st_uid, owner.st_gid)


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether a process accepts connections at an address."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def answers(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether the server answers a protocol header with a method: its port opens earlier."""
    try:
        with socket.create_connection((address, port), timeout=2) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            return client.recv(1) == b"\x01"
    except OSError:
        return False


def beam_pid(folder: Path, launcher: int) -> int:
    """Return the process id that a server wrote into its folder; that of its launcher if it has not yet."""
    text = (folder / "pid").read_text().strip() if (folder / "pid").exists() else ""
    return int(text) if text else launcher
