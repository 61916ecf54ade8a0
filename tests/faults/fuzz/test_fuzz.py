"""Fuzzing: invalid input causes no internal error, no stall and no effect on other connections.

This is a small part of `make fuzz`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.faults.fuzz.cases import CHANNEL_FAULTS, HANDSHAKE, HANDSHAKE_FAULTS, Case, make_case
from tests.faults.fuzz.http_cases import KINDS
from tests.faults.fuzz.mutation import valid_conversation
from tests.faults.fuzz.run import run_cases
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.processes import free_port
from tests.support.raw_client import RawClient, encoded

pytestmark = pytest.mark.slow

CASES = 5_000
HTTP_FAULTS = {kind.__name__ for kind in KINDS}


@pytest.fixture(scope="module")
def http() -> str:
    """Return the base URL of the HTTP API of the broker for invalid input."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, http: str) -> Iterator[BrokerProcess]:
    """Start a broker for invalid input. At the end, check that it runs and has logged no internal error."""
    options = (*PATIENT, "--management-port", http.rpartition(":")[2])
    with BrokerProcess(tmp_path_factory.mktemp("fuzz"), *options) as broker:
        yield broker
        assert broker.child is not None
        assert broker.child.running
        for text in ("connection.crashed", "dead_letter.failed", "message_undeliverable", "Traceback"):
            assert text not in broker.child.errors, broker.child.errors[-3000:]
        assert broker.stop() == 0


def test_the_conversation_without_mutations_is_valid(target: BrokerProcess) -> None:
    with RawClient(target.url) as peer:
        peer.connect().open()
        peer.send_bytes(b"".join(valid_conversation()) + encoded(commands.Connection.Close(200, "", 0, 0), 0))
        found: list[object] = []
        while not found or not isinstance(found[-1], commands.Connection.CloseOk):
            found.append(peer.read()[1])
        for kind in (commands.Basic.Deliver, commands.Basic.Ack, commands.Queue.DeleteOk):
            assert any(isinstance(frame, kind) for frame in found)
        assert not any(isinstance(frame, commands.Channel.Close) for frame in found), found


def test_each_fault_gets_an_allowed_answer(target: BrokerProcess, http: str) -> None:
    report = run_cases(target.url, http, target.pid, CASES, int(os.environ.get("SEED") or 1))
    assert not report.wrong, "\n".join(report.wrong)
    assert report.confirmed
    assert set(report.kinds) == {
        *HANDSHAKE_FAULTS,
        *CHANNEL_FAULTS,
        "truncated_stream",
        "corrupted_stream",
        *HTTP_FAULTS,
    }


def test_the_same_seed_makes_the_same_cases() -> None:
    def some(seed: int) -> list[Case]:
        chance = random.Random(seed)
        return [make_case(chance) for _ in range(50)]

    assert some(3) == some(3) != some(4)
    assert any(case.data.startswith(HANDSHAKE) for case in some(3))
