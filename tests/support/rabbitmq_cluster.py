"""Cluster of three RabbitMQ nodes on loopback addresses of their own, with an epmd of its own: nothing is left running.

In a network namespace that the caller has entered alone, `RabbitMQCluster.partition` drops the traffic between nodes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import wait_until
from tests.support.processes import Child, free_port
from tests.support.rabbitmq import (
    CONFIGURATION,
    CTL,
    SERVER,
    Installation,
    answers,
    beam_pid,
    find_installation,
    give_to_user,
    listens,
)

NODES = 3
START_SECONDS = 600.0
"""Time in which a node must answer: three start side by side, on a machine that may be busy."""
PLUGINS = ("rabbitmq_consistent_hash_exchange",)
PARTITION_RULE = 10
"""Priority of the routing rules that drop traffic: before that of the table `local`."""
LOCAL_RULE = 100
"""Priority that the rule of the table `local` moves to. Linux gives it 0, before all others."""

FORMATION = """\
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.target_cluster_size_hint = {count}
"""


class ClusterNode:
    """A node of a cluster: its addresses, and its process while it runs."""

    def __init__(self, installation: Installation, number: int, folder: Path, epmd_port: int) -> None:
        self.number = number
        self.address = f"127.0.0.{10 + number}"
        self.host = f"node{number}"
        self.name = f"warren{number}@{self.host}"
        self.port = free_port()
        self.url = f"amqp://guest:guest@{self.address}:{self.port}/"
        self.folder = folder
        self._installation = installation
        inside = installation.inside(folder)
        address = self.address.replace(".", ",")
        self._environment = {
            "HOME": inside,
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_BASE": inside,
            "RABBITMQ_MNESIA_BASE": f"{inside}/mnesia",
            "RABBITMQ_LOG_BASE": f"{inside}/log",
            "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/enabled_plugins",
            "RABBITMQ_PID_FILE": f"{inside}/pid",
            "RABBITMQ_DIST_PORT": str(free_port()),
            # Both ends of a connection between nodes have a node's address, so that a rule can tell the nodes apart.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{{address}}} "
            f"-kernel inet_dist_connect_options [{{ip,{{{address}}}}}]",
            "ERL_INETRC": f"{inside}/inetrc",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self._process: Child | None = None
        self._paused = False

    def write_files(self, nodes: Sequence[ClusterNode], configuration: Sequence[str]) -> None:
        """Write the files that the node starts with."""
        lines = CONFIGURATION.format(port=self.port).replace("127.0.0.1:", f"{self.address}:")
        lines += FORMATION.format(count=len(nodes))
        for node in nodes:
            lines += f"cluster_formation.classic_config.nodes.{node.number} = {node.name}\n"
        lines += "".join(f"{line}\n" for line in configuration)
        self.folder.mkdir()
        hosts = [f'{{host, {{{node.address.replace(".", ",")}}}, ["{node.host}"]}}.\n' for node in nodes]
        contents = {
            "rabbitmq.conf": lines,
            "enabled_plugins": f"[{','.join(PLUGINS)}].\n",
            "inetrc": "".join(hosts) + '{host, {127,0,0,1}, ["localhost"]}.\n{lookup, [file, native]}.\n',
            ".erlang.cookie": "warren-cluster",
        }
        for name, text in contents.items():
            (self.folder / name).write_text(text)
        (self.folder / ".erlang.cookie").chmod(0o400)
        for path in (self.folder, *self.folder.iterdir()):
            give_to_user(path, self._installation)

    @property
    def running(self) -> bool:
        """True unless the node is stopped or was killed; a paused node runs."""
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start the process; return without waiting until it answers."""
        (self.folder / "pid").unlink(missing_ok=True)
        self._process = Child(self._installation.command(SERVER), env=self._environment, cwd=self.folder)

    def wait_ready(self) -> None:
        """Wait until the node accepts connections."""
        process = self._process
        assert process is not None, f"{self.name} was not started"
        wait_until(lambda: self.answers() or not process.running, f"{self.name} answers", START_SECONDS)
        assert process.running, "\n".join(process.lines[-40:]) + process.errors

    def answers(self) -> bool:
        """Return whether the node answers a protocol header with a method."""
        return answers(self.port, self.address)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """Stop the node in an orderly way: it moves its leaders away and closes its connections."""
        self.resume()
        if self._process is not None:
            self._process.stop()

    def pause(self) -> None:
        """Freeze the process with SIGSTOP."""
        os.kill(beam_pid(self.folder, 0), signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a frozen process go on."""
        if self._paused:
            self._paused = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(beam_pid(self.folder, 0), signal.SIGCONT)

    def ctl(self, *words: str, program: str = CTL, timeout: float = 120.0) -> str:
        """Run `rabbitmqctl`, or another of the programs; return its output."""
        done = subprocess.run(
            self._installation.command(program, *words),
            env={**os.environ, **self._environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self) -> str:
        """Return the text of the node's log files."""
        return "".join(
            path.read_text(errors="replace") for path in sorted((self.folder / "log").glob("*.log"))
        )


class RabbitMQCluster:
    """Three nodes that form a cluster."""

    def __init__(self, nodes: Sequence[ClusterNode], version: str) -> None:
        self.nodes = tuple(nodes)
        self.version = version
        self._rules: list[list[str]] = []

    @property
    def url(self) -> str:
        """URLs of all nodes, with commas, as `App` and `AMQP_URL` take them."""
        return ",".join(node.url for node in self.nodes)

    def wait_ready(self) -> None:
        """Wait until each node answers. A node opens its port when it is a member of the cluster."""
        for node in self.nodes:
            node.wait_ready()

    def members(self) -> int:
        """Return how many nodes run, as the first of them sees it. It takes seconds, on a busy machine many."""
        return self.nodes[0].ctl("--quiet", "eval", "rabbit_nodes:list_running().").count("@")

    def partition(self, node: ClusterNode) -> None:
        """Drop all traffic between a node and the others; clients still reach each of them.

        The process must be in a network namespace of its own: the routing rules are those of the whole namespace.
        """
        if "100:" not in _ip("rule"):
            _ip("rule", "add", "pref", str(LOCAL_RULE), "lookup", "local")
            _ip("rule", "del", "pref", "0")
        for other in self.nodes:
            if other is not node:
                for source, target in ((node, other), (other, node)):
                    words = [
                        "pref",
                        str(PARTITION_RULE),
                        "from",
                        source.address,
                        "to",
                        target.address,
                        "blackhole",
                    ]
                    _ip("rule", "add", *words)
                    self._rules.append(words)

    def heal(self) -> None:
        """End the partition."""
        while self._rules:
            _ip("rule", "del", *self._rules.pop())


@contextmanager
def rabbitmq_cluster(*, configuration: Sequence[str] = (), version: str = "4.3") -> Iterator[RabbitMQCluster]:
    """Run a cluster for as long as the block lasts; `guest:guest` on the virtual host `/`.

    :param configuration: further lines of each node's rabbitmq.conf
    :raises FileNotFoundError: if RabbitMQ is not installed
    """
    installation = find_installation(version)
    if installation is None:
        raise FileNotFoundError(f"RabbitMQ {version} is not installed: .ci/rabbitmq4 install")
    epmd_port = free_port()
    with (
        tempfile.TemporaryDirectory(
            prefix="warren-cluster-", dir=installation.scratch, ignore_cleanup_errors=True
        ) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        give_to_user(folder, installation)
        nodes = [
            ClusterNode(installation, number, folder / f"node{number}", epmd_port)
            for number in range(1, NODES + 1)
        ]
        cluster = RabbitMQCluster(nodes, installation.version)
        addresses = ",".join(["127.0.0.1", *(node.address for node in nodes)])
        command = installation.command("epmd", "-address", addresses, "-port", str(epmd_port))
        epmd = stack.enter_context(Child(command, cwd=folder))
        wait_until(lambda: listens(epmd_port) or not epmd.running, "epmd listens")
        for node in nodes:
            node.write_files(nodes, configuration)
            stack.callback(node.kill)
            node.start()
        stack.callback(cluster.heal)
        cluster.wait_ready()
        wait_until(lambda: cluster.members() == len(nodes), "the nodes form a cluster", START_SECONDS)
        yield cluster


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
