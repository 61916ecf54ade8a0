"""Data folders damaged between two runs: `warren broker` reports each damage in one line and loses no healthy message."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import READY, BrokerProcess
from tests.support.polling import wait_until
from tests.support.processes import Child
from tests.support.restarts import PERSISTENT

pytestmark = pytest.mark.processes

LARGE = 200_000
Damage = Callable[[Path], None]


def number(body: bytes) -> int:
    return int(body.partition(b":")[0])


def publish(url: str, first: int, last: int, size: int = 0) -> None:
    """Publish to the queues `hurt` and `healthy` in turn, with confirms."""
    with Connection(url) as connection:
        channel = connection.channel()
        for queue in ("hurt", "healthy"):
            channel.declare(queue, durable=True)
        channel.confirm()
        for count, message in enumerate(range(first, last + 1), 1):
            for queue in ("hurt", "healthy"):
                body = b"%d:%s:" % (message, queue.encode()) + b"x" * size
                channel.publish(queue, body, **PERSISTENT)
            channel.settled_until(2 * count)


def taken(channel: Channel, queue: str) -> list[int]:
    return [number(body) for body in channel.drain(queue)]


def end(broker: BrokerProcess, how: str) -> None:
    if how == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()


def errors(broker: BrokerProcess) -> list[str]:
    """Return the error lines logged so far, without the time."""
    assert broker.child is not None
    return [line.split(" ERROR ", 1)[1] for line in broker.child.errors.splitlines() if " ERROR " in line]


def segments(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "log").glob("*.log"))


def flip(path: Path, what: bytes) -> None:
    """Flip a bit of the first occurrence of some bytes."""
    content = bytearray(path.read_bytes())
    content[content.index(what)] ^= 1
    path.write_bytes(content)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_flipped_bit_loses_one_message_and_is_reported(broker: BrokerProcess, how: str) -> None:
    publish(broker.url, 1, 20)
    end(broker, how)
    flip(segments(broker.data_dir)[-1], b"7:hurt:")
    broker.start()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        assert taken(channel, "healthy") == list(range(1, 21))
        assert taken(channel, "hurt") == [message for message in range(1, 21) if message != 7]
        assert channel.ready("hurt") == 0
    (line,) = errors(broker)
    assert re.search(r"message 7 of queue \d+ \('hurt' in '/'\)|queue='?hurt'? .*sequence=7", line)


def test_a_torn_tail_is_not_reported(broker: BrokerProcess) -> None:
    publish(broker.url, 1, 20)
    broker.kill()
    path = segments(broker.data_dir)[-1]
    content = path.read_bytes()
    path.write_bytes(content + content[200:300])
    broker.start()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        assert [taken(channel, queue) for queue in ("hurt", "healthy")] == [list(range(1, 21))] * 2
    assert errors(broker) == []


def test_records_that_exist_twice_count_once(broker: BrokerProcess) -> None:
    """A disk wrote a block in two places: the records have valid checksums in both."""
    publish(broker.url, 1, 20)
    broker.kill()
    path = segments(broker.data_dir)[-1]
    records = path.read_bytes().rstrip(b"\0")
    assert len(records) < 32_768
    path.write_bytes(records + records[8:])
    broker.start()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        assert [channel.ready(queue) for queue in ("hurt", "healthy")] == [20, 20]
        assert [channel.get("hurt") is not None for _ in range(21)] == [True] * 20 + [False]
    with Connection(broker.url) as connection:
        channel = connection.channel()
        assert [taken(channel, queue) for queue in ("hurt", "healthy")] == [list(range(1, 21))] * 2
    assert errors(broker) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder whose log has several segments of large messages, with indexes."""
    with BrokerProcess(tmp_path_factory.mktemp("whole") / "data") as broker:
        publish(broker.url, 1, 90, LARGE)
        broker.kill()
        broker.start()
        assert broker.stop() == 0
        assert len(segments(broker.data_dir)) >= 3
        assert len(list(broker.data_dir.glob("log/*.idx"))) >= 2
        return broker.data_dir


@pytest.fixture
def segmented(whole: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Return a broker on a copy of that folder, not started yet."""
    shutil.copytree(whole, tmp_path / "data")
    broker = BrokerProcess(tmp_path / "data")
    yield broker
    broker.stop()


def remove(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("damage", "report"),
    [(remove, "segment 2 is missing"), (shorten, "segment 2")],
    ids=["missing", "cut short"],
)
def test_a_missing_or_shortened_segment_is_reported_once(
    segmented: BrokerProcess, damage: Damage, report: str
) -> None:
    damage(segments(segmented.data_dir)[1])
    segmented.start()
    with Connection(segmented.url) as connection:
        channel = connection.channel()
        for queue in ("hurt", "healthy"):
            found = taken(channel, queue)
            assert found == sorted(set(found))
            # The messages of other segments exist, before the gap and behind it.
            assert {1, 90} < set(found) < set(range(1, 91))
    reported = errors(segmented)
    assert report in reported[0]
    if damage is remove:
        assert re.search(r"; lost: messages \d+ to \d+ of queue \d+ \('(hurt|healthy)' in '/'\)", reported[0])
    assert len([line for line in reported if "damage_found" in line]) == 1


def test_a_missing_or_damaged_index_is_rebuilt(segmented: BrokerProcess) -> None:
    indexes = sorted((segmented.data_dir / "log").glob("*.idx"))
    indexes[0].unlink()
    flipped = bytearray(indexes[1].read_bytes())
    flipped[len(flipped) // 2] ^= 1
    indexes[1].write_bytes(flipped)
    segmented.start()
    with Connection(segmented.url) as connection:
        channel = connection.channel()
        assert [taken(channel, queue) for queue in ("hurt", "healthy")] == [list(range(1, 91))] * 2
    assert [line for line in errors(segmented) if "index.damage_found" not in line] == []


def test_an_unreadable_message_does_not_stop_its_queue(segmented: BrokerProcess) -> None:
    """The content of a closed segment is read only for delivery."""
    first = segments(segmented.data_dir)[0]
    flip(first, b"5:hurt:")
    segmented.start()
    with Connection(segmented.url) as connection:
        channel = connection.channel()
        channel.consume("hurt", "tag", no_ack=True)
        found = [number(message.body) for message in channel.deliveries(89)]
        assert found == [message for message in range(1, 91) if message != 5]
        assert channel.state("hurt") == (0, 1)
        assert taken(channel, "healthy") == list(range(1, 91))
    (line,) = errors(segmented)
    assert "5" in line


def test_a_second_broker_on_a_data_folder_exits_and_the_first_continues(broker: BrokerProcess) -> None:
    publish(broker.url, 1, 3)
    second = BrokerProcess(broker.data_dir)
    with Child(second.command()) as child:
        assert child.wait() == 2
        assert child.errors == (
            f"warren broker: data folder {broker.data_dir} is in use by another broker (process {broker.pid}); stop it,"
            " or choose another folder with --data-dir\n"
        )
    publish(broker.url, 4, 6)
    broker.kill()
    broker.start()
    with Connection(broker.url) as connection:
        assert taken(connection.channel(), "healthy") == [1, 2, 3, 4, 5, 6]


AS_NOBODY = """
import os, sys
from warren.cli.broker import main
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


def test_a_read_only_folder_is_refused_and_unchanged(broker: BrokerProcess) -> None:
    publish(broker.url, 1, 3)
    broker.kill()
    # pytest's folders are closed to others.
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "data")
        shutil.copytree(broker.data_dir, folder, ignore=shutil.ignore_patterns("control.sock"))
        for path in [Path(parent), folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        arguments = [sys.executable, "-c", AS_NOBODY, "--port", "0", "--data-dir", str(folder)]
        with Child(arguments) as child:
            assert child.wait() == 2
            expected = f"warren broker: cannot write in the data folder {folder}: Permission denied\n"
            assert child.errors == expected
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


WITH_FAULTS = """
import errno, os, sys
from pathlib import Path
from warren.cli.broker import main
from warren.broker.store.file_system import os_files

fault, sync, write = Path(sys.argv[1]), os_files.sync_file, os_files.write_at

def fault_name():
    try:
        return fault.read_text()
    except FileNotFoundError:
        return ""

def failing_sync(handle):
    if fault_name() == "sync":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(handle)

def full_write(handle, data, offset):
    if fault_name() == "room":
        write(handle, bytes(data)[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(handle, data, offset)

os_files.sync_file, os_files.write_at = failing_sync, full_write
sys.exit(main(sys.argv[2:]))
"""
"""A broker process whose syncs fail, or whose writes find no room, depending on the content of a file."""


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    return tmp_path / "fault"


@pytest.fixture
def faulty(tmp_path: Path, fault: Path) -> Child:
    data = str(tmp_path / "data")
    return Child([sys.executable, "-c", WITH_FAULTS, str(fault), "--port", "0", "--data-dir", data])


def test_a_failed_sync_ends_the_broker(faulty: Child, fault: Path, tmp_path: Path) -> None:
    with faulty as child:
        url = child.wait_for_line(READY).removeprefix(READY)
        publish(url, 1, 5)
        fault.write_text("sync")
        connection = Connection(url)
        channel = connection.channel()
        channel.confirm()
        channel.publish("healthy", b"6:", **PERSISTENT)
        assert isinstance(channel.next_method(Basic.Nack), Basic.Nack)
        assert child.wait() == 74
        lines = [line for line in child.errors.splitlines() if line.startswith("warren broker: ")]
        log = tmp_path / "data" / "log"
        assert lines == [f"warren broker: cannot write the log in {log}: Input/output error"]
        connection.abort()
    with BrokerProcess(tmp_path / "data") as broker, Connection(broker.url) as connection:
        found = taken(connection.channel(), "healthy")
        # The refused message may be on disk.
        assert found in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
        assert errors(broker) == []


def test_a_broker_waits_for_a_full_disk(faulty: Child, fault: Path, tmp_path: Path) -> None:
    with faulty as child:
        url = child.wait_for_line(READY).removeprefix(READY)
        publish(url, 1, 5)
        fault.write_text("room")
        with Connection(url) as connection:
            channel = connection.channel()
            channel.confirm()
            channel.publish("healthy", b"6:", **PERSISTENT)
            wait_until(lambda: "event=alarm.raised resource=disk" in child.errors, "the alarm is set")
            channel.publish("healthy", b"7:", **PERSISTENT)
            assert type(connection.event()).__name__ == "Blocked"
            fault.unlink()
            channel.settled_until(2)
        assert (
            child.errors.count("event=alarm.raised resource=disk")
            == child.errors.count("event=alarm.cleared resource=disk")
            == 1
        )
        child.kill()
    with BrokerProcess(tmp_path / "data") as broker, Connection(broker.url) as connection:
        assert taken(connection.channel(), "healthy") == [1, 2, 3, 4, 5, 6, 7]
        assert errors(broker) == []
