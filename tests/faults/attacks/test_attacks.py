"""Attacks: the broker gives the right answers, its memory stays bounded, and another client is served meanwhile.

How long that client waits depends on the machine: `make attacks` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.faults.attacks.__main__ import judge
from tests.faults.attacks.attack import Attack, Target
from tests.faults.attacks.catalogue import attacks
from tests.support.broker_process import BrokerProcess
from tests.support.processes import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Target]]:
    port = free_port()
    options = ("--management-port", str(port), "--log-level", "error")
    with BrokerProcess(tmp_path_factory.mktemp("attacks"), *options) as broker:
        yield broker, Target(broker.url, f"http://127.0.0.1:{port}")
        assert broker.child is not None
        assert broker.child.errors == ""


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_an_attack_does_no_harm(attacked: tuple[BrokerProcess, Target], attack: Attack) -> None:
    broker, target = attacked
    assert judge(broker, target, attack, math.inf) == []
    assert target.api.get("whoami")["name"] == "guest"
