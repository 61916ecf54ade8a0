"""What the checker makes of what clients have read of a stream."""

from __future__ import annotations

import pytest

from tests.faults.chaos.checker import Kind
from tests.faults.chaos.history import What
from tests.faults.chaos.story import Story


def streamed(story: Story, *found: str, last: tuple[str, ...]) -> list[Kind]:
    """Confirmed 1 and 2, sent 3, crashed; `found` was read before, `last` by who reads all."""
    story.confirmed("1", "2", to=("stream",))
    story.sent("3", to=("stream",))
    for offset, message in enumerate(found):
        story.say(What.READ, "r", f"p:{message}", "stream", offset=offset)
    story.killed()
    story.say(What.ALONE, "all", "", "stream")
    for offset, message in enumerate(last):
        story.say(What.READ, "all", f"p:{message}", "stream", offset=offset)
    story.say(What.EMPTIED, "d")
    return story.kinds()


@pytest.mark.parametrize("last", [("1", "2"), ("1", "2", "3")])
def test_a_stream_keeps_what_was_confirmed(story: Story, last: tuple[str, ...]) -> None:
    assert streamed(story, "1", last=last) == []


@pytest.mark.parametrize(
    ("found", "last", "fault"),
    [
        ((), ("1",), Kind.LOST),
        (("1", "2", "3"), ("1", "2"), Kind.LOST),
        ((), ("1", "2", "2"), Kind.DOUBLED),
        ((), ("2", "1"), Kind.DISORDER),
        (("1", "3"), ("1", "2"), Kind.DOUBLED),
        ((), ("1", "2", "9"), Kind.UNKNOWN),
    ],
)
def test_a_stream_with_a_fault(
    story: Story, found: tuple[str, ...], last: tuple[str, ...], fault: Kind
) -> None:
    assert fault in streamed(story, *found, last=last)


def test_a_stream_has_no_holes(story: Story) -> None:
    story.confirmed("1", "2", to=("stream",))
    story.say(What.ALONE, "all", "", "stream")
    for offset in (0, 2):
        story.say(What.READ, "all", f"p:{1 + offset // 2}", "stream", offset=offset)
    story.say(What.EMPTIED, "d")
    assert story.kinds() == [Kind.DISORDER]
