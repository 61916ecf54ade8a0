"""Run the order service and the patterns on a cluster of three RabbitMQ nodes while faults strike them.

python -m tests.faults.cluster --faults 50 [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.faults.cluster.node_faults import NodeFault, schedule
from tests.faults.cluster.report import report_of
from tests.faults.cluster.run import ClusterRunFailed, run_on_cluster
from tests.support.rabbitmq_cluster import rabbitmq_cluster
from warren.core.errors import ExitStatus

IN_NAMESPACE = "WARREN_CLUSTER_NAMESPACE"
"""Environment variable that is set in the network namespace of the run."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=__doc__)
    parser.add_argument("--faults", type=int, default=4, help="number of faults (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the schedule (default: the time)"
    )
    parser.add_argument(
        "--fault", choices=[kind.value for kind in NodeFault], help="inject only this fault (default: all)"
    )
    parser.add_argument("--results", type=Path, help="file that the results are written to, in Markdown")
    options = parser.parse_args(arguments)
    if IN_NAMESPACE not in os.environ:
        # Partitions need routing rules, which are those of a whole network namespace: not the machine's.
        command = [sys.executable, "-m", "tests.faults.cluster", *arguments]
        enter = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        return subprocess.run(
            [*enter, *command], env={**os.environ, IN_NAMESPACE: "1"}, check=False
        ).returncode
    # Failing handlers and lost connections are part of the run; their log lines are noise.
    logging.basicConfig(handlers=[logging.NullHandler()])
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - began:.0f} s: {line}", flush=True)

    random = Random(options.seed)
    kinds = [NodeFault(options.fault)] if options.fault else list(NodeFault)
    faults = schedule(random, options.faults, kinds)
    with rabbitmq_cluster(configuration=["queue_leader_locator = balanced"]) as cluster:
        progress(f"three nodes of RabbitMQ {cluster.version} form a cluster")
        with tempfile.TemporaryDirectory(prefix="warren-cluster-run-") as name:
            try:
                run = asyncio.run(run_on_cluster(cluster, random, faults, Path(name), progress))
            except ClusterRunFailed as error:
                print(f"cluster: seed {options.seed}: {error}", file=sys.stderr)
                return ExitStatus.FAILED
    text = report_of(run, options.faults, options.seed, time.monotonic() - began)
    print(text)
    if options.results is not None:
        options.results.write_text(text)
    return ExitStatus.SUCCESS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
