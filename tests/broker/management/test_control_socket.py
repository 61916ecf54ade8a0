"""Control socket: permissions, invalid requests, limits, and connections that misbehave."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import pass_time
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from warren.broker.management import control_socket
from warren.broker.management.control_verbs import VERBS
from warren.cli.ctl import verbs


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def path(broker: InProcessBroker) -> Path:
    assert broker.data_dir is not None
    return broker.data_dir / "control.sock"


class Line:
    """Raw connection to the control socket, for valid and invalid requests."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.replies = self.socket.makefile("rb")

    def send(self, data: bytes) -> Any:
        self.socket.sendall(data)
        return json.loads(self.replies.readline())

    def at_end(self) -> bool:
        return self.replies.readline() == b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.replies.close()
        self.socket.close()


def test_only_the_owner_may_open_the_socket(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


BAD = [
    (b"nonsense", "the request is not a line of JSON: Expecting value: line 1 column 1 (char 0)"),
    (b"[]", 'a request must be a JSON object with a "verb"'),
    (b"{}", 'a request must be a JSON object with a "verb"'),
    (b'{"verb":7}', 'a request must be a JSON object with a "verb"'),
    (b'{"verb":"frobnicate"}', "there is no verb 'frobnicate'"),
    (b'{"verb":"list_queues","arguments":[]}', '"arguments" must be a JSON object'),
    (b'{"verb":"list_queues","arguments":{"items":"name"}}', "items must be a list of texts"),
    (b'{"verb":"list_queues","arguments":{"vhost":7}}', "vhost must be a text"),
    (b'{"verb":"delete_queue","arguments":{}}', "queue is missing"),
    (b'{"verb":"set_policy","arguments":{"name":"x","pattern":"y"}}', "definition is missing"),
    (
        b'{"verb":"set_policy","arguments":{"name":"x","pattern":"y","definition":{},"priority":"z"}}',
        "priority must be an integer",
    ),
    (b"[" * 100_000, "the request is not a line of JSON: "),
]


@pytest.mark.parametrize(("request_line", "text"), BAD, ids=[line[:40].decode() for line, _ in BAD])
def test_a_bad_request_is_refused_and_the_next_one_is_served(
    path: Path, request_line: bytes, text: str
) -> None:
    with Line(path) as line:
        reply = line.send(request_line + b"\n")
        assert reply["error"].startswith(text)
        assert reply["status"] == 2
        assert line.send(b'{"verb":"ping"}\n') == {"result": "Ping succeeded"}


def test_a_request_may_arrive_in_parts_and_several_at_once(path: Path) -> None:
    with Line(path) as line:
        line.socket.sendall(b'{"verb":')
        assert line.send(b'"ping"}\n{"verb":"ping"}\n') == {"result": "Ping succeeded"}
        assert json.loads(line.replies.readline()) == {"result": "Ping succeeded"}


def test_a_request_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(control_socket, "REQUEST_LIMIT", 1000)
    with InProcessBroker(tmp_path / "data"), Line(tmp_path / "data" / "control.sock") as line:
        reply = line.send(b"x" * 3000 + b"\n")
        assert reply == {"error": "the request is larger than the limit of 1000 bytes", "status": 2}
        assert line.at_end()


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(control_socket, "MAX_CONNECTIONS", 2)
    with InProcessBroker(tmp_path / "data") as broker:
        path = tmp_path / "data" / "control.sock"
        with Line(path) as first, Line(path) as second:
            assert second.send(b'{"verb":"ping"}\n') == {"result": "Ping succeeded"}
            with Line(path) as third:
                refusal = json.loads(third.replies.readline())
                assert refusal == {"error": "too many control connections; try again", "status": 74}
            pass_time(broker, control_socket.IDLE_SECONDS)
            assert first.at_end()
            assert second.at_end()
            assert warren_ctl(tmp_path / "data")("ping").output == "Ping succeeded\n"


def test_a_connection_that_is_cut_affects_no_other(path: Path, broker: InProcessBroker) -> None:
    for data in (b"", b'{"verb":', b'{"verb":"list_queues"}\n'):
        with Line(path) as line:
            line.socket.sendall(data)
    assert broker.data_dir is not None
    assert warren_ctl(broker.data_dir)("-q", "ping").output == "Ping succeeded\n"


def test_a_client_that_does_not_read_does_not_block_the_broker(path: Path, broker: InProcessBroker) -> None:
    assert broker.data_dir is not None
    queues = [{"vhost": "/", "name": f"{number}-" + "x" * 200, "durable": False} for number in range(3000)]
    request = {"verb": "import_definitions", "arguments": {"definitions": {"queues": queues}}}
    with Line(path) as line:
        assert line.send(json.dumps(request).encode() + b"\n") == {"result": None}
        for _ in range(20):
            line.socket.sendall(b'{"verb":"list_bindings"}\n')
        assert warren_ctl(broker.data_dir)("-q", "ping").output == "Ping succeeded\n"
        broker.stop()


def test_the_socket_closes_with_the_broker(path: Path, broker: InProcessBroker) -> None:
    with Line(path) as line:
        assert line.send(b'{"verb":"ping"}\n') == {"result": "Ping succeeded"}
        broker.stop()
        assert line.at_end()
    assert not path.exists()


@pytest.mark.processes
def test_the_socket_of_a_killed_broker_is_replaced(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.kill()
        assert (tmp_path / "data" / "control.sock").exists()
        broker.start()
        operator = Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)
        wait_until(lambda: operator("ping") == ["Ping succeeded"], "the socket answers")


def test_a_data_folder_may_have_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / "data"
    with InProcessBroker(folder):
        assert warren_ctl(folder)("-q", "ping").output == "Ping succeeded\n"


def test_the_command_has_every_verb() -> None:
    assert set(verbs.VERBS) - set(verbs.LOCAL_VERBS) == set(VERBS)
