"""Damage to the definitions and to the format file after a kill or a stop: no message, user or permission is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.restarts import PERSISTENT

pytestmark = pytest.mark.processes

QUEUES = [f"queue-{number}" for number in range(10)]
MESSAGES = [b"%d" % number for number in range(100)]


def fill(broker: BrokerProcess) -> None:
    """Declare queues, bindings and a user, and publish messages, which the broker confirms."""
    operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
    operator("add_user", "clerk", "secret")
    operator("set_permissions", "clerk", "queue-.*", "queue-.*", "queue-.*")
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare_exchange("all", "fanout", durable=True)
        for queue in QUEUES:
            channel.declare(queue, durable=True)
            channel.bind(queue, "all")
        channel.confirm()
        for body in MESSAGES:
            channel.publish("", body, exchange="all", **PERSISTENT)
        channel.settled(len(MESSAGES))
        channel.delete(QUEUES[-1])
        # The last change: a copy that misses it is not the newest.
        channel.declare("last", durable=True)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of a broker process that was killed."""
    broker = BrokerProcess(tmp_path_factory.mktemp("killed") / "data")
    broker.start()
    fill(broker)
    broker.kill()
    # The database's write-ahead log has all of it.
    assert (broker.data_dir / "definitions.db-wal").stat().st_size > 10_000
    return broker.data_dir


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of a broker process that was stopped."""
    broker = BrokerProcess(tmp_path_factory.mktemp("stopped") / "data")
    broker.start()
    fill(broker)
    assert broker.stop() == 0
    return broker.data_dir


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def zero(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    while not data[middle]:
        middle += 1
    size = min(512, len(data) - middle)
    data[middle : middle + size] = bytes(size)
    path.write_bytes(data)


def repeat(path: Path) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + data[max(middle - 512, 0) : middle] + data[middle:])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": zero,
    "missing": Path.unlink,
    "repeated": repeat,
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(Random(1).randbytes(path.stat().st_size)),
}


QUICK = {
    ("definitions.db-wal", "flipped"),
    ("definitions.db-wal", "missing"),
    ("definitions.db", "cut"),
    ("definitions.journal", "flipped"),
    ("format", "flipped"),
}
"""Damage that `make test` tries."""


def check(channel: Channel) -> None:
    """Check that all that was confirmed exists, and that the deleted queue does not."""
    for queue in QUEUES[:-1]:
        assert channel.drain(queue) == MESSAGES, queue
    assert not channel.exists(QUEUES[-1])
    assert channel.exists("last")
    channel.confirm()
    channel.publish("", b"new", exchange="all")
    channel.settled(1)
    assert [channel.drain(queue) for queue in QUEUES[:-1]] == [[b"new"]] * 9


def check_broker(folder: Path) -> None:
    """Start a broker on the folder and check its content, then restart it."""
    with InProcessBroker(folder) as broker:
        with Connection(broker.url) as connection:
            check(connection.channel())
        _, _, address = broker.url.rpartition("@")
        with Connection(f"amqp://clerk:secret@{address}") as connection:
            connection.channel().declare("queue-0", durable=True)


ALL = [
    pytest.param(name, damage, marks=[] if (name, damage) in QUICK else pytest.mark.slow)
    for name in (
        "definitions.db-wal",
        "definitions.db",
        "definitions.journal",
        "format",
        "format.copy",
        "log/generation",
    )
    for damage in DAMAGE
]


def check_damaged(folder: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """Damage a file, and check that the broker loses nothing, reports the damage, and has repaired it."""
    DAMAGE[damage](folder / name)
    check_broker(folder)
    # SQLite has no checksums: a page may have unused space there.
    if name != "definitions.db" or damage in ("cut", "missing", "empty", "foreign"):
        assert reports(caplog), "the damage is not reported"
    caplog.clear()
    with InProcessBroker(folder):
        assert not reports(caplog), "the repair is not complete"


@pytest.mark.parametrize(("name", "damage"), ALL)
def test_after_a_kill_a_damaged_file_costs_nothing(
    killed: Path, tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(killed, folder, ignore=shutil.ignore_patterns("*.sock"))
    check_damaged(folder, name, damage, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["definitions.db", "definitions.journal", "format", "format.copy", "log/generation"]
)
def test_after_a_stop_a_damaged_file_costs_nothing(
    stopped: Path, tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(stopped, folder)
    check_damaged(folder, name, damage, caplog)


@pytest.mark.parametrize("name", ["definitions.db", "definitions.db-wal", "definitions.journal"])
@pytest.mark.parametrize("word", [b"queue-3", b"clerk"])
def test_an_altered_name_is_found(
    killed: Path, tmp_path: Path, name: str, word: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(killed, folder, ignore=shutil.ignore_patterns("*.sock"))
    if name == "definitions.db":
        # Move what the write-ahead log has into the database.
        sqlite3.connect(folder / name).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    path = folder / name
    data = path.read_bytes()
    assert word in data
    # A name that is as valid as the old one.
    path.write_bytes(data.replace(word, word[:-1] + bytes([word[-1] ^ 1])))
    check_broker(folder)
    assert reports(caplog)


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged lines on restored files."""
    names = ("format_repaired", "database_rebuilt", "journal_rebuilt", "change_replayed", "mark_lost")
    return [
        record.getMessage() for record in caplog.records if any(name in record.getMessage() for name in names)
    ]
