"""List verbs: items, RabbitMQ's output formats, counts, and errors of the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from warren.broker.management import consumer_utilisation

PERSISTENT = 2

ITEMS = [
    "name",
    "durable",
    "auto_delete",
    "arguments",
    "policy",
    "pid",
    "owner_pid",
    "exclusive",
    "exclusive_consumer_pid",
    "exclusive_consumer_tag",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_ram",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_ram",
    "message_bytes_persistent",
    "head_message_timestamp",
    "disk_reads",
    "disk_writes",
    "consumers",
    "consumer_utilisation",
    "consumer_capacity",
    "memory",
    "slave_pids",
    "synchronised_slave_pids",
    "state",
    "type",
    "leader",
    "members",
    "online",
]


def test_the_counts_of_a_queue(operator: Operator, channel: Channel, name: str) -> None:
    channel.declare(name, durable=True)
    channel.confirm()
    channel.publish(
        name, b"12345", delivery_mode=PERSISTENT, timestamp=datetime.fromtimestamp(1_700_000_000, UTC)
    )
    channel.publish(name, b"123")
    channel.publish(name, b"1", delivery_mode=PERSISTENT)
    channel.settled_until(3)
    figures = {
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "policy": "",
        "owner_pid": "",
        "messages_ready": 3,
        "messages_unacknowledged": 0,
        "messages": 3,
        "messages_ready_ram": 3,
        "messages_persistent": 2,
        "message_bytes": 9,
        "message_bytes_ready": 9,
        "message_bytes_ram": 9,
        "message_bytes_persistent": 6,
        "head_message_timestamp": 1_700_000_000,
        "disk_reads": 0,
        "disk_writes": 2,
        "consumers": 0,
        "consumer_utilisation": 0,
        "state": "running",
        "type": "classic",
        "slave_pids": "",
        "exclusive_consumer_tag": "",
    }
    row = operator.queue(name, *figures)
    assert {item: row[item] for item in figures} == figures
    assert channel.get(name) is not None
    delivered = {
        "messages_ready": 2,
        "messages_unacknowledged": 1,
        "messages": 3,
        "messages_unacknowledged_ram": 1,
        "messages_ram": 3,
        "messages_persistent": 2,
        "message_bytes": 9,
        "message_bytes_ready": 4,
        "message_bytes_unacknowledged": 5,
        "message_bytes_persistent": 6,
    }
    row = operator.queue(name, *delivered)
    assert {item: row[item] for item in delivered} == delivered
    channel.delete(name)


def own_port(channel: Channel) -> int:
    """Return the port of this end, because RabbitMQ may still list connections of other tests."""
    port: int = channel.connection.raw._socket.getsockname()[1]
    return port


def own_connection(operator: Operator, channel: Channel, *items: str) -> dict[str, Any]:
    port = own_port(channel)
    (row,) = [
        row for row in operator.table("list_connections", "peer_port", *items) if row["peer_port"] == port
    ]
    return row


def test_a_transient_queue_has_no_persistent_messages(
    operator: Operator, channel: Channel, name: str
) -> None:
    channel.declare(name, exclusive=True)
    channel.confirm()
    channel.publish(name, b"x", delivery_mode=PERSISTENT)
    channel.settled_until(1)
    row = operator.queue(name, "messages_persistent", "disk_writes", "exclusive", "owner_pid")
    assert (row["messages_persistent"], row["disk_writes"], row["exclusive"]) == (0, 0, True)
    assert row["owner_pid"] == own_connection(operator, channel, "pid")["pid"]


def test_consumers_are_listed(operator: Operator, channel: Channel, name: str) -> None:
    channel.declare(name, exclusive=True)
    channel.qos(7)
    channel.consume(name, "mine", exclusive=True)
    (row,) = [row for row in operator.table("list_consumers") if row["queue_name"] == name]
    assert row["channel_pid"] == operator.queue(name, "exclusive_consumer_pid")["exclusive_consumer_pid"]
    del row["channel_pid"]
    assert row == {
        "queue_name": name,
        "consumer_tag": "mine",
        "ack_required": True,
        "prefetch_count": 7,
        "active": True,
        "arguments": [],
    }
    figures = operator.queue(name, "consumers", "consumer_utilisation", "exclusive_consumer_tag")
    assert figures == {
        "name": name,
        "consumers": 1,
        "consumer_utilisation": 1.0,
        "exclusive_consumer_tag": "mine",
    }


def test_channels_are_listed(operator: Operator, channel: Channel) -> None:
    channel.confirm()
    channel.qos(3)
    channel.qos(9, shared=True)
    items = ("number", "user", "vhost", "transactional", "confirm", "consumer_count", "prefetch_count")
    more = (
        "global_prefetch_count",
        "messages_unacknowledged",
        "messages_unconfirmed",
        "messages_uncommitted",
    )
    rows = operator.table("list_channels", "name", *items, *more)
    (row,) = [row for row in rows if f":{own_port(channel)} -> " in row["name"]]
    assert row.pop("name").endswith(f" ({channel.number})")
    assert row == {
        "number": channel.number,
        "user": "guest",
        "vhost": "/",
        "transactional": False,
        "confirm": True,
        "consumer_count": 0,
        "prefetch_count": 3,
        "global_prefetch_count": 9,
        "messages_unacknowledged": 0,
        "messages_unconfirmed": 0,
        "messages_uncommitted": 0,
    }


def test_uncommitted_publishes_and_acknowledgements_are_listed(
    operator: Operator, channel: Channel, name: str
) -> None:
    channel.declare(name, exclusive=True)
    for number in range(3):
        channel.publish(name, b"%d" % number)
    assert channel.ready(name) == 3
    channel.call(commands.Tx.Select(), commands.Tx.SelectOk)
    for _ in range(2):
        message = channel.get(name)
        assert message is not None
        channel.ack(message.tag)
    channel.publish(name, b"3")
    rows = operator.table(
        "list_channels", "name", "transactional", "messages_uncommitted", "acks_uncommitted"
    )
    (row,) = [row for row in rows if f":{own_port(channel)} -> " in row["name"]]
    del row["name"]
    assert row == {"transactional": True, "messages_uncommitted": 1, "acks_uncommitted": 2}


def test_connections_are_listed(operator: Operator, channel: Channel) -> None:
    host, port = channel.connection.raw._socket.getsockname()
    row = own_connection(
        operator,
        channel,
        *("name", "user", "vhost", "state", "channels", "peer_host", "ssl", "protocol"),
        *("auth_mechanism", "frame_max", "channel_max", "timeout", "client_properties"),
    )
    properties = row.pop("client_properties")
    assert ["capabilities", "table"] in [field[:2] for field in properties]
    assert row.pop("name").startswith(f"{host}:{port} -> 127.0.0.1:")
    assert row.pop("protocol") in ("{0,9,1}", [0, 9, 1])
    assert row.pop("peer_host") in (host, [int(part) for part in host.split(".")])
    assert row == {
        "user": "guest",
        "vhost": "/",
        "state": "running",
        "channels": 1,
        "peer_port": port,
        "ssl": False,
        "auth_mechanism": "PLAIN",
        "frame_max": 131072,
        "channel_max": 2047,
        "timeout": 0,
    }


def test_exchanges_and_bindings_are_listed(operator: Operator, channel: Channel, name: str) -> None:
    channel.declare_exchange(name, "topic", alternate_exchange="amq.fanout")
    channel.declare(f"{name}-queue", exclusive=True)
    channel.bind(f"{name}-queue", name, "a.#")
    exchanges = operator(
        "list_exchanges", "name", "type", "durable", "auto_delete", "internal", "arguments", "policy"
    )
    assert exchanges[0] == "name\ttype\tdurable\tauto_delete\tinternal\targuments\tpolicy"
    assert f'{name}\ttopic\tfalse\tfalse\tfalse\t[{{"alternate-exchange","amq.fanout"}}]\t' in exchanges
    assert "\tdirect\ttrue\tfalse\tfalse\t[]\t" in exchanges
    bindings = operator("list_bindings")
    assert (
        bindings[0] == "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments"
    )
    assert f"{name}\texchange\t{name}-queue\tqueue\ta.#\t[]" in bindings
    assert f"\texchange\t{name}-queue\tqueue\t{name}-queue\t[]" in bindings
    channel.delete_exchange(name)


def test_every_item_of_rabbitmq_exists(operator: Operator, channel: Channel, name: str) -> None:
    channel.declare(name, exclusive=True, x_max_length=5)
    header, row, *_ = [line for line in operator("list_queues", *ITEMS) if line.startswith(("name\t", name))]
    assert header.split("\t") == ITEMS
    values = dict(zip(ITEMS, row.split("\t"), strict=True))
    assert values["arguments"] == '[{"x-max-length",5}]'
    assert values["pid"].startswith("<")
    assert int(values["memory"]) > 0


# -- the command itself


def test_the_announcement_lines_are_those_of_rabbitmq(operator: Operator) -> None:
    assert operator.run("list_queues").lines[:2] == [
        "Timeout: 60.0 seconds ...",
        "Listing queues for vhost / ...",
    ]
    assert operator.run("list_bindings").lines[0] == "Listing bindings for vhost /..."
    assert operator.run("list_policies").lines[0] == 'Listing policies for vhost "/" ...'


def test_other_spellings_of_items_from_the_literature(warren: Operator) -> None:
    with Connection(warren.url) as connection:
        channel = connection.channel()
        channel.declare("spelled", exclusive=True)
        channel.publish("spelled", b"123")
        channel.ready("spelled")
        assert warren("list_queues", "name", "messages_bytes", "messages_bytes_ready", "consumer") == [
            "name\tmessages_bytes\tmessages_bytes_ready\tconsumer",
            "spelled\t3\t3\t0",
        ]


def test_output_formats(warren: Operator, tmp_path: Path) -> None:
    # A name with a tab would break a table's columns.
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": [{"vhost": "/", "name": "a\tb", "durable": False}]}))
    warren("import_definitions", str(file))
    assert warren("list_queues") == ["name\tmessages", "a\\tb\t0"]
    assert warren.run("-s", "list_queues").lines == ["a\\tb\t0"]
    assert warren("--no-table-headers", "list_queues") == ["a\\tb\t0"]
    assert json.loads(warren.run("list_queues", "--json").output) == [{"name": "a\tb", "messages": 0}]
    assert warren("list_queues", "--formatter", "csv") == ['"name","messages"', '"a\\tb","0"']
    assert warren("--formatter=pretty_table", "list_queues", "name") == [
        "┌──────┐",
        "│ name │",
        "├──────┤",
        "│ a\\tb │",
        "└──────┘",
    ]
    warren("delete_queue", "a\tb")
    assert warren("list_queues") == []


WRONG = [
    (("list_quees",), "there is no verb 'list_quees'; did you mean list_queues?"),
    (("frobnicate",), "there is no verb 'frobnicate'; `warren ctl help` lists them"),
    (("list_queues", "name", "cows"), "there is no item cows; the items are: name durable"),
    (("list_exchanges", "cows"), "there is no item cows; the items are: name type"),
    (("list_queues", "--cows"), "there is no option --cows of list_queues; the options are: --data-dir"),
    (("list_queues", "--formatter", "xml"), "there is no formatter 'xml'; there are: table, json, csv"),
    (("list_queues", "-t", "soon"), "--timeout must be a number of seconds"),
    (("set_policy", "p", "x"), "set_policy needs DEFINITION: set_policy [-p VHOST] [--priority PRIORITY]"),
    (("set_policy", "p", "x", "{}", "y"), "set_policy does not take 'y': set_policy"),
    (("set_policy", "p", "x", "{}", "--priority", "high"), "--priority must be a number, not 'high'"),
    (("set_policy", "p", "x", "{"), "the definition is not JSON: "),
    (("purge_queue", "nobody"), "no queue 'nobody' in vhost '/'"),
    (("purge_queue", "-p", "none", "nobody"), "Virtual host 'none' does not exist"),
    (("close_connection", "<connection.0>", "why"), "no connection <connection.0>; "),
]


@pytest.mark.parametrize(("words", "text"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_use_is_an_error_of_one_line(warren: Operator, words: tuple[str, ...], text: str) -> None:
    result = warren.run("-q", *words)
    assert result.status == 2
    assert result.output == ""
    assert result.errors.startswith(f"warren ctl: {text}")
    assert result.errors.count("\n") == 1


def test_an_unreachable_broker_has_another_exit_status_than_wrong_use(tmp_path: Path) -> None:
    result = warren_ctl(tmp_path)("list_queues", "-q")
    assert result.status == 74
    assert result.errors == (
        f"warren ctl: no broker listens at {tmp_path / 'control.sock'}; check that it runs, and with this data folder\n"
    )


def test_queues_are_purged_and_deleted(operator: Operator, channel: Channel, name: str) -> None:
    channel.declare(name, durable=True)
    channel.confirm()
    for _ in range(3):
        channel.publish(name, b"x")
    channel.settled_until(3)
    assert "not empty" in operator.refused("delete_queue", name, "--if-empty").lower()
    operator("purge_queue", name)
    assert channel.ready(name) == 0
    assert operator("delete_queue", name, "--if-empty") == [
        "Queue was successfully deleted with 0 ready messages"
    ]
    assert not channel.exists(name)


def test_a_connection_is_closed_by_its_pid(operator: Operator, channel: Channel) -> None:
    port = own_port(channel)

    def pids() -> list[str]:
        rows = [line.split("\t") for line in operator("list_connections", "pid", "peer_port")]
        return [row[0] for row in rows if row[1:] == [str(port)]]

    (pid,) = pids()
    operator("close_connection", pid, "maintenance")
    with pytest.raises(Closed, match="320 CONNECTION_FORCED - maintenance"):
        channel.ready("any")
    channel.connection.abort()
    wait_until(lambda: not pids(), "the connection is gone")


def test_help_names_every_verb(warren: Operator) -> None:
    result = warren.run("help")
    assert result.status == 0
    assert "list_queues" in result.output
    assert warren.run("help", "set_policy").lines[0] == (
        "usage: warren ctl set_policy [-p VHOST] [--priority PRIORITY] [--apply-to APPLY-TO] NAME PATTERN DEFINITION"
    )


def test_the_command_starts_fast(warren: Operator, request: pytest.FixtureRequest) -> None:
    program = "import sys; from warren.cli.ctl.main import main; main(['help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert not [name for name in loaded if name.startswith(("warren.broker", "asyncio", "pydantic", "typer"))]


# -- utilisation


def test_utilisation_falls_while_consumers_are_busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(consumer_utilisation, "INTERVAL", 0.01)
    with InProcessBroker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        operator = Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)
        channel = connection.channel()
        channel.declare("busy", exclusive=True)
        channel.qos(1)
        channel.consume("busy")

        def found() -> float:
            return float(operator.queue("busy", "consumer_utilisation")["consumer_utilisation"])

        assert found() == 1.0
        channel.publish("busy", b"x")
        channel.publish("busy", b"y")
        (message,) = channel.deliveries(1)
        wait_until(lambda: found() < 0.5, "the consumer is known to be busy")
        channel.ack(message.tag)
        (message,) = channel.deliveries(1)
        channel.ack(message.tag)
        wait_until(lambda: found() > 0.5, "the consumer is known to have room")


# -- paging


@pytest.fixture
def paging(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data") as broker:
        yield broker


def test_a_message_that_is_written_to_be_paged_out_is_counted_once(paging: InProcessBroker) -> None:
    assert paging.data_dir is not None
    operator = Operator(warren_ctl(paging.data_dir), paging.url, is_warren=True)
    with Connection(paging.url) as connection:
        channel = connection.channel()
        for name, exclusive in (("durable", False), ("private", True)):
            channel.declare(name, durable=not exclusive, exclusive=exclusive, x_queue_mode="lazy")
            for _ in range(100):
                channel.publish(name, b"x")

            def paged(name: str = name) -> bool:
                return bool(operator.queue(name, "messages", "messages_ram")["messages_ram"] == 0)

            wait_until(paged, "the messages are on disk only")
            assert operator.queue(name, "disk_writes")["disk_writes"] == 100


def test_the_parts_of_a_backing_queue_are_listed(paging: InProcessBroker) -> None:
    assert paging.data_dir is not None
    operator = Operator(warren_ctl(paging.data_dir), paging.url, is_warren=True)
    with Connection(paging.url) as connection:
        channel = connection.channel()
        channel.declare("memory", durable=True)
        channel.declare("lazy", durable=True, x_queue_mode="lazy")
        channel.declare("priority", durable=True, x_max_priority=2)
        channel.declare("quorum", durable=True, x_queue_type="quorum")
        for name in ("memory", "lazy", "quorum"):
            for _ in range(3):
                channel.publish(name, b"x")
        for priority in (0, 0, 2):
            channel.publish("priority", b"x", priority=priority)
        first = channel.get("memory")
        assert first is not None
        channel.nack(first.tag)
        assert channel.ready("memory") == 3

        def status(name: str) -> Any:
            return operator.queue(name, "backing_queue_status")["backing_queue_status"]

        empty = {"q1": 0, "q2": 0, "delta": ["delta", "undefined", 0, 0, "undefined"], "q3": 0, "q4": 0}
        assert status("memory") == {
            **empty,
            "mode": "default",
            "q4": 2,
            "returned": 1,
            "len": 3,
            "next_seq_id": 4,
        }
        assert status("lazy") == {**empty, "mode": "lazy", "q3": 3, "returned": 0, "len": 3, "next_seq_id": 4}
        assert status("priority")["priority_lengths"] == {"0": 2, "1": 0, "2": 1}
        assert status("priority")["q4"] == status("priority")["len"] == 3
        assert status("quorum") == ""


def test_messages_that_are_only_on_disk_are_counted(paging: InProcessBroker) -> None:
    assert paging.data_dir is not None
    operator = Operator(warren_ctl(paging.data_dir), paging.url, is_warren=True)
    with Connection(paging.url) as connection:
        channel = connection.channel()
        channel.declare("backlog", durable=True)
        channel.confirm()
        for _ in range(5000):
            channel.publish("backlog", b"x" * 10, delivery_mode=PERSISTENT)
        channel.settled_until(5000)
        before = operator.queue("backlog", "messages", "messages_ram", "message_bytes_ram", "disk_writes")
        assert before == {
            "name": "backlog",
            "messages": 5000,
            "messages_ram": 5000,
            "message_bytes_ram": 50_000,
            "disk_writes": 5000,
        }
        # A policy makes a live queue lazy: all but its head is paged out, and read back when it is consumed.
        operator("set_policy", "lazy", "^backlog$", '{"queue-mode":"lazy"}')

        def paged() -> bool:
            found = operator.queue("backlog", "messages_ram", "messages_persistent", "message_bytes")
            assert (found["messages_persistent"], found["message_bytes"]) == (5000, 50_000)
            return int(found["messages_ram"]) == 0

        wait_until(paged, "the messages have left memory")
        operator("clear_policy", "lazy")
        assert len(channel.drain("backlog")) == 5000
        after = operator.queue(
            "backlog", "messages", "messages_ram", "disk_reads", "message_bytes_persistent"
        )
        assert after == {
            "name": "backlog",
            "messages": 0,
            "messages_ram": 0,
            "disk_reads": 5000,
            "message_bytes_persistent": 0,
        }
