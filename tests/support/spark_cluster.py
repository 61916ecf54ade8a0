"""A standalone Spark cluster on this machine: one master, two workers, and a Spark Connect server if one is asked for.

All of it listens on loopback only and is ended by its own process ids.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from urllib.request import urlopen

import pyspark

from tests.support.polling import wait_until
from tests.support.processes import Child, free_port
from tests.support.python_environments import warren_roots

HOME = Path(pyspark.__file__).parent
WORKERS = 2
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Everything here lasts seconds to minutes: the compiler's first tier and one thread of collection cost the least."""

DEFAULTS = {
    # An application gets an executor on each worker, and another one beside it finds room.
    "spark.cores.max": str(WORKERS),
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.executor.extraJavaOptions": LIGHT,
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": str(WORKERS),
}
"""Content of spark-defaults.conf for applications, as an operator would write it."""


class SparkCluster:
    """One master and two workers. Leaving the `with` block stops them, their executors, and the Connect server."""

    def __init__(self, folder: Path, *, python: str | Path = sys.executable, patience: float = 240.0) -> None:
        """
        :param folder: for its logs, its workers' folders and its settings
        :param python: what its applications run in executors, unless they say otherwise
        :param patience: seconds that it may take to start
        """
        self.folder = folder
        self.master = ""
        self._patience = patience
        self._stack = ExitStack()
        self._workers: list[Child] = []
        self._children: list[Child] = []
        conf = folder / "conf"
        conf.mkdir(parents=True)
        settings = "".join(f"{name} {value}\n" for name, value in DEFAULTS.items())
        (conf / "spark-defaults.conf").write_text(settings)
        self.env: Mapping[str, str] = {
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": LIGHT,
            "SPARK_LAUNCHER_OPTS": LIGHT,
            "PYSPARK_PYTHON": str(python),
            # What is installed as a package of a checkout is found by a hook, and Spark lists folders.
            "PYTHONPATH": ":".join(map(str, warren_roots())),
        }
        """Environment variables that an application on this cluster needs."""

    def __enter__(self) -> SparkCluster:
        with self._stack:
            port, page = free_port(), free_port()
            self.master = f"spark://127.0.0.1:{port}"
            self._start("master.Master", "--port", str(port), "--webui-port", str(page))
            for number in range(WORKERS):
                room = self.folder / f"worker-{number}"
                words = ("--cores", "2", "--memory", "2g", "--webui-port", "0", "--work-dir", str(room))
                self._workers.append(self._start("worker.Worker", *words, self.master))

            def complete() -> bool:
                try:
                    with urlopen(f"http://127.0.0.1:{page}/json/", timeout=10) as response:
                        return bool(json.load(response)["aliveworkers"] == WORKERS)
                except (OSError, ValueError):  # It answers before it has its pages.
                    return False

            wait_until(complete, f"a Spark master knows {WORKERS} workers", self._patience)
            self._stack = self._stack.pop_all()
        return self

    def _start(self, service: str, *words: str) -> Child:
        command = (HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{service}", "--host", "127.0.0.1")
        return self._child([*command, *words], self.env)

    def _child(self, command: Sequence[str | Path], env: Mapping[str, str]) -> Child:
        child = self._stack.enter_context(Child(command, env=env))
        self._children.append(child)
        return child

    def serve_connect(self) -> str:
        """Start a Spark Connect server whose application runs on this cluster: its URL."""
        port = free_port()
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            # One executor does for what comes this way.
            "spark.cores.max": "1",
        }
        words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        # It is a driver: as a daemon it would get a daemon's memory.
        env = {**self.env, "SPARK_DAEMON_MEMORY": DEFAULTS["spark.driver.memory"]}
        command = (HOME / "bin" / "spark-class", "org.apache.spark.deploy.SparkSubmit", "--class", server)
        child = self._child([*command, "--master", self.master, *words], env)

        def listens() -> bool:
            assert child.running, f"the Connect server has ended:\n{child.errors[-4000:]}"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, "the Connect server listens", self._patience)
        return f"sc://127.0.0.1:{port}"

    def logs(self) -> list[str]:
        """Return the logs of master, workers and Connect server so far."""
        return [child.errors for child in self._children]

    def executors(self) -> list[int]:
        """Return the process ids of all executors, of whichever application."""
        return [
            pid
            for worker in self._workers
            for pid in children(worker.pid)
            if b"CoarseGrainedExecutorBackend" in command_line(pid)
        ]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def children(pid: int) -> list[int]:
    """Return the living processes that this one has started (Linux)."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []
    found: list[int] = []
    for task in tasks:
        try:
            found += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def command_line(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended (Linux)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def kill(pid: int) -> None:
    """SIGKILL to this process alone, as the kernel does when memory runs out."""
    os.kill(pid, signal.SIGKILL)
