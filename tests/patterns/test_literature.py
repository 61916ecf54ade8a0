"""The corrected textbook programs run to their end on any broker, and print the expected output."""

from __future__ import annotations

import runpy
from collections.abc import AsyncIterator
from typing import Any

import pytest

import warren.sdk
from tests.patterns.topology_cleanup import delete_topology
from tests.support.example_programs import EXAMPLES
from warren.sdk import App

pytestmark = pytest.mark.slow

FOLDER = EXAMPLES / "literature"

EXPECTED_OUTPUT = {
    "hello": ["Hello World"],
    "publish_subscribe": ["disk: started", "screen: started"],
    "logs_by_severity": ["no binding for waning", "disk: no room", "screen: no room", "screen: slow"],
    "topics": [
        "no binding matches the fox",
        "orange: rabbit",
        "rabbits and lazy ones: pink rabbit",
        "rabbits and lazy ones: rabbit",
        "rabbits and lazy ones: sloth",
    ],
    "task_queue": ["completed 20, attempted the bad one 3 times"],
    "mandatory": ["returned: a letter", "312 NO_ROUTE literature.nowhere m1"],
    "alternate_exchange": ["handled: hello", "kept, and alerted: unknown"],
    "ttl": [
        "of a message: ['short expired']",
        "of a queue: ['one expired', 'two expired']",
        "the queue itself: True",
        "behind a longer one: True",
    ],
    "dead_letters": ["rejected DeadLetter: too heavy", "expired "],
    "delay_ladder": ["checked after 100 ms", "checked after 500 ms", "checked after 1000 ms"],
    "priority": ["now", "soon", "also soon", "whenever"],
    "fibonacci_rpc": ["55 6765 832040", "out_of_range"],
    "transaction": ["rolled back: 0 0", "committed: 5 5"],
    "confirms_one_by_one": ["confirmed: 20"],
    "confirms_in_batches": ["batches of [100, 100, 50]"],
    "confirms_asynchronous": ["confirmed: 1000"],
    "prefetch": ["unacknowledged: [3, 3]"],
    "lazy_queue": ["in order: True"],
}


@pytest.fixture
async def apps(amqp_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[App]]:
    """Return the Apps that a program makes on the broker under test; delete their topology afterwards."""
    made: list[App] = []

    class RecordedApp(App):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            made.append(self)

        async def call(self, *arguments: Any, **options: Any) -> Any:
            """Call with a timeout that suffices on a busy machine: waiting times are not under test."""
            return await super().call(*arguments, **{**options, "timeout": 60.0})

    monkeypatch.setenv("AMQP_URL", amqp_url)
    monkeypatch.setattr(warren.sdk, "App", RecordedApp)
    yield made
    await delete_topology(amqp_url, made, "literature.")


def test_every_program_has_an_expected_output() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXPECTED_OUTPUT)


@pytest.mark.parametrize("program", EXPECTED_OUTPUT)
async def test_a_program_names_the_textbook_error_and_prints_its_expected_output(
    program: str, apps: list[App], capsys: pytest.CaptureFixture[str]
) -> None:
    names = runpy.run_path(str(FOLDER / f"{program}.py"))
    assert "textbook" in names["__doc__"].lower()
    await names["main"]()
    lines = capsys.readouterr().out.splitlines()
    if program == "dead_letters":
        lines = lines[:2]  # The number of expired messages depends on the speed of the machine.
    if program == "delay_ladder":
        lines.sort(key=len)  # After a pause of the machine several may be due, and arrive in any order.
    assert lines == EXPECTED_OUTPUT[program]
