"""Records in Redis: shared by every process that reaches it, one Lua step a decision."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit, urlunsplit

from warren.command import UsageError, extra_missing
from warren.patterns.store.contract import StoreUnavailable, Swap

if TYPE_CHECKING:
    from redis.asyncio import Redis

_Arguments = tuple[str, bytes, bytes, int]
BATCH: Final = 500

# An empty string stands for "no record": records are never empty. The script needs no clock: what time means
# for a record is in the record, and PX only tells Redis when it may forget it.
COMPARE_AND_SET: Final = """
local current = redis.call('GET', KEYS[1]) or ''
if current ~= ARGV[1] then return {0, current} end
if ARGV[2] == '' then redis.call('DEL', KEYS[1])
elseif ARGV[2] ~= current then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return {1, ARGV[2]}
"""


class RedisStore:
    """Decisions in Redis (or Valkey), by one script a decision that touches one key.

    Connects on first use, with one connection. What is asked while Redis answers goes out together as the
    next pipeline, so that a busy process pays for few round trips.

    What Redis forgets, the store forgets: with `appendonly yes` and `appendfsync everysec` a crash of Redis
    itself can lose its last second, with `appendfsync always` nothing; a failover to a replica can lose what
    was not yet replicated (Redis documentation, "Persistence" and "Replication").

    :param url: `redis://`, `rediss://` or `unix://`; a password in it is never logged.
    :param prefix: stands before every key.
    :param timeout: seconds for connecting and for each answer; after it, `StoreUnavailable`. Default 5.
    :raises UsageError: redis-py is not installed, or the URL is none of Redis.
    """

    def __init__(self, url: str, *, prefix: str = "warren:", timeout: float = 5.0) -> None:
        if not _installed():
            raise extra_missing("redis", "RedisStore")
        _check(url)
        self._url = url
        self._prefix = prefix
        self._timeout = timeout
        self._link: _Link | None = None

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> Swap:
        link = self._link
        if link is None or link.loop is not asyncio.get_running_loop():
            link = self._link = _Link(self._connect(), _masked(self._url))
        return await link.ask((self._prefix + key, expected or b"", record or b"", max(1, keep_ms)))

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _connect(self) -> Redis:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import ExponentialBackoff

        return Redis.from_url(
            self._url,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            # One more attempt, for the connection that Redis closed while it was idle. Rules recognise their
            # own earlier attempt, so that a script which ran before its answer was lost may run again.
            retry=Retry(ExponentialBackoff(cap=0.1, base=0.01), 1),
        )

    async def __aenter__(self) -> RedisStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"RedisStore({_masked(self._url)!r})"


class _Link:
    """The conversation with Redis on one event loop: one pipeline under way, the next one gathering."""

    def __init__(self, client: Redis, name: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._client = client
        self._name = name
        self._waiting: list[tuple[_Arguments, asyncio.Future[Swap]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def ask(self, arguments: _Arguments) -> Swap:
        answer: asyncio.Future[Swap] = self.loop.create_future()
        self._waiting.append((arguments, answer))
        if self._sender is None or self._sender.done():
            self._sender = self.loop.create_task(self._send(), name="decisions to Redis")
        return await answer

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender
        await self._client.aclose()

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                answers = await self._decide([arguments for arguments, _ in batch])
            except Exception as error:  # Whatever it is, those who wait must hear of it.
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():  # Its caller was cancelled.
                    continue
                if isinstance(answer, Exception):
                    problem = StoreUnavailable(f"no answer from Redis at {self._name}: {answer}")
                    problem.__cause__ = answer
                    future.set_exception(problem)
                else:
                    done, current = cast("tuple[int, bytes]", answer)
                    future.set_result(Swap(bool(done), current or None))

    async def _decide(self, batch: list[_Arguments]) -> list[object]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for arguments in batch:
                pipeline.eval(COMPARE_AND_SET, 1, *arguments)
            return list(await pipeline.execute(raise_on_error=False))


def _installed() -> bool:
    try:
        return find_spec("redis") is not None
    except ValueError:  # What `sys.modules["redis"] = None` makes of it.
        return False


def _check(url: str) -> None:
    """Wrong words are said at once, and without the URL where its password cannot be told from the rest."""
    from redis.asyncio.connection import parse_url

    try:
        known = "://" in url and urlsplit(url).scheme in ("redis", "rediss", "unix")
        parse_url(url)
    except ValueError:
        known = False
    if not known:
        raise UsageError(
            "not a Redis URL: write redis://HOST:PORT/DATABASE (rediss:// for TLS, unix://PATH for a socket),"
            " and what is special in its password as %XX"
        )


def _masked(url: str) -> str:
    """Without the password, wherever redis-py takes one from: before the host, or in the query."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if ":" in user:
        user = f"{user.partition(':')[0]}:***"
    query = "***" if parts.query else ""
    return urlunsplit(parts._replace(netloc=f"{user}{at}{host}", query=query))


__all__ = ["RedisStore"]
