"""Command lines and files of the documentation."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.faults.migration.rehearsal import WarrenBroker
from tests.support.broker_process import BrokerProcess
from tests.support.example_programs import EXAMPLES, run
from tests.support.pika_connection import pika_connection
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.slow

DEPLOY = EXAMPLES / "deploy"


def script(name: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the examples in the folder of the shop, with the `warren` of these tests on its path."""
    command = folder / "bin" / "warren"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m warren.cli.dispatch "$@"\n')
    command.chmod(0o755)
    shutil.copy(EXAMPLES / "shop.py", folder)
    return subprocess.run(
        ["bash", str(EXAMPLES / name)],
        cwd=folder,
        env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_topology_as_data() -> None:
    done = run("topology")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "10 missing"
    assert lines[2] == "queue 'billing' differs: x-message-ttl is 3600000 on the broker and 7200000 here"
    assert any(line.startswith("loss: queue 'urgent' dead-letters at most once") for line in lines)


@pytest.mark.timeout(600)
def test_the_command_lines(warren: Command, broker: BrokerProcess, tmp_path: Path) -> None:
    done = script("command_line.sh", tmp_path, AMQP_URL=broker.url)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Messages that a worker had prefetched when it stopped are in the queue again.
    # Not by lines: two workers write to one output, and without buffering a line end is a separate write.
    billed = re.findall(r"billed \d+", done.stdout)
    kept = warren("ctl", "--data-dir", broker.data_dir, "list_queues", "name", "messages", "--json").json
    assert len(billed) + {each["name"]: each["messages"] for each in kept}["billing"] == 3
    assert "declared queue 'billing'" in lines
    assert "status 1" in lines
    assert json.loads((tmp_path / "shop.asyncapi.json").read_text())["info"]["title"] == "Shop"


@pytest.mark.timeout(600)
def test_the_move_to_rabbitmq(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    rabbitmq.ctl("add_vhost", "moved")
    rabbitmq.ctl("set_permissions", "-p", "moved", "guest", ".*", ".*", ".*")
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "rabbitmqctl"
    wrapper.write_text("#!/bin/sh\n" + shlex.join(rabbitmq.command()) + ' "$@"\n')
    wrapper.chmod(0o755)
    done = script(
        "move_to_rabbitmq.sh",
        tmp_path,
        RABBITMQ_URL=f"{rabbitmq.url}moved",
        RABBITMQ_MANAGEMENT_URL=rabbitmq.management_url,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 as declared, 0 missing, 0 different" in done.stdout
    with closing(pika_connection(f"{rabbitmq.url}moved")) as connection:
        asking = connection.channel()
        billed = done.stdout.count("billed 42")
        wait_until(
            lambda: billed + asking.queue_declare("billing", passive=True).method.message_count == 1,
            "the order was billed or waits",
        )


@pytest.mark.slow
@pytest.mark.processes
def test_the_migration(tmp_path: Path) -> None:
    with WarrenBroker(tmp_path / "source") as source, WarrenBroker(tmp_path / "target") as target:
        with closing(pika_connection(source.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            for number in range(3):
                channel.basic_publish("", "orders", b"%d" % number)
            channel.queue_declare("orders", passive=True)
        done = script(
            "migrate.sh",
            tmp_path,
            WARREN_MIGRATE_SOURCE=source.url,
            WARREN_MIGRATE_TARGET=target.url,
            SOURCE_API=source.management_url,
            TARGET_API=target.management_url,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "move classic queue 'orders': 3 ready, 0 unacknowledged, 0 consumers" in done.stdout
        assert done.stdout.splitlines()[-1] == "holds"
        with closing(pika_connection(target.url)) as connection:
            channel = connection.channel()
            found = [channel.basic_get("orders", auto_ack=True) for _ in range(3)]
            assert [body for _, _, body in found] == [b"0", b"1", b"2"]
            assert [each.headers["warren-migration-sequence"] for _, each, _ in found] == [1, 2, 3]


def test_the_systemd_unit_and_the_image_start_existing_commands(warren: Command) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "shop.service")
    docker = [
        line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("ENTRYPOINT")
    ]
    (entrypoint,) = docker
    for words in (
        unit["Service"]["ExecStart"].split(),
        json.loads(entrypoint.removeprefix("ENTRYPOINT ")),
    ):
        assert (words[0].rpartition("/")[2], words[1]) == ("warren", "run")
        known = warren("run", "--help").out
        assert all(word in known for word in words if word.startswith("--"))
    assert int(unit["Service"]["TimeoutStopSec"]) > 25
    yaml = pytest.importorskip("yaml")
    pod = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 25
    (container,) = pod["containers"]
    for probe, path in (("readinessProbe", "/ready"), ("livenessProbe", "/live")):
        assert container[probe]["httpGet"] == {"path": path, "port": 8081}
