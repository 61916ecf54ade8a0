"""The checker finds each fault that is planted in a history, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.chaos.checker import ACK_SECONDS, SYNC_SECONDS, FaultKind, find_faults, has_missing_messages
from tests.faults.chaos.history import EventType, read
from tests.faults.chaos.history_builder import HistoryBuilder


def test_a_history_without_faults(history: HistoryBuilder, tmp_path: Path) -> None:
    history.publish_confirmed("1", "2", "3", "4")
    history.publish("5")
    history.consume("1")
    history.deliver("2", "3")
    history.settle("3", how=EventType.REQUEUE)
    history.deliver("3", again=True)
    history.add(EventType.DECLARE, "c", "name")
    history.add(EventType.DECLARED, "c", "name")
    history.kill()
    history.add(EventType.EXISTS, "d", "name")
    history.drain("1", "2", "3", "4")
    assert find_faults(history) == []
    history.write(tmp_path / "history")
    assert read(tmp_path / "history").events == history.events
    assert read(tmp_path / "history").rules == history.rules


# Lost messages


def test_a_confirmed_message_that_is_lost(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2")
    history.publish("3")
    history.kill()
    assert has_missing_messages(history)
    history.drain("1")
    assert history.kinds() == [FaultKind.LOST]


def test_a_fan_out_that_is_lost_in_one_queue(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", to=("q", "levels"))
    history.kill()
    history.drain("1")
    assert history.kinds() == [FaultKind.LOST]


def test_a_message_that_comes_back_after_its_acknowledgement_and_is_lost_then(
    history: HistoryBuilder,
) -> None:
    history.publish_confirmed("1")
    history.consume("1")
    history.kill()
    history.deliver("1", again=True)
    history.kill()
    history.drain()
    assert history.kinds() == [FaultKind.LOST]


def test_a_dead_letter_that_is_lost(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2", to=("source",))
    history.deliver("1", "2", at="source")
    history.settle("1", "2", at="source", how=EventType.REJECT)
    history.kill()
    history.drain("1", at="dead-letters", again=False)
    assert history.kinds() == [FaultKind.LOST]


def test_an_expired_message_is_not_lost_if_its_dead_letter_exists(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2", to=("mortal",))
    history.drain("1", at="dead-letters-2", again=False)
    assert history.kinds() == [FaultKind.LOST]


# Acknowledged messages that come back


def confirm(history: HistoryBuilder) -> None:
    history.publish_confirmed("9", to=(), by="c")


def commit(history: HistoryBuilder) -> None:
    history.add(EventType.COMMIT, "c", transaction="t")
    history.add(EventType.COMMITTED, "c", transaction="t")


def time(history: HistoryBuilder) -> None:
    history.fence()
    history.wait(ACK_SECONDS + SYNC_SECONDS)


def time_and_a_confirm(history: HistoryBuilder) -> None:
    history.fence()
    history.wait(ACK_SECONDS)
    history.publish_confirmed("9", by="other")


@pytest.mark.parametrize("how", [confirm, commit, time, time_and_a_confirm])
def test_an_acknowledgement_that_was_on_disk_must_hold(
    history: HistoryBuilder, how: Callable[[HistoryBuilder], None]
) -> None:
    history.publish_confirmed("1")
    history.consume("1")
    how(history)
    history.kill()
    history.drain("1")
    assert FaultKind.RESURRECTED in history.kinds()


def nothing(history: HistoryBuilder) -> None:
    pass


def other_client(history: HistoryBuilder) -> None:
    history.publish_confirmed("9", to=(), by="other")


def little_time(history: HistoryBuilder) -> None:
    history.fence()
    history.wait(ACK_SECONDS / 2)


def little_time_and_a_confirm(history: HistoryBuilder) -> None:
    history.fence()
    history.wait(ACK_SECONDS / 2)
    history.publish_confirmed("9", to=(), by="other")


def unanswered(history: HistoryBuilder) -> None:
    history.add(EventType.FENCE, "c")
    history.wait(5)


@pytest.mark.parametrize("how", [nothing, other_client, little_time, little_time_and_a_confirm, unanswered])
def test_an_acknowledgement_that_may_not_be_on_disk_may_be_undone(
    history: HistoryBuilder, how: Callable[[HistoryBuilder], None]
) -> None:
    history.publish_confirmed("1")
    history.consume("1")
    how(history)
    history.kill()
    history.drain("1")
    assert find_faults(history) == []


def test_a_publish_from_before_the_acknowledgement_makes_nothing_safe(history: HistoryBuilder) -> None:
    history.publish_confirmed("1")
    history.publish("9", to=(), by="c")
    history.consume("1")
    history.add(EventType.CONFIRMED, "c", "c:9")
    history.kill()
    history.drain("1")
    assert find_faults(history) == []


def test_an_acknowledgement_holds_while_the_broker_lives(history: HistoryBuilder) -> None:
    history.publish_confirmed("1")
    history.consume("1")
    history.deliver("1", again=True)
    assert history.kinds() == [FaultKind.RESURRECTED]


def test_a_clean_stop_writes_what_was_acknowledged(history: HistoryBuilder) -> None:
    history.publish_confirmed("1")
    history.consume("1")
    history.fence()
    history.add(EventType.STOPPED, "")
    history.drain("1")
    assert history.kinds() == [FaultKind.RESURRECTED]


def test_a_message_of_an_earlier_history_is_unknown(history: HistoryBuilder) -> None:
    history.publish_confirmed("1")
    history.drain("1", again=False)
    history.kill()
    history.deliver("1", again=True)
    assert history.kinds() == [FaultKind.UNKNOWN]


# Messages that exist twice


def test_a_message_with_two_consumers(history: HistoryBuilder) -> None:
    history.publish_confirmed("1")
    history.deliver("1")
    history.deliver("1", by="other", again=True)
    assert history.kinds() == [FaultKind.DUPLICATED]


def test_a_dead_letter_of_a_message_that_was_not_rejected(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2", to=("source",))
    history.deliver("1", at="source")
    history.deliver("1", at="dead-letters")
    history.deliver("2", at="dead-letters")
    assert history.kinds() == [FaultKind.DUPLICATED, FaultKind.DUPLICATED]


def test_a_dead_lettering_that_is_undone_although_its_dead_letter_was_consumed(
    history: HistoryBuilder,
) -> None:
    history.publish_confirmed("1", to=("source",))
    history.deliver("1", at="source")
    history.settle("1", at="source", how=EventType.REJECT)
    history.consume("1", at="dead-letters", by="other")
    history.publish_confirmed("9", to=(), by="other")
    history.kill()
    history.drain("1", at="source")
    assert history.kinds() == [FaultKind.DUPLICATED]


def test_a_crash_may_undo_a_dead_lettering_and_all_that_followed(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", to=("source",))
    history.deliver("1", at="source")
    history.settle("1", at="source", how=EventType.REJECT)
    history.consume("1", at="dead-letters", by="other")
    history.kill()
    history.deliver("1", at="source", again=True)
    history.settle("1", at="source", how=EventType.REJECT)
    history.drain("1", at="dead-letters", again=False)
    assert find_faults(history) == []


# Order and redelivered flags


def test_messages_out_of_order(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2", "3")
    history.deliver("1", "3", "2")
    assert history.kinds() == [FaultKind.OUT_OF_ORDER]


def test_redeliveries_may_come_in_any_order_with_other_consumers(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2", "3")
    history.deliver("1", "2")
    history.settle("1", how=EventType.REQUEUE)
    history.deliver("3")
    history.deliver("1", again=True)
    assert find_faults(history) == []


def test_recovered_messages_are_in_order(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2")
    history.kill()
    history.drain("2", "1")
    assert history.kinds() == [FaultKind.OUT_OF_ORDER]


def test_priorities(history: HistoryBuilder) -> None:
    for message, priority in (("1", 0), ("2", 3), ("3", 9), ("4", 3), ("5", 4)):
        history.publish_confirmed(message, to=("levels",), priority=priority)
    history.kill()
    history.drain("3", "5", "2", "4", "1", at="levels")
    assert find_faults(history) == []
    history.events = history.events[:-11]
    history.drain("3", "5", "2", "1", "4", at="levels")
    assert history.kinds() == [FaultKind.OUT_OF_ORDER]


def test_a_second_delivery_without_the_redelivered_flag(history: HistoryBuilder) -> None:
    history.publish_confirmed("1")
    history.deliver("1")
    history.settle("1", how=EventType.REQUEUE)
    history.deliver("1")
    assert history.kinds() == [FaultKind.NOT_FLAGGED]


def test_redelivered_flags_after_a_crash_and_after_a_clean_stop(history: HistoryBuilder) -> None:
    history.publish_confirmed("1", "2")
    history.deliver("1")
    history.add(EventType.STOPPED, "")
    history.deliver("1")
    history.deliver("2")
    assert history.kinds() == [FaultKind.NOT_FLAGGED]
    history.kill()
    history.deliver("2")
    assert history.kinds() == [FaultKind.NOT_FLAGGED, FaultKind.NOT_FLAGGED]


# Transactions


def begun(history: HistoryBuilder) -> None:
    """Begin a transaction that acknowledges 1 and publishes 2 and 3."""
    history.publish_confirmed("1")
    history.deliver("1", by="t")
    for message in ("2", "3"):
        history.add(EventType.PUBLISH, "t", f"p:{message}", "q", transaction="t1")
    history.add(EventType.ACK, "t", "p:1", "q", transaction="t1")


def test_a_commit_without_a_reply_has_happened_or_not(history: HistoryBuilder) -> None:
    begun(history)
    history.add(EventType.COMMIT, "t", transaction="t1")
    history.kill()
    before = list(history.events)
    for found in (["1"], ["2", "3"]):
        history.events = list(before)
        history.drain(*found)
        assert find_faults(history) == [], found
    for found in ([], ["2"], ["3"], ["1", "2"], ["1", "2", "3"]):
        history.events = list(before)
        history.drain(*found)
        assert history.kinds() == [FaultKind.PARTIAL_TRANSACTION], found


def test_a_missing_unconfirmed_message_proves_no_commit(history: HistoryBuilder) -> None:
    history.publish("0")
    history.deliver("0", by="t")
    begun(history)
    history.add(EventType.ACK, "t", "p:0", "q", transaction="t1")
    history.add(EventType.COMMIT, "t", transaction="t1")
    history.kill()
    history.drain("1")
    assert find_faults(history) == []


def test_a_message_consumed_before_the_crash_proves_no_commit(history: HistoryBuilder) -> None:
    begun(history)
    history.add(EventType.COMMIT, "t", transaction="t1")
    history.consume("2")
    history.kill()
    history.drain("3")
    assert find_faults(history) == []


@pytest.mark.parametrize("found", [[], ["2"], ["1", "2", "3"]])
def test_a_commit_with_a_reply_must_hold(history: HistoryBuilder, found: list[str]) -> None:
    begun(history)
    history.add(EventType.COMMIT, "t", transaction="t1")
    history.add(EventType.COMMITTED, "t", transaction="t1")
    history.kill()
    history.drain(*found)
    assert set(history.kinds()) <= {FaultKind.LOST, FaultKind.RESURRECTED}
    assert history.kinds()


@pytest.mark.parametrize("rolled_back", [True, False])
def test_uncommitted_messages_are_never_delivered(history: HistoryBuilder, rolled_back: bool) -> None:
    begun(history)
    if rolled_back:
        history.add(EventType.ROLLBACK, "t", transaction="t1")
    history.kill()
    before = list(history.events)
    history.drain("1")
    assert find_faults(history) == []
    history.events = before
    history.drain("1", "2")
    assert history.kinds() == [FaultKind.PARTIAL_TRANSACTION]


# Definitions


@pytest.mark.parametrize("replied", [True, False])
@pytest.mark.parametrize("found", [EventType.EXISTS, EventType.MISSING])
def test_definitions_match_the_replies(history: HistoryBuilder, replied: bool, found: EventType) -> None:
    history.add(EventType.DECLARE, "c", "name")
    history.add(EventType.DECLARED, "c", "name")
    history.add(EventType.DELETE, "c", "name")
    if replied:
        history.add(EventType.DELETED, "c", "name")
    history.kill()
    history.add(found, "d", "name")
    assert history.kinds() == ([FaultKind.DEFINITIONS] if replied and found is EventType.EXISTS else [])
    history.add(EventType.EXISTS if found is EventType.MISSING else EventType.MISSING, "d", "name")
    assert FaultKind.DEFINITIONS in history.kinds()


def test_an_acknowledged_message_may_come_again_only_after_a_node_of_a_cluster_failed() -> None:
    history = HistoryBuilder()
    history.publish("1", "2")
    history.consume("1")
    history.add(EventType.DISTURBED, "")
    history.add(EventType.CONFIRMED, "p", "p:2")
    history.consume("1", by="c2", again=True)
    assert history.kinds() == []
    history.consume("1", by="c2", again=True)
    assert history.kinds() == [FaultKind.RESURRECTED]
    history.drain()
    assert history.kinds() == [FaultKind.RESURRECTED, FaultKind.LOST]
