"""The data source on a real standalone cluster, from a separate driver and through Spark Connect."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.spark.captured_events import Source, batches, published
from tests.spark.conftest import Message, audit_queue
from tests.spark.dead_letter_data import NOON, Death
from tests.spark.order_data import expected, generated, messages_of_order
from tests.spark.test_stream_source import Stream, declare_stream
from tests.support.processes import Child
from tests.support.python_environments import python_elsewhere
from tests.support.spark_cluster import SparkCluster
from warren.pipeline.jobs.registry import JOBS
from warren.pipeline.version_check import own_version

# Several Javas start on what may be a busy machine.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
MESSAGES = 200
PATIENCE = 350
ORDERS = generated(40, seed=3)
EXPECTED = expected(ORDERS, ())
OUTCOMES = ("paid_in_time", "paid_late", "cancelled")
LETTERS = 12
EVENTS = 30
SECRET = "not-to-be-seen"
ROOT = Path(__file__).parents[2]

Results = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with SparkCluster(folder / "cluster", python=switchable_python(folder), patience=PATIENCE) as started:
        yield started


def switchable_python(folder: Path) -> Path:
    """Return the interpreter that executors start; the variable MACHINE selects another one, as on another machine.

    Drivers and the Connect server start it too, to plan; SPARK_EXECUTOR_DIRS is set where an executor starts it.
    """
    lacking: dict[str, tuple[str, ...]] = {"without_warren": (), "without_pyarrow": ("pyarrow",)}
    cases = "".join(
        f'{machine}) exec {shlex.quote(str(python_elsewhere(folder / machine, None, *packages)))} "$@" ;;\n'
        for machine, packages in lacking.items()
    )
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\ncase "${{SPARK_EXECUTOR_DIRS:+$MACHINE}}" in\n{cases}esac\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def stream(amqp_url: str) -> Stream:
    made = declare_stream(amqp_url)
    made.numbers(0, MESSAGES - 1)
    return made


@pytest.fixture(scope="module")
def stream_of_jobs(amqp_url: str) -> Stream:
    """Publish messages for every job: orders, dead letters, captured events."""
    made = declare_stream(amqp_url)
    letters = [
        Message(b"", pika.BasicProperties(message_id=death.message_id, headers=death.sdk_headers()))
        for death in (
            Death("bills", "failed", NOON, f"letter {number}", by="sdk") for number in range(LETTERS)
        )
    ]
    source = Source("broker")
    for number in range(EVENTS):
        source.record(
            "published",
            number * 1000,
            f"message {number}",
            size=10,
            exchange="",
            routing_key="orders",
            queue="orders",
        )
    events = [Message(*published(batch)) for batch in batches([source])]
    made.publish([*(message for order in ORDERS for message in messages_of_order(order)), *letters, *events])
    return made


def run(cluster: SparkCluster, master: str, stream: Stream, folder: Path, *steps: str, **env: str) -> Results:
    """Run steps of `tests.spark.cluster_steps`, and return their results."""
    env = {
        **cluster.env,
        **env,
        "AMQP_URL": f"{stream.url}?secret={SECRET}",
        "STREAM": stream.name,
        "FOLDER": str(folder),
    }
    with Child(
        [sys.executable, "-W", "ignore", "-m", "tests.spark.cluster_steps", master, *steps], env=env, cwd=ROOT
    ) as child:
        assert child.wait(PATIENCE) == 0, child.errors[-4000:]
        assert SECRET not in child.errors
        printed = [json.loads(line) for line in child.lines if line.startswith("{")]
    return {result["step"]: result.get("result", result.get("error")) for result in printed}


@pytest.fixture(scope="module")
def on_cluster(
    cluster: SparkCluster, stream: Stream, stream_of_jobs: Stream, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    folder = tmp_path_factory.mktemp("on-cluster")
    with audit_queue(stream.url) as queue:
        names = {"QUEUE": queue.name, "STREAM_OF_JOBS": stream_of_jobs.name}
        steps = (
            "batch",
            "continuous",
            "publish_and_read",
            "order_timeouts",
            "without_warren",
            "without_pyarrow",
        )
        return run(cluster, cluster.master, stream, folder, *steps, **names)


@pytest.fixture(scope="module")
def through_connect(
    cluster: SparkCluster, stream: Stream, stream_of_jobs: Stream, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    folder = tmp_path_factory.mktemp("through_connect")
    with audit_queue(stream.url) as queue:
        names = {"QUEUE": queue.name, "STREAM_OF_JOBS": stream_of_jobs.name}
        return run(
            cluster,
            cluster.serve_connect(),
            stream,
            folder,
            "jobs",
            "batch",
            "continuous",
            "publish_and_read",
            **names,
        )


@pytest.fixture(params=["on_cluster", "through_connect"])
def results(request: pytest.FixtureRequest) -> Results:
    found: Results = request.getfixturevalue(request.param)
    return found


SUM = sum(range(MESSAGES))


def test_a_range_is_read_by_several_tasks_without_registering_the_format(results: Results) -> None:
    assert results["batch"] == [MESSAGES, 4, SUM]


def test_a_continuous_read_continues_from_its_checkpoint(results: Results) -> None:
    assert results["continuous"] == [MESSAGES, MESSAGES, SUM]


def test_rows_are_published_by_the_executors(results: Results) -> None:
    assert results["publish_and_read"] == [100, sum(range(100)), 100]


def test_every_job_runs_through_connect(through_connect: Results) -> None:
    assert through_connect["jobs"].keys() == JOBS.keys()
    orders = through_connect["jobs"]["order-timeouts"]
    assert {name: orders[name] for name in OUTCOMES} == {name: EXPECTED[name] for name in OUTCOMES}
    assert through_connect["jobs"]["dead-letters"]["deaths"] == LETTERS


def test_a_continuous_job_runs_on_a_master(on_cluster: Results) -> None:
    orders = on_cluster["order_timeouts"]
    assert {name: orders[name] for name in OUTCOMES} == {name: EXPECTED[name] for name in OUTCOMES}


def test_executors_without_warren_are_reported(on_cluster: Results) -> None:
    assert "lacks warren: install warrenmq[spark]==" + own_version() in on_cluster["without_warren"]
    assert "\n" not in on_cluster["without_warren"]


def test_executors_without_pyarrow_are_reported(on_cluster: Results) -> None:
    advice = (
        f"the Python of an executor lacks pyarrow: install warrenmq[spark]=={own_version()} on every executor"
    )
    assert on_cluster["without_pyarrow"].startswith(advice)


def test_no_log_shows_the_url(cluster: SparkCluster, on_cluster: Results, through_connect: Results) -> None:
    logs = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert [path for path in logs if path.name == "stderr"], "executors write no logs"
    shown = [path for path in logs if SECRET in path.read_text(errors="replace")]
    assert shown == []
    assert not [text for text in cluster.logs() if SECRET in text]
