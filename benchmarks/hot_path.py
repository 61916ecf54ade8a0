"""Comparison of two commits' hot paths: processor time per message in alternating runs.

Both commits are checked out, built and driven by the same load tool. A commit is slower if its median is more than 5 %
above the other's highest run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison.load_run import MeasurementError, measure
from benchmarks.comparison.results import Median
from benchmarks.comparison.workloads import CONFIRMED, PERSISTENT, Workload
from tests.support.broker_process import BrokerProcess

TOLERANCE = 1.05
WORKLOADS = (CONFIRMED, PERSISTENT)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-hot", description=__doc__)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="commit to compare with")
    parser.add_argument(
        "--head", default="HEAD", metavar="COMMIT", help="commit that is checked (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    compiled = not os.environ.get("PLAIN")
    try:
        commits = [_commit(options.base), _commit(options.head)]
    except ValueError as error:
        print(f"bench-hot: {error}", file=sys.stderr)
        return 2
    if options.head == "HEAD" and _git("status", "--porcelain", "--untracked-files=no"):
        print("bench-hot: uncommitted changes are not measured", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="warren-hot-") as name,
        _built(commits, Path(name), compiled) as sites,
    ):
        try:
            slower = _compare(sites, commits, options.runs, options.seconds, Path(name), compiled)
        except MeasurementError as error:
            print(f"bench-hot: {error}", file=sys.stderr)
            return 74
    return 1 if slower else 0


def _commit(name: str) -> str:
    """Return the hash of a commit.

    :raises ValueError: if the name is empty or not a commit
    """
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name or '?'}^{{commit}}")
    except subprocess.CalledProcessError:
        raise ValueError(f"{name!r} is not a commit: make bench-hot BASE=commit") from None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


@contextmanager
def _built(commits: list[str], folder: Path, compiled: bool) -> Iterator[list[Path]]:
    """Provide folders with the installed package of each commit."""
    sites = []
    trees = []
    try:
        for number, commit in enumerate(commits):
            tree, site = folder / f"tree-{number}", folder / f"site-{number}"
            _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
            trees.append(tree)
            pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            pip += ["--root-user-action=ignore", "--no-deps", "--target", str(site), str(tree)]
            subprocess.run(pip, check=True, env={**os.environ, "WARREN_COMPILE": "1" if compiled else "0"})
            sites.append(site)
        yield sites
    finally:
        for tree in trees:
            _git("worktree", "remove", "--force", str(tree))


def _compare(
    sites: list[Path], commits: list[str], runs: int, seconds: float, folder: Path, compiled: bool
) -> bool:
    names = [commit[:10] for commit in commits]
    print(
        f"{'compiled' if compiled else 'plain'} build, {runs} alternating runs of {seconds:g} s: µs per message"
    )
    print(f"{'':38}{names[0]:>24}{names[1]:>24}   change")
    slower = False
    for row in WORKLOADS:
        samples: list[list[float]] = [[], []]
        for run in range(runs):
            # Alternate the order, so that neither commit always finds the machine as the other left it.
            for side in (0, 1) if run % 2 == 0 else (1, 0):
                samples[side].append(
                    _run(sites, side, row, seconds, folder / f"data-{row.name}-{run}-{side}")
                )
        base, head = Median.of(samples[0]), Median.of(samples[1])
        worse = head.middle > base.highest * TOLERANCE
        slower = slower or worse
        verdict = f"{(head.middle / base.middle - 1) * 100:+7.1f} %{'  SLOWER' if worse else ''}"
        print(f"{row.name:38}{f'{base:.2f}':>24}{f'{head:.2f}':>24} {verdict}", flush=True)
    return slower


def _run(sites: list[Path], side: int, row: Workload, seconds: float, data: Path) -> float:
    environments = [{"PYTHONPATH": str(site)} for site in sites]
    with BrokerProcess(data, env=environments[side]) as broker:
        # The second commit's load tool drives both brokers, so that only the brokers differ.
        return measure(sys.executable, broker.url, broker.pid, row, seconds, env=environments[1]).microseconds


if __name__ == "__main__":
    sys.exit(main())
