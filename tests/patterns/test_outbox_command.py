"""`warren outbox` on the database of an App whose broker refuses messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event
from sqlalchemy.exc import ProgrammingError

from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.support.processes import closed_port
from warren.cli.outbox import main as outbox_command
from warren.core.errors import UsageError
from warren.patterns import Outbox
from warren.sdk import App, Event, Queue
from warren.testing import Warren

Capture = pytest.CaptureFixture[str]


class Placed(Event, exchange="orders", key="order.placed", audience=["audit"]):
    number: int


@dataclass
class Database:
    """Database of the outbox.

    :ivar options: options of the command that name it.
    """

    sessions: Sessions
    table: str
    options: list[str]

    async def run(self, *words: str) -> int:
        """Run the command in a thread: it has an event loop of its own."""
        return await asyncio.to_thread(outbox_command, [*words, *self.options])


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        async with open_sessions(sqlite_url(tmp_path)) as sessions:
            yield Database(sessions, "warren_outbox", ["--database", str(tmp_path / "work.sqlite")])
        return
    url, schema = request.getfixturevalue("postgres_url"), f"t{uuid4().hex}"
    table = f"{schema}.letters"
    async with open_sessions(url, schema) as sessions:
        yield Database(sessions, table, ["--database", url, "--table", table])


class Shop:
    """App whose outbox has a message that the broker refuses."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.app = App()
        self.outbox = Outbox(database.sessions, table=database.table, retry_after=timedelta(hours=1))
        self.app.include(self.outbox)
        self.app.publishes(Placed)
        self.audited: list[int] = []

        @self.app.handle(Placed, queue="audit")
        async def audit(event: Placed) -> None:
            self.audited.append(event.number)

    async def add(self, *numbers: int, **options: Any) -> None:
        async with self.database.sessions.begin() as session:
            for number in numbers:
                await self.outbox.add(session, Placed(number=number), ordered_by="a", **options)

    async def refuse_one(self, warren: Warren) -> None:
        """Commit a message that no queue takes, and one behind it."""
        await self.add(1, exchange="", key="missing")
        await self.add(2)
        await warren.settle()
        assert self.outbox.statistics.failed == 1


async def states(database: Database, capsys: Capture) -> list[tuple[int, str, int]]:
    capsys.readouterr()
    assert await database.run("ls", "--json") == 0
    return [(each["id"], each["state"], each["attempts"]) for each in json.loads(capsys.readouterr().out)]


async def test_waiting_messages_are_listed_and_shown(
    warren: Warren, database: Database, capsys: Capture
) -> None:
    shop = Shop(database)
    async with warren.running(shop.app):
        await shop.refuse_one(warren)
        assert await states(database, capsys) == [(1, "refused", 1), (2, "held_back", 0)]
        assert await database.run("ls", "--limit", "1") == 0
        first, last = capsys.readouterr().out.splitlines()
        assert "refused  a  placed  (default)/missing  1 attempts: no queue takes" in first
        assert last == "1 of 2 waiting messages; --limit shows more"
        assert await database.run("show", "1") == 0
        shown = capsys.readouterr().out
        assert "error: no queue takes routing key 'missing'" in shown
        assert shown.endswith('\n{"number":1}\n')
        assert await database.run("show", "7") == 1
        assert "no message with the id 7 waits" in capsys.readouterr().err


async def test_a_refused_message_is_retried_on_request(
    warren: Warren, database: Database, capsys: Capture
) -> None:
    shop = Shop(database)
    async with warren.running(shop.app):
        await shop.refuse_one(warren)
        assert await database.run("retry", "2") == 1
        assert await database.run("retry", "1") == 0
        await warren.advance(seconds=1)
        assert await states(database, capsys) == [(1, "refused", 2), (2, "held_back", 0)]
        await shop.app.declare_now(Queue("missing"))
        assert await database.run("retry", "--all") == 0
        assert capsys.readouterr().out.endswith("1 messages will be tried again\n")
        await warren.advance(seconds=1)
        assert shop.audited == [2]
        assert await states(database, capsys) == []


async def test_a_skipped_message_no_longer_holds_others_back(
    warren: Warren, database: Database, capsys: Capture
) -> None:
    shop = Shop(database)
    async with warren.running(shop.app):
        await shop.refuse_one(warren)
        with pytest.raises(UsageError, match="confirm with --yes"):
            await database.run("skip", "1")
        assert await database.run("skip", "1", "--yes") == 0
        await warren.advance(seconds=1)
        assert shop.audited == [2]
        assert await states(database, capsys) == []
        assert await database.run("skip", "1", "--yes") == 1


async def test_the_relay_works_without_the_right_to_create_the_table_of_refusals(
    warren: Warren, database: Database, capsys: Capture
) -> None:
    def refuse(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "CREATE TABLE" in statement and "_refused" in statement:
            raise ProgrammingError(statement, None, Exception("permission denied"))

    event.listen(database.sessions.kw["bind"].sync_engine, "before_cursor_execute", refuse)
    shop = Shop(database)
    async with warren.running(shop.app):
        await shop.refuse_one(warren)
        await shop.app.declare_now(Queue("missing"))
        await warren.advance(hours=2)
        assert shop.audited == [2]
        assert await states(database, capsys) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--database", "missing.sqlite"], "give postgresql://HOST/DATABASE, or the path"),
        (["--database", "redis://localhost"], "it is in PostgreSQL"),
        ([], "Missing option '--database'"),
    ],
)
def test_a_missing_database_raises_a_usage_error(options: Sequence[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        outbox_command(["ls", *options])


def test_a_database_without_an_outbox_raises_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch()
    with pytest.raises(UsageError, match="no table warren_outbox: name that of the outbox with --table"):
        outbox_command(["ls", "--database", str(path)])


def test_a_database_that_does_not_answer_exits_with_status_74(
    capsys: Capture,
) -> None:
    with closed_port() as port:
        assert outbox_command(["ls", "--database", f"postgresql://u:secret@127.0.0.1:{port}/x"]) == 74
    text = capsys.readouterr().err
    assert "did not answer" in text
    assert "secret" not in text
