"""Fixtures: a broker and its operator, for Warren and, where a test uses both, for RabbitMQ."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import CommandResult, Operator, warren_ctl
from tests.support.rabbitmq import RabbitMQ

SetPolicy: TypeAlias = Callable[..., str]


@pytest.fixture(scope="module")
def warren(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Start a `warren broker` that the module's tests share, and yield its operator."""
    with BrokerProcess(tmp_path_factory.mktemp("managed") / "data") as broker:
        yield Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)


@pytest.fixture(scope="module")
def rabbit(rabbitmq: RabbitMQ) -> Operator:
    def run(*words: str) -> CommandResult:
        done = rabbitmq.run(*words)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    return Operator(run, rabbitmq.url, is_warren=False)


@pytest.fixture(params=["warren", "rabbit"])
def operator(request: pytest.FixtureRequest) -> Operator:
    """Return the operator of each broker in turn."""
    found: Operator = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def channel(operator: Operator) -> Iterator[Channel]:
    connection = Connection(operator.url)
    yield connection.channel()
    try:
        connection.close()
    except (Closed, OSError):
        connection.abort()


@pytest.fixture
def name() -> str:
    """Return a name that nothing else uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def set_policy(operator: Operator) -> Iterator[SetPolicy]:
    """Yield a function that sets a policy or an operator policy, and returns its name. It is cleared after the test."""
    made: list[tuple[str, str]] = []

    def put(pattern: str, definition: str, *options: str, operator_policy: bool = False) -> str:
        kind = "operator_policy" if operator_policy else "policy"
        made.append((kind, f"policy-{uuid.uuid4().hex}"))
        operator(f"set_{kind}", made[-1][1], pattern, definition, *options)
        return made[-1][1]

    yield put
    for kind, policy in made:
        # Policies stay set in RabbitMQ: their patterns match no other test's names, and rabbitmqctl is slow.
        if operator.is_warren:
            operator.run(f"clear_{kind}", policy)


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[InProcessBroker]:
    """Start a broker in this process whose clock the test advances."""
    with InProcessBroker(tmp_path / "data") as broker:
        yield broker
