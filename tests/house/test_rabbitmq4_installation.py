"""`.ci/rabbitmq4`, which installs the RabbitMQ that conformance is checked against."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import free_port
from tests.support.rabbitmq import INSTALLED_IN

pytestmark = pytest.mark.slow


def test_an_installation_without_network_ends_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "rabbitmq4"
    mirror = f"http://127.0.0.1:{free_port()}/debian"
    done = subprocess.run(
        [INSTALLED_IN, "install"],
        env={**os.environ, "WARREN_RABBITMQ4": str(folder), "WARREN_DEBIAN_MIRROR": mirror},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = (done.stdout + done.stderr).splitlines()
    reason = "only root can run" if os.geteuid() else f"offline: {mirror}/dists/forky/Release does not answer"
    assert line.startswith("set-up: ")
    assert reason in line
    assert line.endswith("name a running RabbitMQ 4.3 with --amqp-url")
    assert list(folder.parent.glob("rabbitmq4.new.*")) == []
    assert not folder.exists()
