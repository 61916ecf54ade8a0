"""`warren dlq`: its tables, its JSON, and its exit statuses."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
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
    assert r"OSError: [red]no\ndisk[/red]" in lines[1]
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
    assert await dlq("replay", f"{name}.dead", "--id", "m1", "--rate", "1000/s") == ExitStatus.SUCCESS
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
            (("ls", name, "--exact"), ExitStatus.SUCCESS, f"3 of 3 letters in {name}"),
            (
                ("discard", name, "--yes", "--exact"),
                ExitStatus.SUCCESS,
                f"3 of 3 letters in {name} discarded",
            ),
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


async def test_a_queue_stands_for_its_dead_letter_queue(
    parked: App, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with parked:
        await parked.publish(b"waiting", key=name)
    line = f"{name}: reading its dead letters in {name}.dead (--exact reads {name} itself)\n"
    for words in (("ls", name), ("groups", name), ("show", name, "m1"), ("replay", name, "--dry-run")):
        assert await dlq(*words) == ExitStatus.SUCCESS
        out, err = capsys.readouterr()
        assert err == line
        assert "waiting" not in out
    assert await dlq("discard", name, "--yes") == ExitStatus.SUCCESS
    assert capsys.readouterr().out == f"3 of 3 letters in {name}.dead discarded\n"
    assert await dlq("ls", name, "--exact") == ExitStatus.SUCCESS
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == (f"1 of 1 letters in {name}", "")


@pytest.fixture
async def causes(parked: App, name: str) -> None:
    """Add five letters with one error but for its values, and one with another, to the three of `parked`."""
    async with parked:
        for number in range(5):
            error = f"ValueError: order {number} of 2026-11-{number + 10}T08:00:00Z has no price"
            headers = {**DEAD, "warren-dead-error": error, "warren-dead-queue": name, "warren-exchange": "",
                       "warren-key": name, "warren-dead-time": 1_700_000_000_000 + number * 1000}  # fmt: skip
            await parked.publish({"n": number}, key=f"{name}.dead", message_id=f"v{number}", headers=headers)
        headers["warren-dead-error"] = "ValueError: the order has no customer"
        await parked.publish({"n": 9}, key=f"{name}.dead", message_id="v9", headers=headers)


@pytest.mark.usefixtures("causes")
async def test_dead_letters_are_grouped_replayed_and_discarded_by_cause(
    name: str, amqp_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dlq("groups", f"{name}.dead", "--json") == ExitStatus.SUCCESS
    groups = json.loads(capsys.readouterr().out)
    assert [(each["count"], each["error"], each["example"]) for each in groups] == [
        (5, "ValueError: order <number> of <time> has no price", "v4"),
        (3, "OSError: [red]no disk[/red]", "m2"),
        (1, "ValueError: the order has no customer", "v9"),
    ]
    assert (groups[0]["queue"], groups[0]["reason"], groups[0]["first"], groups[0]["last"]) == (
        name,
        "failed",
        "2023-11-14T22:13:20+00:00",
        "2023-11-14T22:13:24+00:00",
    )
    assert await dlq("groups", f"{name}.dead", "--exception", "ValueError") == ExitStatus.SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == [groups[0]["group"], "5", name]
    assert lines[-1] == f"2 causes of 6 letters; 9 letters in {name}.dead"
    assert await dlq("ls", f"{name}.dead", "--group", groups[2]["group"], "--json") == ExitStatus.SUCCESS
    assert [each["message_id"] for each in json.loads(capsys.readouterr().out)] == ["v9"]
    assert await dlq("replay", f"{name}.dead", "--group", groups[2]["group"]) == ExitStatus.SUCCESS
    assert (await take_one(amqp_url, name)).message_id == "v9"
    assert await dlq("discard", f"{name}.dead", "--yes", "--group", groups[0]["group"]) == ExitStatus.SUCCESS
    capsys.readouterr()
    assert await dlq("ls", f"{name}.dead") == ExitStatus.SUCCESS
    assert capsys.readouterr().out.splitlines()[-1] == f"3 of 3 letters in {name}.dead"


async def test_a_letter_is_edited_by_options_and_replayed(
    parked: App, name: str, amqp_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("edit", f"{name}.dead", "m1", "--set", "n=7", "--set", "note=late", "--header", "tenant=north")
    assert await dlq(*words, "--dry-run") == ExitStatus.SUCCESS
    assert capsys.readouterr().out.endswith('{\n  "n": 7,\n  "note": "late"\n}\n')
    assert await dlq(*words) == ExitStatus.SUCCESS
    assert capsys.readouterr().out == "m1 edited and replayed\n"
    message = await take_one(amqp_url, name)
    assert (message.message_id, message.body) == ("m1", b'{"n":7,"note":"late"}')
    assert message.content_type == "application/json"
    assert (message.headers["tenant"], message.headers["warren-edited"]) == ("north", 1)
    assert not {"warren-dead-reason", "warren-dead-error"} & set(message.headers)
    (tmp_path / "body.json").write_text('{"lines": [{"price": 1}]}')
    options = ("--body", str(tmp_path / "body.json"), "--set", "lines.0.price=2")
    assert await dlq("edit", f"{name}.dead", "m2", *options) == ExitStatus.SUCCESS
    assert (await take_one(amqp_url, name)).body == b'{"lines":[{"price":2}]}'
    assert await dlq("edit", f"{name}.dead", "m2", *options) == ExitStatus.FAILED
    assert "no message m2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--body", "-"), "cannot be edited|is not JSON"),
        (("--set", "lines.0=1"), "the body has no 'lines' there"),
        (("--set", "price"), "write NAME=VALUE"),
        (("--header", "warren-key=x"), "the header 'warren-key' cannot be edited"),
        (("--body", "/nonexistent/file"), "cannot read /nonexistent/file"),
    ],
)
async def test_an_edit_that_is_not_possible_leaves_the_letter(
    parked: App,
    name: str,
    words: tuple[str, ...],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{no json")))
    with pytest.raises(UsageError, match=error):
        await dlq("edit", f"{name}.dead", "m1", *words)
    assert await dlq("ls", f"{name}.dead") == ExitStatus.SUCCESS
    assert capsys.readouterr().out.splitlines()[-1] == f"3 of 3 letters in {name}.dead"


@pytest.mark.processes
async def test_a_letter_is_edited_in_an_editor(
    parked: App,
    name: str,
    amqp_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("VISUAL", "sed -i s/no/not/")
    assert await dlq("edit", f"{name}.dead", "m1") == ExitStatus.FAILED
    assert "m1 was not changed, and not replayed" in capsys.readouterr().err
    monkeypatch.setenv("VISUAL", 'sed -i \'s/"n": 1/"n": 1, x/\'')
    with pytest.raises(UsageError, match=r"the edited text is not JSON.*the edited text is in") as refused:
        await dlq("edit", f"{name}.dead", "m1")
    _check_kept_file(tmp_path, str(refused.value))
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(UsageError, match="the editor 'false' failed with status 1"):
        await dlq("edit", f"{name}.dead", "m1")
    monkeypatch.setenv("VISUAL", "/nonexistent/editor")
    with pytest.raises(UsageError, match="cannot start the editor"):
        await dlq("edit", f"{name}.dead", "m1")
    monkeypatch.setenv("VISUAL", 'sed -i \'s/"n": 1/"n": 11/\'')
    assert await dlq("edit", f"{name}.dead", "m1") == ExitStatus.SUCCESS
    assert not os.listdir(tmp_path)
    assert (await take_one(amqp_url, name)).body == b'{"n":11}'


HALF = b'{"name":"\\ud83d","n":1}'
"""Valid JSON (RFC 8259, section 8.2), as JavaScript writes it for half of an emoji."""
DEEP = b"[" * 100_000
"""Text that Python's JSON parser refuses with a RecursionError."""


@pytest.fixture
async def unusual(parked: App, name: str, amqp_url: str) -> str:
    """Park letters whose bodies hold half of a surrogate pair, NaN, and lists within lists; return the queue."""
    dead = {
        "warren-dead-reason": "failed",
        "warren-dead-queue": name,
        "warren-exchange": "",
        "warren-key": name,
    }
    letters = {
        "half": HALF,
        "nan": b'{"ratio": NaN}',
        "deep": DEEP,
        "controls": b'{"a": "\xc2\x9b\xe2\x80\xae"}',
    }
    async with App(amqp_url, name="unusual") as app:
        for message_id, body in letters.items():
            await app.publish(body, exchange="", key=f"{name}.dead", message_id=message_id, headers=dead)
    return f"{name}.dead"


async def test_an_unusual_letter_is_shown(unusual: str, capsys: pytest.CaptureFixture[str]) -> None:
    for letter, shown in (
        ("half", '"name": "\\ud83d"'),
        ("nan", '{"ratio": NaN}'),
        ("deep", "[" * 100_000),
        ("controls", '"a": "\\u009b\\u202e"'),
    ):
        assert await dlq("show", unusual, letter) == ExitStatus.SUCCESS
        assert shown in capsys.readouterr().out
        assert await dlq("show", unusual, letter, "--json") == ExitStatus.SUCCESS
        assert json.loads(capsys.readouterr().out)["message_id"] == letter


@pytest.mark.processes
async def test_an_unusual_letter_is_edited_and_its_file_removed(
    unusual: str,
    name: str,
    amqp_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("VISUAL", "true")
    for letter in ("half", "nan", "deep", "controls"):
        assert await dlq("edit", unusual, letter) == ExitStatus.FAILED
        assert "was not changed" in capsys.readouterr().err
        assert not os.listdir(tmp_path)
    assert await dlq("edit", unusual, "half", "--set", "n=7", "--dry-run") == ExitStatus.SUCCESS
    assert '"n": 7' in capsys.readouterr().out
    with pytest.raises(UsageError, match="--set needs a JSON body"):
        await dlq("edit", unusual, "deep", "--set", "n=7", "--dry-run")
    monkeypatch.setenv("VISUAL", 'sed -i \'s/"n": 1/"n": 11/\'')
    assert await dlq("edit", unusual, "half") == ExitStatus.SUCCESS
    assert (await take_one(amqp_url, name)).body == HALF.replace(b"1}", b"11}")
    monkeypatch.setenv("VISUAL", 'sed -i \'s/body_text.*/body_text": "\\\\ud83d"/\'')
    with pytest.raises(UsageError, match="half of a surrogate pair at character 1") as refused:
        await dlq("edit", unusual, "deep")
    _check_kept_file(tmp_path, str(refused.value))
    monkeypatch.setenv("VISUAL", "sed -i '1s/^/\\xff/'")
    with pytest.raises(UsageError, match="the edited text is not UTF-8") as refused:
        await dlq("edit", unusual, "nan")
    _check_kept_file(tmp_path, str(refused.value))
    monkeypatch.setenv("VISUAL", "rm")
    with pytest.raises(UsageError, match="the edited text cannot be read: No such file"):
        await dlq("edit", unusual, "nan")
    assert not os.listdir(tmp_path)


def _check_kept_file(folder: Path, error: str) -> None:
    """Check that the folder has the one file that the error names, which no other user may read; delete it."""
    (kept,) = folder.glob("warren-letter-*.json")
    assert str(kept) in error
    assert kept.stat().st_mode & 0o077 == 0
    kept.unlink()


async def test_an_unreachable_broker_exits_with_the_io_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert await dlq("ls", "q", "--url", "amqp://guest:guest@127.0.0.1:1/") == ExitStatus.IO
    assert capsys.readouterr().err.startswith("warren dlq: cannot connect")
