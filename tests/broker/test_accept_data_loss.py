"""Definitions that are lost or older than the log: the broker refuses the folder, or keeps the messages on request."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.support.blocking_client import Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.restarts import PERSISTENT
from tests.support.streams import consume, seen
from warren.broker.configuration.config import BrokerConfig
from warren.broker.store.errors import StoreError
from warren.core.errors import ExitStatus

BODIES = [b"%d" % number for number in range(20)]
DEFINITIONS = ("definitions.db", "definitions.db-wal", "definitions.journal")


def publish(broker: InProcessBroker, *queues: str) -> None:
    """Declare durable queues and publish confirmed messages to each; `stream` is one."""
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm()
        for queue in queues:
            if queue == "stream":
                channel.declare(queue, durable=True, x_queue_type="stream")
            else:
                channel.declare(queue, durable=True)
            for body in BODIES:
                channel.publish(queue, body, **PERSISTENT)
        channel.settled(len(queues) * len(BODIES))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the data folder of a killed broker with two queues and a stream."""
    with InProcessBroker(tmp_path / "made") as broker:
        publish(broker, "first", "deleted", "second", "stream")
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.declare("deleted", durable=True)
            channel.delete("deleted")
        return broker.image(tmp_path / "data")


def remove_definitions(folder: Path) -> None:
    for name in DEFINITIONS:
        (folder / name).unlink(missing_ok=True)


def refusal(folder: Path) -> str:
    """Return the error of a broker that does not start, and check that it has removed nothing."""
    before = set(folder.glob("*/*.log")) | set(folder.glob("*/*.stream"))
    broker = InProcessBroker(folder)
    with pytest.raises(StoreError) as caught:
        broker.start()
    assert caught.value.status is ExitStatus.USAGE
    assert "\n" not in str(caught.value)
    assert "--accept-data-loss" in str(caught.value)
    assert before <= set(folder.glob("*/*"))
    return str(caught.value)


def accepting(folder: Path) -> InProcessBroker:
    return InProcessBroker(folder, config=BrokerConfig(accept_data_loss=True))


def recovered(broker: InProcessBroker) -> dict[str, list[bytes]]:
    """Return the messages of all queues that hold those of unknown ones; streams are read, queues drained."""
    assert broker.broker is not None
    vhost = broker.broker.virtual_hosts.declarations[b"/"].vhost
    names = broker.call(
        lambda: sorted(name.decode() for name in vhost.queues if name.startswith(b"recovered-"))
    )
    found = {}
    with Connection(broker.url) as connection:
        for name in names:
            channel = connection.channel()
            queue = vhost.queues[name.encode()]
            if queue.is_stream:
                consume(channel, name, "first")
                found[name] = [body for _, body in seen(channel, len(BODIES))]
            else:
                found[name] = channel.drain(name)
    return found


def test_a_folder_whose_definitions_are_lost_is_refused_with_counts(killed: Path) -> None:
    remove_definitions(killed)
    for _ in range(2):
        text = refusal(killed)
        assert "neither definitions.db (it is missing or empty) nor definitions.journal" in text
        # The deleted queue counts, because nothing shows any more that it was deleted.
        assert "60 messages of 3 queues and" in text
        assert "1 streams without definitions (" in text
        for number, name in enumerate(("first", "deleted", "second"), 1):
            assert f"number {number}: 20 messages, the first with routing key '{name}'; " in text
        assert "; number 4: a stream of " in text


def test_with_the_option_all_messages_are_kept(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove_definitions(killed)
    with accepting(killed) as broker:
        assert list(recovered(broker).values()) == [BODIES] * 4
    assert "event=definitions.loss_accepted" in caplog.text
    assert caplog.text.count("event=store.queue_recovered") == 4
    caplog.clear()
    # They are queues like others now, and no new queue gets their numbers.
    with InProcessBroker(killed) as again:
        publish(again, "first")
        again.crash()
        with Connection(again.url) as connection:
            assert connection.channel().drain("first") == BODIES
        assert sum(map(len, recovered(again).values())) == len(BODIES), "the stream keeps its messages"
    assert "queue_recovered" not in caplog.text


def test_the_option_changes_nothing_without_a_loss(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    with accepting(killed) as broker:
        assert recovered(broker) == {}
        with Connection(broker.url) as connection:
            assert connection.channel().drain("first") == BODIES
    assert "loss_accepted" not in caplog.text


@pytest.mark.slow
def test_definitions_of_an_earlier_start_are_refused(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "made") as broker:
        publish(broker, "first")
        old = broker.image(tmp_path / "old")
    with InProcessBroker(tmp_path / "made") as broker:
        publish(broker, "second")
        folder = broker.image(tmp_path / "data")
    remove_definitions(folder)
    for name in DEFINITIONS:
        if (old / name).exists():
            shutil.copy(old / name, folder / name)
    text = refusal(folder)
    assert "older than the log" in text
    assert "20 messages of 1 queues" in text
    with accepting(folder) as broker:
        assert list(recovered(broker).values()) == [BODIES]
        with Connection(broker.url) as connection:
            assert connection.channel().drain("first") == BODIES


def test_definitions_of_earlier_the_same_day_are_refused(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "made") as broker:
        publish(broker, "first")
        old = broker.image(tmp_path / "old")
        publish(broker, "second")
    # The stop has written the mark.
    folder = tmp_path / "made"
    remove_definitions(folder)
    for name in DEFINITIONS:
        if (old / name).exists():
            shutil.copy(old / name, folder / name)
    assert "the log has seen generation" in refusal(folder)
    with accepting(folder) as broker:
        assert list(recovered(broker).values()) == [BODIES]
        with Connection(broker.url) as connection:
            assert connection.channel().drain("first") == BODIES


def test_a_kill_after_the_loss_was_accepted_loses_nothing(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_definitions(killed)
    with monkeypatch.context() as patch:
        patch.setattr(
            "warren.broker.store.definitions.definitions_database.Definitions._begin", raise_disk_error
        )
        with pytest.raises(StoreError, match="Input/output error"):
            accepting(killed).start()
    # The new definitions exist, and they still do not fit the log.
    assert "older than the log" in refusal(killed)
    with accepting(killed) as broker:
        assert list(recovered(broker).values()) == [BODIES] * 4


def raise_disk_error(*_: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.slow
def test_a_queue_with_the_name_of_a_recovered_one_is_kept(killed: Path) -> None:
    with InProcessBroker(killed) as broker:
        publish(broker, "recovered-1000003")
        folder = broker.image(killed.with_name("again"))
    # Only the row of the second queue is lost, in both copies.
    database = sqlite3.connect(folder / "definitions.db")
    with database:
        database.execute("DELETE FROM queues WHERE name = ?", (b"second",))
        database.execute("UPDATE meta SET value = 3 WHERE name = 'next_incarnation'")
    database.close()
    (folder / "definitions.journal").unlink()
    with accepting(folder) as broker:
        assert sorted(recovered(broker)) == ["recovered-1000003", "recovered-3"]


@pytest.mark.slow
def test_lost_definitions_of_a_folder_of_version_2_are_refused(killed: Path) -> None:
    (killed / "definitions.db").write_bytes(b"no database")
    (killed / "definitions.journal").unlink()
    (killed / "definitions.db-wal").unlink(missing_ok=True)
    (killed / "format.copy").unlink()
    lines = (killed / "format").read_text().replace("version 3", "version 2").splitlines(keepends=True)
    (killed / "format").write_text("".join(lines[:3]))
    assert "definitions.db cannot be used (file is not a database)" in refusal(killed)
    with accepting(killed) as broker:
        assert list(recovered(broker).values()) == [BODIES] * 4
    assert (killed / "definitions.db.damaged").read_bytes() == b"no database"
