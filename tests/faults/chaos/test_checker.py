"""The checker finds each fault that is planted in a history, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.chaos.checker import ACK_SECONDS, SYNC_SECONDS, Kind, check, owed
from tests.faults.chaos.history import What, read
from tests.faults.chaos.story import Story


def test_a_life_without_faults(story: Story, tmp_path: Path) -> None:
    story.confirmed("1", "2", "3", "4")
    story.sent("5")
    story.took("1")
    story.got("2", "3")
    story.settled("3", how=What.REQUEUE)
    story.got("3", again=True)
    story.say(What.DECLARE, "c", "name")
    story.say(What.DECLARED, "c", "name")
    story.killed()
    story.say(What.EXISTS, "d", "name")
    story.drained("1", "2", "3", "4")
    assert check(story) == []
    story.write(tmp_path / "history")
    assert read(tmp_path / "history").events == story.events
    assert read(tmp_path / "history").rules == story.rules


# -- lost


def test_a_confirmed_message_that_is_lost(story: Story) -> None:
    story.confirmed("1", "2")
    story.sent("3")
    story.killed()
    assert owed(story)
    story.drained("1")
    assert story.kinds() == [Kind.LOST]


def test_one_queue_of_a_fan_out_that_has_lost_it(story: Story) -> None:
    story.confirmed("1", to=("q", "levels"))
    story.killed()
    story.drained("1")
    assert story.kinds() == [Kind.LOST]


def test_a_message_that_came_back_after_its_acknowledgement_and_is_lost_then(story: Story) -> None:
    story.confirmed("1")
    story.took("1")
    story.killed()
    story.got("1", again=True)
    story.killed()
    story.drained()
    assert story.kinds() == [Kind.LOST]


def test_a_dead_letter_that_is_lost(story: Story) -> None:
    story.confirmed("1", "2", to=("source",))
    story.got("1", "2", at="source")
    story.settled("1", "2", at="source", how=What.REJECT)
    story.killed()
    story.drained("1", at="grave", again=False)
    assert story.kinds() == [Kind.LOST]


def test_what_expired_is_not_lost_where_its_letter_is(story: Story) -> None:
    story.confirmed("1", "2", to=("mortal",))
    story.drained("1", at="grave-2", again=False)
    assert story.kinds() == [Kind.LOST]


# -- back from the dead


def confirm(story: Story) -> None:
    story.confirmed("9", to=(), by="c")


def commit(story: Story) -> None:
    story.say(What.COMMIT, "c", transaction="t")
    story.say(What.COMMITTED, "c", transaction="t")


def time(story: Story) -> None:
    story.fenced()
    story.wait(ACK_SECONDS + SYNC_SECONDS)


def time_and_a_confirm(story: Story) -> None:
    story.fenced()
    story.wait(ACK_SECONDS)
    story.confirmed("9", by="other")


@pytest.mark.parametrize("how", [confirm, commit, time, time_and_a_confirm])
def test_an_acknowledgement_that_was_safe(story: Story, how: Callable[[Story], None]) -> None:
    story.confirmed("1")
    story.took("1")
    how(story)
    story.killed()
    story.drained("1")
    assert Kind.RESURRECTED in story.kinds()


def nothing(story: Story) -> None:
    pass


def other_client(story: Story) -> None:
    story.confirmed("9", to=(), by="other")


def little_time(story: Story) -> None:
    story.fenced()
    story.wait(ACK_SECONDS / 2)


def little_time_and_a_confirm(story: Story) -> None:
    story.fenced()
    story.wait(ACK_SECONDS / 2)
    story.confirmed("9", to=(), by="other")


def unanswered(story: Story) -> None:
    story.say(What.FENCE, "c")
    story.wait(5)


@pytest.mark.parametrize("how", [nothing, other_client, little_time, little_time_and_a_confirm, unanswered])
def test_an_acknowledgement_that_was_not(story: Story, how: Callable[[Story], None]) -> None:
    story.confirmed("1")
    story.took("1")
    how(story)
    story.killed()
    story.drained("1")
    assert check(story) == []


def test_a_publish_from_before_the_acknowledgement_makes_nothing_safe(story: Story) -> None:
    story.confirmed("1")
    story.sent("9", to=(), by="c")
    story.took("1")
    story.say(What.CONFIRMED, "c", "c:9")
    story.killed()
    story.drained("1")
    assert check(story) == []


def test_an_acknowledgement_holds_while_the_broker_lives(story: Story) -> None:
    story.confirmed("1")
    story.took("1")
    story.got("1", again=True)
    assert story.kinds() == [Kind.RESURRECTED]


def test_a_clean_stop_writes_what_was_acknowledged(story: Story) -> None:
    story.confirmed("1")
    story.took("1")
    story.fenced()
    story.say(What.STOPPED, "")
    story.drained("1")
    assert story.kinds() == [Kind.RESURRECTED]


def test_what_was_taken_for_good_in_an_earlier_history_is_unknown(story: Story) -> None:
    story.confirmed("1")
    story.drained("1", again=False)
    story.killed()
    story.got("1", again=True)
    assert story.kinds() == [Kind.UNKNOWN]


# -- two places


def test_a_message_with_two_consumers(story: Story) -> None:
    story.confirmed("1")
    story.got("1")
    story.got("1", by="other", again=True)
    assert story.kinds() == [Kind.DOUBLED]


def test_a_letter_of_what_was_not_rejected(story: Story) -> None:
    story.confirmed("1", "2", to=("source",))
    story.got("1", at="source")
    story.got("1", at="grave")
    story.got("2", at="grave")
    assert story.kinds() == [Kind.DOUBLED, Kind.DOUBLED]


def test_a_death_that_is_undone_although_its_letter_is_gone_for_good(story: Story) -> None:
    story.confirmed("1", to=("source",))
    story.got("1", at="source")
    story.settled("1", at="source", how=What.REJECT)
    story.took("1", at="grave", by="other")
    story.confirmed("9", to=(), by="other")
    story.killed()
    story.drained("1", at="source")
    assert story.kinds() == [Kind.DOUBLED]


def test_a_death_may_be_undone_by_a_crash_with_all_that_followed(story: Story) -> None:
    story.confirmed("1", to=("source",))
    story.got("1", at="source")
    story.settled("1", at="source", how=What.REJECT)
    story.took("1", at="grave", by="other")
    story.killed()
    story.got("1", at="source", again=True)
    story.settled("1", at="source", how=What.REJECT)
    story.drained("1", at="grave", again=False)
    assert check(story) == []


# -- order and flags


def test_disorder(story: Story) -> None:
    story.confirmed("1", "2", "3")
    story.got("1", "3", "2")
    assert story.kinds() == [Kind.DISORDER]


def test_redeliveries_come_in_any_order_while_there_are_others(story: Story) -> None:
    story.confirmed("1", "2", "3")
    story.got("1", "2")
    story.settled("1", how=What.REQUEUE)
    story.got("3")
    story.got("1", again=True)
    assert check(story) == []


def test_what_was_recovered_is_in_order(story: Story) -> None:
    story.confirmed("1", "2")
    story.killed()
    story.drained("2", "1")
    assert story.kinds() == [Kind.DISORDER]


def test_priorities(story: Story) -> None:
    for message, priority in (("1", 0), ("2", 3), ("3", 9), ("4", 3), ("5", 4)):
        story.confirmed(message, to=("levels",), priority=priority)
    story.killed()
    story.drained("3", "5", "2", "4", "1", at="levels")
    assert check(story) == []
    story.events = story.events[:-11]
    story.drained("3", "5", "2", "1", "4", at="levels")
    assert story.kinds() == [Kind.DISORDER]


def test_a_second_delivery_without_its_mark(story: Story) -> None:
    story.confirmed("1")
    story.got("1")
    story.settled("1", how=What.REQUEUE)
    story.got("1")
    assert story.kinds() == [Kind.UNFLAGGED]


def test_after_a_crash_all_are_marked_and_after_a_stop_those_that_were_delivered(story: Story) -> None:
    story.confirmed("1", "2")
    story.got("1")
    story.say(What.STOPPED, "")
    story.got("1")
    story.got("2")
    assert story.kinds() == [Kind.UNFLAGGED]
    story.killed()
    story.got("2")
    assert story.kinds() == [Kind.UNFLAGGED, Kind.UNFLAGGED]


# -- transactions


def begun(story: Story) -> None:
    """A transaction that takes 1 and publishes 2 and 3."""
    story.confirmed("1")
    story.got("1", by="t")
    for message in ("2", "3"):
        story.say(What.PUBLISH, "t", f"p:{message}", "q", transaction="t1")
    story.say(What.ACK, "t", "p:1", "q", transaction="t1")


def test_a_commit_without_its_answer_has_happened_or_not(story: Story) -> None:
    begun(story)
    story.say(What.COMMIT, "t", transaction="t1")
    story.killed()
    before = list(story.events)
    for found in (["1"], ["2", "3"]):
        story.events = list(before)
        story.drained(*found)
        assert check(story) == [], found
    for found in ([], ["2"], ["3"], ["1", "2"], ["1", "2", "3"]):
        story.events = list(before)
        story.drained(*found)
        assert story.kinds() == [Kind.TRANSACTION], found


def test_what_was_not_confirmed_and_is_gone_proves_nothing(story: Story) -> None:
    story.sent("0")
    story.got("0", by="t")
    begun(story)
    story.say(What.ACK, "t", "p:0", "q", transaction="t1")
    story.say(What.COMMIT, "t", transaction="t1")
    story.killed()
    story.drained("1")
    assert check(story) == []


def test_what_was_consumed_before_the_crash_proves_nothing(story: Story) -> None:
    begun(story)
    story.say(What.COMMIT, "t", transaction="t1")
    story.took("2")
    story.killed()
    story.drained("3")
    assert check(story) == []


@pytest.mark.parametrize("found", [[], ["2"], ["1", "2", "3"]])
def test_a_commit_that_was_answered_holds(story: Story, found: list[str]) -> None:
    begun(story)
    story.say(What.COMMIT, "t", transaction="t1")
    story.say(What.COMMITTED, "t", transaction="t1")
    story.killed()
    story.drained(*found)
    assert set(story.kinds()) <= {Kind.LOST, Kind.RESURRECTED}
    assert story.kinds()


@pytest.mark.parametrize("rolled_back", [True, False])
def test_what_was_not_committed_never_comes(story: Story, rolled_back: bool) -> None:
    begun(story)
    if rolled_back:
        story.say(What.ROLLBACK, "t", transaction="t1")
    story.killed()
    before = list(story.events)
    story.drained("1")
    assert check(story) == []
    story.events = before
    story.drained("1", "2")
    assert story.kinds() == [Kind.TRANSACTION]


# -- definitions


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("found", [What.EXISTS, What.MISSING])
def test_definitions_are_as_their_clients_were_told(story: Story, told: bool, found: What) -> None:
    story.say(What.DECLARE, "c", "name")
    story.say(What.DECLARED, "c", "name")
    story.say(What.DELETE, "c", "name")
    if told:
        story.say(What.DELETED, "c", "name")
    story.killed()
    story.say(found, "d", "name")
    assert story.kinds() == ([Kind.DEFINITIONS] if told and found is What.EXISTS else [])
    story.say(What.EXISTS if found is What.MISSING else What.MISSING, "d", "name")
    assert Kind.DEFINITIONS in story.kinds()
