"""`RedisStore`: records in Redis, shared by every process that reaches it; one Lua script per change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from warren.core.errors import UsageError
from warren.patterns.optional_packages import require_package
from warren.patterns.stores.loop_connections import LoopConnections
from warren.patterns.stores.request_batching import Request, RequestBatcher
from warren.patterns.stores.store import StoreUnavailable, SwapResult
from warren.patterns.stores.url_masking import mask_url
from warren.sdk.extend import Duration, seconds

if TYPE_CHECKING:
    from redis.asyncio import Redis

# One call makes many changes, so the cost of a call is shared. An empty string stands for "no record": records are never
# empty. The script needs no clock: a record holds its own times, and PX only tells Redis when it may delete the record.
# An error of one key is the answer for that key and does not stop the others.
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
"""Largest number of changes in one call of the Lua script, during which Redis executes no other command."""


class RedisStore:
    """Store in Redis or Valkey (not in a cluster); a Lua script makes every change atomically.

    Connects on first use, with one connection for each event loop. Requests that arrive while Redis answers go out together
    as the next call, so a busy process makes few calls.

    Durability is that of Redis: with `appendonly yes` and `appendfsync everysec` a crash of Redis itself can lose its
    last second, with `appendfsync always` nothing; a failover to a replica can lose what was not yet replicated (Redis
    documentation, "Persistence" and "Replication").

    :param url: `redis://`, `rediss://` or `unix://`; a password in it is never logged.
    :param prefix: prefix of every key.
    :param timeout: seconds for connecting and for each answer; after that `StoreUnavailable` is raised. Default 5.
    :raises UsageError: redis-py is not installed, or the URL is not one of Redis.
    """

    def __init__(self, url: str, *, prefix: str = "warren:", timeout: Duration = 5.0) -> None:
        require_package("redis", "redis", "RedisStore")
        _check_url(url)
        self._url = url
        self._prefix = prefix
        self._timeout = seconds(timeout, "RedisStore: timeout", positive=True)
        self._connections = LoopConnections(lambda: _LoopConnection(self._connect(), mask_url(url)))

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        return await self._connections.current().batcher.submit(
            Request(self._prefix + key, expected, record, keep_ms)
        )

    async def run(self, script: str, key: str, *arguments: str | bytes | float) -> object:
        """Run a Lua script on one key (`KEYS[1]`) and return its result, for patterns that cannot use a
        compare-and-set, such as a rate limit.

        :raises StoreUnavailable: Redis did not answer; the script may or may not have run.
        """
        return await self._connections.current().run(script, self._prefix + key, *arguments)

    async def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        from redis.exceptions import RedisError

        # SCAN reads the whole database in pages and does not block Redis meanwhile.
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
            raise _unavailable(mask_url(self._url), error) from error
        finally:
            await client.aclose()

    async def close(self) -> None:
        connection = self._connections.remove_current()
        if connection is not None:
            await connection.close()

    def _connect(self) -> Redis:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return Redis.from_url(
            self._url,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            # Not repeated: a script whose answer is lost may have run, and only the caller knows whether it may run again. A
            # connection that was closed while it was idle is noticed before the next command; with notifications of
            # maintenance, which protocol 3 turns on, redis-py 8 does not notice it.
            protocol=2,
            retry=Retry(NoBackoff(), 0),
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


class _LoopConnection:
    """Connection of one event loop to Redis, which sends the requests of its tasks in batches."""

    def __init__(self, client: Redis, name: str) -> None:
        self._client = client
        self._script = client.register_script(COMPARE_AND_SET)
        self._name = name
        self.batcher = RequestBatcher(self._send, partial(_unavailable, name), f"Redis at {name}")

    async def close(self) -> None:
        await self.batcher.finish()
        await self._client.aclose()

    async def run(self, script: str, key: str, *arguments: str | bytes | float) -> object:
        from redis.exceptions import RedisError

        try:
            return await cast("Awaitable[object]", self._client.eval(script, 1, key, *arguments))
        except (RedisError, OSError) as error:
            await self._leave_wrong_server([error])
            raise _unavailable(self._name, error) from error

    async def _send(self, batch: list[Request]) -> list[SwapResult | Exception]:
        answers: list[SwapResult | Exception] = []
        for start in range(0, len(batch), BATCH):
            part = batch[start : start + BATCH]
            try:
                answers += await self._send_script(part)
            except Exception as error:
                # The answers to earlier parts are known.
                answers += [error] * len(part)
        await self._leave_wrong_server(answers)
        return answers

    async def _leave_wrong_server(self, answers: Sequence[object]) -> None:
        """Close the connections if an answer says that another server is the master now: after a failover, the address may
        lead there, but open connections do not.
        """
        from redis.exceptions import ClusterDownError, MasterDownError, ReadOnlyError

        if any(isinstance(answer, ReadOnlyError | MasterDownError | ClusterDownError) for answer in answers):
            await self._client.connection_pool.disconnect(inuse_connections=False)

    async def _send_script(self, batch: list[Request]) -> list[SwapResult | Exception]:
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


def _unavailable(name: str, error: Exception) -> StoreUnavailable:
    """Return the error for a request that failed: Redis refused it, or it is not known whether it was executed."""
    from redis.exceptions import BusyLoadingError, ResponseError

    what = "refused a request" if isinstance(error, ResponseError | BusyLoadingError) else "did not answer"
    return StoreUnavailable(f"Redis at {name} {what}: {error}")


def _swap(request: Request, answer: object) -> SwapResult | Exception:
    if isinstance(answer, Exception):
        return answer
    if answer == 1:
        return SwapResult(True, request.record)
    (current,) = cast("list[bytes]", answer)
    return SwapResult(False, current or None)


def _check_url(url: str) -> None:
    """Raise `UsageError` if the URL is not one of Redis. The error does not contain the URL, because the password in a
    malformed URL cannot be recognised and masked."""
    from redis.asyncio.connection import parse_url

    try:
        valid = "://" in url and urlsplit(url).scheme in ("redis", "rediss", "unix")
        parse_url(url)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            "RedisStore cannot use this URL (it is not shown because of its password): write redis://HOST:PORT/DATABASE"
            " (rediss:// for TLS, unix://PATH for a socket), and special characters of the password as %XX"
        )


__all__ = ["RedisStore"]
