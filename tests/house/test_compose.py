"""Compose file: its files exist, ports are on loopback, passwords have no default, and the broker starts as it says."""

from __future__ import annotations

import shlex
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import yaml

from tests.support.blocking_client import Connection
from tests.support.broker_process import BrokerProcess, warren

FOLDER = Path(__file__).parents[2] / "examples" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_every_mounted_file_exists_and_every_named_volume_is_declared() -> None:
    sources = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    assert len(sources) > 8
    for source in sources:
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
        else:
            assert source in COMPOSE["volumes"]


def test_ports_are_on_loopback_and_passwords_have_no_default() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for variable, value in service.get("environment", {}).items():
            assert ":-" not in value, variable
    assert "guest" not in SERVICES["broker"]["environment"]["WARREN_BROKER_USERS"]
    lines = (FOLDER / ".env.example").read_text().splitlines()
    assert all(
        line.endswith("PASSWORD=") for line in lines if "PASSWORD" in line and not line.startswith("#")
    )


@pytest.mark.processes
def test_the_broker_of_the_compose_file_starts_and_its_health_check_succeeds(tmp_path: Path) -> None:
    broker = SERVICES["broker"]
    users = broker["environment"]["WARREN_BROKER_USERS"]
    assert users.startswith("${WARREN_USER:?")
    environment = {**broker["environment"], "WARREN_BROKER_USERS": "shop:secret"}
    # The test listens on loopback, the container on all of its own addresses.
    environment = {name: value.replace("0.0.0.0", "127.0.0.1") for name, value in environment.items()}
    with BrokerProcess(tmp_path / "data", env=environment) as started:
        Connection(started.url.replace("amqp://", "amqp://shop:secret@")).close()
        with pytest.raises(AssertionError, match="ACCESS_REFUSED"):
            Connection(started.url.replace("amqp://", "amqp://guest:guest@"))
        words = broker["healthcheck"]["test"][2:]
        check = shlex.join(words).replace("/data/", f"{tmp_path / 'data'}/")
        found = run(warren(*shlex.split(check)), capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
