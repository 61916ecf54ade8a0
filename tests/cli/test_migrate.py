"""`warren migrate`: options, the plan's findings, copied definitions, and recognition by the journal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from warren.cli.migrate.broker_api import EXCHANGE_PREFIX, Overview, QueueInfo, copied_definitions
from warren.cli.migrate.certificate import QueueCertificate
from warren.cli.migrate.journal import QueueJournal, Recognition
from warren.cli.migrate.moved_message import fingerprint_of_published, published_header, read_delivery
from warren.cli.migrate.plan import Delays, Way, find_problems, way_of
from warren.cli.migrate.state_folder import StateFolder
from warren.core.errors import UsageError
from warren.wire import field_tables, methods, properties
from warren.wire.field_tables import field_of

WARREN = Overview("Warren", "0.2.0", frozenset(("direct", "fanout", "topic", "headers", "x-delayed-message")))
RABBITMQ = Overview("RabbitMQ", "4.3.6", frozenset(("direct", "fanout", "topic", "headers")))
ALL = re.compile(".*")


def info(name: str = "q", **values: Any) -> QueueInfo:
    defaults: dict[str, Any] = {
        "type": "classic",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {},
        "policy": {},
        "ready": 0,
        "unacknowledged": 0,
        "consumers": 0,
    }
    return QueueInfo(name, **{**defaults, **values})


def journal(folder: Path, records: bytes, confirmed: int) -> QueueJournal:
    """Return a journal with one record for each letter, of which the first ones are confirmed."""
    made = QueueJournal(folder, 0)
    for letter in records:
        made.append(bytes([letter]) * 16)
    made.confirm(1, b"".join(bytes([letter]) * 16 for letter in records[:confirmed]))
    return made


def recognised(recognition: Recognition, letters: bytes, *, redelivered: bool = True) -> list[int | None]:
    return [recognition.sequence_of(bytes([letter]) * 16, redelivered) for letter in letters]


# -- options


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "--source is missing: give the AMQP URL of the broker, also as WARREN_MIGRATE_SOURCE"),
        (("--source", "amqp://a"), "--target is missing"),
        (("--source", "http://u:secret@a", "--target", "amqp://b"), "--source: not an AMQP URL"),
        (("--source", "amqp://u:secret@a?heartbeat=x", "--target", "amqp://b"), "--source: not an AMQP URL"),
        (("--source", "amqp://u:secret@a", "--target", "amqp://v:secret@a"), "are the same virtual host"),
        (("--source", "amqp://a", "--target", "amqp://b", "--window", "0"), "from 1 to 10000"),
        (("--source", "amqp://a", "--target", "amqp://b", "--queues", "("), "no regular expression"),
        (("--source", "amqp://a", "--target", "amqp://b", "--patience", "long"), "'long' is no duration"),
    ],
)
def test_a_wrong_option_is_one_line_without_a_password(
    warren: Command, words: tuple[str, ...], error: str
) -> None:
    done = warren("migrate", *words)
    assert done.status == 2
    assert error in done.err
    assert done.err.count("\n") == 1
    assert "secret" not in done.err


# -- plan


def test_queues_of_connections_and_of_the_broker_are_left() -> None:
    def way(queue: QueueInfo) -> Way:
        return way_of(queue, Delays.WAIT, ALL, re.compile("left"))[0]

    assert way(info()) is Way.MOVE
    assert way(info("left")) is Way.LEAVE
    assert way(info("amq.gen-x")) is Way.LEAVE
    assert way(info(exclusive=True)) is Way.LEAVE
    assert way(info(auto_delete=True)) is Way.LEAVE


def test_a_queue_whose_messages_wait_for_their_ttl_waits_if_that_is_chosen() -> None:
    arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": ""}
    assert way_of(info(arguments=arguments), Delays.WAIT, ALL, None)[0] is Way.WAIT
    assert way_of(info(arguments=arguments), Delays.MOVE, ALL, None)[0] is Way.MOVE
    assert way_of(info(arguments=arguments, consumers=1), Delays.WAIT, ALL, None)[0] is Way.MOVE
    assert way_of(info(arguments={"x-message-ttl": 1000}), Delays.WAIT, ALL, None)[0] is Way.MOVE


def test_the_plan_names_what_the_target_refuses_and_what_it_ignores() -> None:
    definitions = {
        "queues": [
            {"name": "limited", "durable": True, "arguments": {"x-delivery-limit": 3}},
            {"name": "lazy", "durable": True, "arguments": {"x-queue-mode": "lazy"}},
        ],
        "exchanges": [{"name": "later", "type": "x-delayed-message"}],
        "policies": [{"name": "ha", "definition": {"ha-mode": "all"}}],
    }
    stream = info("s", type="stream")
    problems, risks = find_problems([stream], {"s": Way.MOVE}, definitions, RABBITMQ)
    assert [problem.subject for problem in problems] == [
        "stream 's'",
        "exchange 'later'",
        "queue 'limited'",
        "policy 'ha'",
    ]
    assert [risk.subject for risk in risks] == ["queue 'lazy'"]
    assert find_problems([stream], {"s": Way.LEAVE}, definitions, WARREN) == ([], [])


def test_definitions_that_the_target_has_and_what_would_move_messages_are_not_copied() -> None:
    queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    source = {
        "vhosts": [{"name": "/"}, {"name": "other"}],
        "users": [{"name": "guest"}, {"name": "app"}],
        "permissions": [{"user": user, "vhost": "/", "read": ".*"} for user in ("guest", "app")],
        "queues": [queue, {**queue, "name": "old"}, {**queue, "vhost": "other"}],
        "exchanges": [{"name": f"{EXCHANGE_PREFIX}1.0", "vhost": "/", "type": "fanout"}],
        "parameters": [
            {"component": component, "name": "x", "vhost": "/", "value": {}}
            for component in ("shovel", "vhost-limits")
        ],
    }
    target = {"users": [{"name": "guest"}], "queues": [{**queue, "vhost": "green", "name": "old"}]}
    assert copied_definitions(source, target, "/", "green") == {
        "queues": [{**queue, "vhost": "green"}],
        "vhosts": [{"name": "green"}],
        "users": [{"name": "app"}],
        "permissions": [{"user": "app", "vhost": "green", "read": ".*"}],
        "parameters": [{"component": "vhost-limits", "name": "x", "vhost": "green", "value": {}}],
    }


def test_the_description_of_a_virtual_host_is_copied_for_readers_of_both_formats() -> None:
    described = {"description": "orders", "tags": ["eu"]}
    new, old = {"name": "/", "metadata": described}, {"name": "/", **described}
    for source in (new, old):
        (copied,) = copied_definitions({"vhosts": [source]}, {}, "/", "green")["vhosts"]
        assert copied == {**source, **described, "name": "green"}


# -- journal


def test_messages_that_come_again_have_their_sequences(tmp_path: Path) -> None:
    recognition = Recognition(journal(tmp_path, b"abcdef", 3), keeps_order=True)
    assert recognised(recognition, b"bcdefgb") == [2, 3, 4, 5, 6, None, None]
    assert not recognition.is_needed


def test_a_message_that_has_expired_meanwhile_is_skipped(tmp_path: Path) -> None:
    recognition = Recognition(journal(tmp_path, b"abcdef", 2), keeps_order=True)
    assert recognised(recognition, b"cef") == [3, 5, 6]


def test_equal_messages_are_assumed_to_be_the_latest_that_fit(tmp_path: Path) -> None:
    """The acknowledgements of the first two may be lost; copies are better than a loss."""
    recognition = Recognition(journal(tmp_path, b"aaaaa", 2), keeps_order=True)
    assert recognised(recognition, b"aaaa") == [3, 4, 5, None]


def test_a_message_without_the_redelivered_flag_is_new_even_if_it_equals_a_confirmed_one(
    tmp_path: Path,
) -> None:
    recognition = Recognition(journal(tmp_path, b"aaa", 3), keeps_order=True)
    assert recognised(recognition, b"aa", redelivered=False) == [None, None]


def test_a_message_that_equals_several_confirmed_ones_is_new(tmp_path: Path) -> None:
    """A source that was killed sets `redelivered` for messages that it has never delivered, too."""
    recognition = Recognition(journal(tmp_path, b"aabcd", 4), keeps_order=True)
    assert recognised(recognition, b"abcd") == [None, 3, 4, 5]


def test_new_messages_may_precede_in_a_queue_with_priorities(tmp_path: Path) -> None:
    recognition = Recognition(journal(tmp_path, b"abcd", 1), keeps_order=False)
    assert recognised(recognition, b"xbycdz") == [None, 2, None, 3, 4, None]


def test_a_record_that_a_kill_has_cut_does_not_count(tmp_path: Path) -> None:
    journal(tmp_path, b"ab", 1).close()
    with (tmp_path / "0.source").open("ab") as file:
        file.write(b"half")
    again = QueueJournal(tmp_path, 0)
    digests = again.digests()
    assert (again.length, digests.read, digests.confirmed) == (2, 2, 1)
    assert digests.source == digests.target


def test_the_certificate_fails_if_a_message_is_missing_or_changed() -> None:
    def holds(**changes: Any) -> bool:
        values: dict[str, Any] = {
            "queue": "q",
            "read": 2,
            "confirmed": 2,
            "source_digest": "a",
            "target_digest": "a",
            "left": 0,
            "possible_copies": 1,
            "expires": False,
        }
        return QueueCertificate(**{**values, **changes}).holds

    assert holds()
    assert holds(confirmed=1, expires=True)
    assert not holds(confirmed=1)
    assert not holds(left=1)
    assert not holds(target_digest="b")


def test_the_state_belongs_to_one_migration_and_one_process(tmp_path: Path) -> None:
    first = StateFolder(tmp_path, "amqp://a", "amqp://b", "now")
    with pytest.raises(UsageError, match="another `warren migrate` works"):
        StateFolder(tmp_path, "amqp://a", "amqp://b", "now")
    first.add_queue("q", Way.MOVE, "")
    first.save()
    first.note_copy("q", 7)
    first.note_copy("q", 7)
    first.close()
    again = StateFolder(tmp_path, "amqp://a", "amqp://b", "later")
    assert (again.state.started, again.state.queues["q"].number, again.copies()) == ("now", 0, {"q": 1})
    again.close()
    with pytest.raises(UsageError, match="belongs to the migration from amqp://a"):
        StateFolder(tmp_path, "amqp://a", "amqp://c", "now")


# -- messages


def test_a_moved_message_keeps_its_content_and_has_the_time_that_remains() -> None:
    headers = {"x-warren-expires-at": field_of(1), "x-delivery-count": field_of(2), "n": field_of(3)}
    header = properties.encode({"headers": headers, "expiration": b"9", "message_id": b"m"}, 4)
    deliver = methods.frame(1, "basic.deliver", b"tag", 5, False, b"events", b"key")[7:-1]
    message = read_delivery(deliver, header, b"body")
    assert (message.tag, message.exchange, message.routing_key) == (5, b"events", b"key")
    published = published_header(message, field_of("id"), field_of("q"), 8, False)
    found = properties.decode(published)
    assert found.data("expiration") == b"0"
    assert field_tables.decode(field_tables.join(found.headers)) == {
        "n": 3,
        "warren-migration": "id",
        "warren-migration-queue": "q",
        "warren-migration-sequence": 8,
        "warren-migration-exchange": "events",
    }
    assert fingerprint_of_published(message, published, b"body") == message.fingerprint
    assert fingerprint_of_published(message, published, b"other") != message.fingerprint
    # Moved again, it is known as the message of the first migration, with its own exchange.
    again = read_delivery(deliver.replace(b"\x06events", b"\x06fanout"), published, b"body")
    assert again.copy_of == ("id", "q", 8)
    assert again.fingerprint == message.fingerprint
