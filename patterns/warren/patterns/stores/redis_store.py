"""Records in Redis: shared by every process that reaches it, one Lua step a decision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from warren.core.errors import UsageError
from warren.patterns.optional_packages import require_package
from warren.patterns.stores.request_batching import Request, RequestBatcher
from warren.patterns.stores.store import StoreUnavailable, SwapResult
from warren.patterns.stores.url_masking import mask_url

if TYPE_CHECKING:
    from redis.asyncio import Redis

# Many decisions in one call: what a call costs, in Redis and here, is paid once for all of a moment. An empty string stands
# for "no record": records are never empty. It needs no clock: what time means for a record is in the record, and PX only
# tells Redis when it may forget it. An error of one key is its own answer and stops no other.
COMPARE_AND_SET: Final = """
local answers = {}
for n, key in ipairs(KEYS) do
  local expected, record, keep = ARGV[3 * n - 2], ARGV[3 * n - 1], ARGV[3 * n]
  local current = redis.pcall('GET', key) or ''
  local answer = 1
  if type(current) == 'table' then answer = current
  elseif current ~= expected then answer = {current}
  elseif record ~= current then
    local done
    if record == '' then done = redis.pcall('DEL', key) else done = redis.pcall('SET', key, record, 'PX', keep) end
    if type(done) == 'table' and done.err then answer = done end
  end
  answers[n] = answer
end
return answers
"""
BATCH: Final = 100
"""Decisions a call, during which Redis does nothing else."""


class RedisStore:
    """Decisions in Redis (or Valkey; not in a cluster of them), each an atomic step of one script.

    Connects on first use, with one connection. What is asked while Redis answers goes out together as the
    next call, so that a busy process pays for few of them.

    What Redis forgets, the store forgets: with `appendonly yes` and `appendfsync everysec` a crash of Redis
    itself can lose its last second, with `appendfsync always` nothing; a failover to a replica can lose what
    was not yet replicated (Redis documentation, "Persistence" and "Replication").

    :param url: `redis://`, `rediss://` or `unix://`; a password in it is never logged.
    :param prefix: stands before every key.
    :param timeout: seconds for connecting and for each answer; after it, `StoreUnavailable`. Default 5.
    :raises UsageError: redis-py is not installed, or the URL is none of Redis.
    """

    def __init__(self, url: str, *, prefix: str = "warren:", timeout: float = 5.0) -> None:
        require_package("redis", "redis", "RedisStore")
        _check(url)
        self._url = url
        self._prefix = prefix
        self._timeout = timeout
        self._link: _Link | None = None

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        return await self._linked().batcher.apply_rule(Request(self._prefix + key, expected, record, keep_ms))

    async def run(self, script: str, key: str, *arguments: str | bytes | float) -> object:
        """Run a Lua script on one key (`KEYS[1]`), for patterns whose rule is not a compare-and-set.

        :raises StoreUnavailable: no answer; the script has run or not.
        """
        return await self._linked().run(script, self._prefix + key, *arguments)

    async def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        from redis.exceptions import RedisError

        # SCAN walks through the whole database, a piece at a time, and blocks nobody meanwhile.
        start = self._prefix + prefix
        pattern = "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in start) + "*"
        client = self._connect()
        try:
            cursor = -1
            while cursor:
                cursor, keys = await client.scan(max(0, cursor), match=pattern, count=1000)
                for key, record in zip(keys, await client.mget(keys) if keys else [], strict=True):
                    if record is not None:
                        yield cast("bytes", key).decode()[len(self._prefix) :], cast("bytes", record)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"no answer from Redis at {mask_url(self._url)}: {error}") from error
        finally:
            await client.aclose()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _linked(self) -> _Link:
        link = self._link
        if link is None or link.batcher.loop is not asyncio.get_running_loop():
            link = self._link = _Link(self._connect(), mask_url(self._url))
        return link

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
        return f"RedisStore({mask_url(self._url)!r})"


class _Link:
    """A connection of one event loop, and what gathers for it."""

    def __init__(self, client: Redis, name: str) -> None:
        self._client = client
        self._script = client.register_script(COMPARE_AND_SET)
        self._name = name
        self.batcher = RequestBatcher(self._decide, f"Redis at {name}")

    async def close(self) -> None:
        await self.batcher.finish()
        await self._client.aclose()

    async def run(self, script: str, key: str, *arguments: str | bytes | float) -> object:
        from redis.exceptions import RedisError

        try:
            return await cast("Awaitable[object]", self._client.eval(script, 1, key, *arguments))
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"no answer from Redis at {self._name}: {error}") from error

    async def _decide(self, batch: list[Request]) -> list[SwapResult | Exception]:
        answers: list[SwapResult | Exception] = []
        for start in range(0, len(batch), BATCH):
            answers += await self._ask(batch[start : start + BATCH])
        return answers

    async def _ask(self, batch: list[Request]) -> list[SwapResult | Exception]:
        keys: list[bytes] = []
        arguments: list[bytes | int] = []
        refused: dict[int, Exception] = {}
        for position, (key, expected, record, keep_ms) in enumerate(batch):
            try:
                keys.append(key.encode())
            except UnicodeEncodeError as error:
                refused[position] = error
                continue
            arguments += (expected or b"", record or b"", max(1, keep_ms))
        found = iter(await self._script(keys, arguments) if keys else ())
        return [
            refused[position] if position in refused else _swap(request, next(found))
            for position, request in enumerate(batch)
        ]


def _swap(request: Request, answer: object) -> SwapResult | Exception:
    if isinstance(answer, Exception):
        return answer
    if answer == 1:
        return SwapResult(True, request.record)
    (current,) = cast("list[bytes]", answer)
    return SwapResult(False, current or None)


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


__all__ = ["RedisStore"]
