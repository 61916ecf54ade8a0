"""`PostgresStore`: records in PostgreSQL, shared by every process that reaches it; many changes share one SQL
statement."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from warren.core.errors import UsageError
from warren.patterns.optional_packages import require_package
from warren.patterns.stores.loop_connections import LoopConnections
from warren.patterns.stores.request_batching import Request, RequestBatcher
from warren.patterns.stores.store import StoreUnavailable, SwapResult
from warren.patterns.stores.url_masking import mask_url
from warren.sdk.extend import Duration, seconds

if TYPE_CHECKING:
    from asyncpg import Connection

log: logging.Logger = logging.getLogger("warren.patterns")

SWEEP_SECONDS: Final = 30.0
"""Seconds between two deletions of expired records."""
SWEEP_ROWS: Final = 5000
"""Largest number of rows that one deletion of expired records deletes."""

CREATE: Final = """
CREATE TABLE {table} (key bytea PRIMARY KEY, record bytea NOT NULL, keep_until timestamptz NOT NULL);
CREATE INDEX ON {table} (keep_until)
"""

# One statement is one transaction and one round trip. `held` locks existing rows in the order of the keys, and missing rows
# are inserted in that order, so that two processes never wait for each other. A row that another transaction inserted
# meanwhile is in neither result: it is read afterwards.
COMPARE_AND_SET: Final = """
WITH wanted AS (
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[]) AS w (key, expected, record, keep_ms)
), held AS (
    SELECT r.key, r.record FROM {table} r WHERE r.key = ANY ($1::bytea[]) ORDER BY r.key FOR UPDATE
), inserted AS (
    INSERT INTO {table} (key, record, keep_until)
    SELECT w.key, w.record, now() + w.keep_ms * interval '1 millisecond'
    FROM wanted w LEFT JOIN held h USING (key)
    WHERE h.key IS NULL AND w.expected IS NULL AND w.record IS NOT NULL ORDER BY w.key
    ON CONFLICT (key) DO NOTHING RETURNING key
), updated AS (
    UPDATE {table} r SET record = w.record, keep_until = now() + w.keep_ms * interval '1 millisecond'
    FROM wanted w JOIN held h USING (key)
    WHERE r.key = w.key AND h.record = w.expected AND w.record <> w.expected
), deleted AS (
    DELETE FROM {table} r USING wanted w JOIN held h USING (key)
    WHERE r.key = w.key AND h.record = w.expected AND w.record IS NULL
)
SELECT h.record, i.key IS NOT NULL AS inserted
FROM unnest($1::bytea[]) WITH ORDINALITY AS w (key, position) LEFT JOIN held h USING (key) LEFT JOIN inserted i USING (key)
ORDER BY w.position
"""
READ: Final = "SELECT record FROM {table} WHERE key = $1"
LIST: Final = "SELECT key, record FROM {table} WHERE key {more} $1 AND key < $2 ORDER BY key LIMIT 1000"
SWEEP: Final = """
DELETE FROM {table} WHERE key = ANY (ARRAY
(SELECT key FROM {table} WHERE keep_until < now() ORDER BY keep_until LIMIT $1 FOR UPDATE SKIP LOCKED))
"""


class PostgresStore:
    """Store in a table of PostgreSQL, usable by every process that reaches the server.

    Connects on first use, with one connection for each event loop. Requests that arrive while PostgreSQL answers go out
    together as the next statement, so many changes share one round trip and one commit. A change is durable when it is
    answered, provided that the server's `synchronous_commit` is `on` (PostgreSQL documentation, "Write Ahead Log:
    Settings").

    :param url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`; a password in it is never logged.
    :param table: table of the records, qualified with its schema unless that is the first of the user's search path. It
        is created if it is missing, which requires the privilege to create tables once. Use one table per application,
        because two applications may use the same keys.
    :param timeout: seconds for connecting and for each answer; after that `StoreUnavailable` is raised. Default 5.
    :raises UsageError: asyncpg is not installed, or the URL is not one of PostgreSQL.
    """

    def __init__(self, url: str, *, table: str = "warren_records", timeout: Duration = 5.0) -> None:
        require_package("asyncpg", "sql", "PostgresStore")
        _check_url(url)
        self._url = url
        self._table = ".".join('"{}"'.format(part.replace('"', '""')) for part in table.split("."))
        self._timeout = seconds(timeout, "PostgresStore: timeout", positive=True)
        self._connections = LoopConnections(
            lambda: _LoopConnection(url, mask_url(url), self._table, self._timeout)
        )

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        return await self._connections.current().batcher.submit(Request(key, expected, record, keep_ms))

    async def close(self) -> None:
        connection = self._connections.remove_current()
        if connection is not None:
            await connection.close()

    async def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield all records whose key begins with `prefix`, ordered by key. A separate connection is used, so that
        other requests do not wait.

        :raises StoreUnavailable: PostgreSQL did not answer.
        """
        start = prefix.encode()
        end = start + b"\xff"  # No byte of UTF-8 is that high.
        connection: Connection | None = None
        try:
            connection = await _connected(self._url, self._timeout)
            await _create_table(connection, self._table)
            rows = await connection.fetch(LIST.format(table=self._table, more=">="), start, end)
            while rows:
                for key, record in rows:
                    yield key.decode(), record
                rows = await connection.fetch(LIST.format(table=self._table, more=">"), rows[-1][0], end)
        except Exception as error:
            raise _unavailable(mask_url(self._url), error) from error
        finally:
            if connection is not None:
                connection.terminate()

    async def __aenter__(self) -> PostgresStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"PostgresStore({mask_url(self._url)!r})"


class _LoopConnection:
    """Connection of one event loop to PostgreSQL, which sends the requests of its tasks in batches. If it is lost, the
    next request opens it again."""

    def __init__(self, url: str, name: str, table: str, timeout: float) -> None:
        self.batcher = RequestBatcher(self._send, partial(_unavailable, name), f"PostgreSQL at {name}")
        self._url = url
        self._table = table
        self._timeout = seconds(timeout, "PostgresStore: timeout", positive=True)
        self._connection: Connection | None = None
        self._swept = self.batcher.loop.time()

    async def close(self) -> None:
        await self.batcher.finish()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(timeout=self._timeout)

    async def _send(self, batch: list[Request]) -> list[SwapResult | Exception]:
        """Execute the compare-and-set requests of a batch, and return the result or error of each.

        If a key occurs several times, its requests go into consecutive statements, because changes within one statement
        do not see each other.
        """
        answers: dict[int, SwapResult | Exception] = {}
        keys: list[bytes] = []
        for position, request in enumerate(batch):
            try:
                keys.append(request.key.encode())
            except UnicodeEncodeError as error:
                keys.append(b"")
                answers[position] = error
        remaining = [position for position in range(len(batch)) if position not in answers]
        while remaining:
            now: dict[bytes, int] = {}
            later = [
                position for position in remaining if now.setdefault(keys[position], position) != position
            ]
            try:
                swaps = await self._swap(list(now), [batch[position] for position in now.values()])
            except Exception as error:
                # Earlier statements of the batch are committed; nothing is retried on a connection that failed.
                self._drop()
                return [answers.get(position, error) for position in range(len(batch))]
            answers.update(zip(now.values(), swaps, strict=True))
            remaining = later
        await self._sweep()
        return [answers[position] for position in range(len(batch))]

    async def _swap(self, keys: list[bytes], requests: list[Request]) -> list[SwapResult]:
        from asyncpg import UndefinedTableError

        connection = await self._connected()
        compare_and_set = partial(
            connection.fetch,
            COMPARE_AND_SET.format(table=self._table),
            keys,
            [request.expected for request in requests],
            [request.record for request in requests],
            [request.keep_ms for request in requests],
            timeout=self._timeout,
        )
        try:
            rows = await compare_and_set()
        except UndefinedTableError:
            # Somebody has dropped the table.
            await _create_table(connection, self._table)
            rows = await compare_and_set()
        swaps = []
        for key, request, (current, inserted) in zip(keys, requests, rows, strict=True):
            if inserted or current == request.expected:
                done = inserted or current is not None or request.record is None
                if done:
                    swaps.append(SwapResult(True, request.record))
                    continue
                # Another transaction has inserted the row since this statement began.
                current = await connection.fetchval(
                    READ.format(table=self._table), key, timeout=self._timeout
                )
            swaps.append(SwapResult(False, current))
        return swaps

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or connection.is_closed():
            connection = self._connection = await _connected(self._url, self._timeout)
            await _create_table(connection, self._table)
        return connection

    async def _sweep(self) -> None:
        now = self.batcher.loop.time()
        if now - self._swept < SWEEP_SECONDS or self._connection is None:
            return
        swept, self._swept = self._swept, now
        try:
            # Bounded, so that no change waits long behind the sweep. A full sweep is repeated with the next batch, so
            # expired rows cannot accumulate, whatever the rate of changes.
            status = await self._connection.execute(
                SWEEP.format(table=self._table), SWEEP_ROWS, timeout=self._timeout
            )
            if status == f"DELETE {SWEEP_ROWS}":
                self._swept = swept
        except Exception as error:
            self._drop()
            log.warning("event=store.sweep_failed table=%s error=%s", self._table, error)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _unavailable(name: str, error: Exception) -> StoreUnavailable:
    """Return the error for a request that failed: PostgreSQL refused it, or it is not known whether it was executed."""
    from asyncpg import PostgresConnectionError, PostgresError

    refused = isinstance(error, PostgresError) and not isinstance(error, PostgresConnectionError)
    what = "refused a request" if refused else "did not answer"
    return StoreUnavailable(f"PostgreSQL at {name} {what}: {error}")


async def _connected(url: str, seconds: float) -> Connection:
    import asyncpg

    settings = {"application_name": "warren"}
    return await asyncpg.connect(url, timeout=seconds, command_timeout=seconds, server_settings=settings)


async def _create_table(connection: Connection, table: str) -> None:
    """Create the table of the records if it is missing."""
    from asyncpg import PostgresError

    exists_sql = "SELECT to_regclass($1) IS NOT NULL"
    if await connection.fetchval(exists_sql, table):
        return
    try:
        await connection.execute(CREATE.format(table=table))
    except PostgresError:
        # Another process may have created the table at the same time; the error depends on how far it was.
        if not await connection.fetchval(exists_sql, table):
            raise


def _check_url(url: str) -> None:
    """Raise `UsageError` if the URL is not one of PostgreSQL. The error does not contain the URL, because the password
    in a malformed URL cannot be recognised and masked."""
    try:
        parts = urlsplit(url)
        valid = "://" in url and parts.scheme in ("postgresql", "postgres")
        parts.port  # noqa: B018 - raises ValueError if it is no number
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            "PostgresStore cannot use this URL (it is not shown because of its password): write"
            " postgresql://USER:PASSWORD@HOST:PORT/DATABASE, and special characters of the password as %XX"
        )


__all__ = ["PostgresStore"]
