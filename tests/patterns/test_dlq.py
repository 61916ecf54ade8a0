"""`warren dlq`: its tables, its JSON, and its exit statuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.conftest import NewApp
from tests.support.async_client import take_one
from tests.support.frames import BASIC_GET_EMPTY
from tests.support.proxy import Proxy
from tests.support.proxy_queue_counts import EmptyCounts
from warren.cli.dlq import main
from warren.core.errors import ExitStatus, UsageError
from warren.patterns.dead_letters import parking_lot
from warren.sdk import App, Queue

DEAD = {
    "warren-dead-reason": "failed",
    "warren-dead-error": "OSError: [red]no\ndisk[/red]",
    "warren-dead-time": 1_700_000_000_000,
    "warren-deaths": 2,
}


@pytest.fixture
async def parked(new_app: NewApp, name: str, monkeypatch: pytest.MonkeyPatch) -> App:
    """Return an App with three dead letters in `<name>.dead`, which were published to the queue `name`."""
    app = new_app()
    app.declare(Queue(name), Queue(f"{name}.dead", dead_letter_exchange=None))
    monkeypatch.setenv("AMQP_URL", str(app.url))
    headers = {**DEAD, "warren-dead-queue": name, "warren-exchange": "", "warren-key": name}
    async with app:
        for number in range(3):
            await app.publish({"n": number}, key=f"{name}.dead", message_id=f"m{number}", headers=headers)
    return app


async def dlq(*words: str) -> int:
    return await asyncio.to_thread(main, words)


async def test_dead_letters_are_listed_as_a_table_and_as_json(
    parked: App, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dlq("ls", f"{name}.dead", "--reason", "failed", "--limit", "2") == ExitStatus.SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "id",
        "type",
        "died",
        "in",
        "reason",
        "error",
        "key",
        "deaths",
        "last",
        "death",
        "bytes",
    ]
    assert lines[1].split()[:3] == ["m0", name, "failed"]
    # Markup and control characters in a message neither colour nor break the table.
    assert "OSError: [red]no\N{REPLACEMENT CHARACTER}disk[/red]" in lines[1]
    assert lines[-1] == f"2 of 3 letters in {name}.dead at most; --limit shows more"
    assert await dlq("ls", f"{name}.dead", "--json", "--newer-than", "1h") == ExitStatus.SUCCESS
    assert json.loads(capsys.readouterr().out) == []
    assert await dlq("ls", f"{name}.dead", "--json", "--older-than", "1h") == ExitStatus.SUCCESS
    listed = json.loads(capsys.readouterr().out)
    assert [letter["message_id"] for letter in listed] == ["m0", "m1", "m2"]
    assert (listed[0]["key"], listed[0]["deaths"], listed[0]["bytes"]) == (name, 2, 7)


async def test_one_dead_letter_is_shown_with_headers_and_body(
    parked: App, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dlq("show", f"{name}.dead", "m1") == ExitStatus.SUCCESS
    shown = capsys.readouterr().out
    assert "message_id: m1\n" in shown
    assert "  warren-dead-reason: failed\n" in shown
    assert shown.endswith('{\n  "n": 1\n}\n')
    assert await dlq("show", f"{name}.dead", "m1", "--json") == ExitStatus.SUCCESS
    details: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (details["body"], details["properties"]["content_type"]) == ('{"n":1}', "application/json")
    assert await dlq("show", f"{name}.dead", "m9") == ExitStatus.FAILED
    assert "no message m9" in capsys.readouterr().err


async def test_dead_letters_are_replayed_and_discarded(
    parked: App, name: str, amqp_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dlq("replay", f"{name}.dead", "--dry-run") == ExitStatus.SUCCESS
    assert capsys.readouterr().out == f"3 of 3 letters in {name}.dead would be replayed\n"
    assert await dlq("replay", f"{name}.dead", "--id", "m1", "--rate", "1000") == ExitStatus.SUCCESS
    assert capsys.readouterr().out == f"1 of 3 letters in {name}.dead replayed\n"
    assert (await take_one(amqp_url, name)).message_id == "m1"
    with pytest.raises(UsageError, match="confirm with --yes"):
        await dlq("discard", f"{name}.dead")
    assert await dlq("discard", f"{name}.dead", "--yes", "--json") == ExitStatus.SUCCESS
    assert json.loads(capsys.readouterr().out) == {
        "read": 2, "matched": 2, "discarded": 2, "dry_run": False, "failed": [],
    }  # fmt: skip
    assert await dlq("ls", f"{name}.dead") == ExitStatus.SUCCESS
    assert capsys.readouterr().out == f"0 of 0 letters in {name}.dead\n"


async def test_a_failed_replay_exits_with_status_1(
    parked: App, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with parked:
        await parked.publish(
            b"\xff", key=f"{name}.dead", message_id="m7", headers={"warren-exchange": "", "warren-key": "?"}
        )
    assert await dlq("replay", f"{name}.dead") == ExitStatus.FAILED
    out, err = capsys.readouterr()
    assert out == f"3 of 4 letters in {name}.dead replayed\n"
    assert err.startswith("not replayed: m7: no queue takes")


@pytest.fixture
def target(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the MODULE:APP of an App with the dead letter queues `<name>.dead` and `<name>.never.dead`."""
    module = f"shop_{name}"
    (tmp_path / f"{module}.py").write_text(
        f"from warren.sdk import App, Queue\napp = App()\napp.declare(Queue({name!r}), Queue('{name}.never'))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{module}:app"


async def test_the_dead_letter_queues_of_an_app_are_counted(
    parked: App, name: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dlq("queues", target) == ExitStatus.FAILED
    assert capsys.readouterr().out == f"{name}.dead\t3\n{name}.never.dead\tnot declared\n"
    assert await dlq("discard", f"{name}.dead", "--yes") == ExitStatus.SUCCESS
    capsys.readouterr()
    assert await dlq("queues", target, "--json") == ExitStatus.SUCCESS
    assert json.loads(capsys.readouterr().out) == {f"{name}.dead": 0, f"{name}.never.dead": None}


async def test_no_command_takes_a_queue_without_a_leader_for_empty(
    parked: App, name: str, amqp_url: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Proxy(amqp_url) as proxy:
        for words, status, printed in (
            (("queues", target), ExitStatus.FAILED, f"{name}.dead\t3\n{name}.never.dead\tnot declared"),
            (("ls", f"{name}.dead"), ExitStatus.SUCCESS, f"3 of 3 letters in {name}.dead"),
            (("replay", f"{name}.dead"), ExitStatus.SUCCESS, f"3 of 3 letters in {name}.dead replayed"),
            (("ls", name), ExitStatus.SUCCESS, f"3 of 3 letters in {name}"),
            (("discard", name, "--yes"), ExitStatus.SUCCESS, f"3 of 3 letters in {name} discarded"),
            (("queues", target), ExitStatus.SUCCESS, f"{name}.dead\t0\n{name}.never.dead\tnot declared"),
        ):
            proxy.to_client.rewrite = counts = EmptyCounts(10)
            assert (await dlq(*words, "--url", proxy.url), words) == (status, words)
            assert capsys.readouterr().out.endswith(f"{printed}\n")
            assert counts.rewritten


@pytest.mark.parametrize("words", [("queues",), ("ls",), ("replay",), ("discard", "--yes")])
async def test_a_queue_that_does_not_answer_exits_with_the_io_status(
    new_app: NewApp,
    name: str,
    amqp_url: str,
    target: str,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app, Proxy(amqp_url) as proxy:
        proxy.to_client.rewrite = EmptyCounts(1000, drop=[BASIC_GET_EMPTY])
        # On a slow machine the declare times out, with the same result.
        monkeypatch.setattr(parking_lot, "ANSWER_SECONDS", 0.1)
        of = target if words[0] == "queues" else f"{name}.dead"
        assert await dlq(words[0], of, *words[1:], "--url", proxy.url) == ExitStatus.IO
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"warren dlq: cannot read queue '{name}.dead': no answer in time\n")


async def test_invalid_arguments_raise_usage_errors(
    amqp_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    with pytest.raises(UsageError, match="no broker is named"):
        await dlq("ls", name)
    with pytest.raises(UsageError, match=r"no queue.*dead letters are in <queue>\.dead"):
        await dlq("ls", name, "--url", amqp_url)
    with pytest.raises(UsageError, match="no duration"):
        await dlq("ls", name, "--older-than", "soon", "--url", amqp_url)
    with pytest.raises(UsageError, match="--rate"):
        await dlq("replay", name, "--rate", "0", "--url", amqp_url)
    with pytest.raises(UsageError, match="QUEUE"):
        await dlq("ls")


async def test_an_unreachable_broker_exits_with_the_io_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert await dlq("ls", "q", "--url", "amqp://guest:guest@127.0.0.1:1/") == ExitStatus.IO
    assert capsys.readouterr().err.startswith("warren dlq: cannot connect")
