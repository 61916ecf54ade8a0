"""Attempts to handle a message in this process: middlewares, decoding, `once=` and immediate retries."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from time import time
from typing import Any

from tenacity import RetryCallState, RetryError

from warren.sdk.app.middleware import Middlewares
from warren.sdk.consume.delivery import Delivery, as_current_delivery
from warren.sdk.consume.handler_report import HandlerReport
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.consume.retry import AttemptNumber, is_retryable
from warren.sdk.errors import Ack, HandlerOutcome, Undecodable
from warren.sdk.messages.codec import decode, encode_result
from warren.sdk.protocols import Clock, RetryPolicy


class HandlingFailed(Exception):
    """Failure of all attempts in this process.

    :ivar error: the error of the last attempt.
    :ivar attempts: number of attempts.
    """

    def __init__(self, error: Exception, attempts: int) -> None:
        super().__init__(error, attempts)
        self.error: Exception = error
        self.attempts: int = attempts


class Abandoned(HandlerOutcome):
    """The message is not handled to its end: the App stops, or the broker delivers the message again because its channel
    is lost.
    """

    counted_as = "released"


class Attempts:
    """Runner of handlers: it calls the handler of a delivery, and repeats the call after errors as often as the retry
    policy allows in this process.

    :param retry: policy for handlers that have none of their own.
    """

    def __init__(
        self, middlewares: Middlewares, clock: Clock, retry: RetryPolicy, report: HandlerReport
    ) -> None:
        self._middlewares = middlewares
        self._clock = clock
        self._retry = retry
        self._report = report
        self._statistics = report.statistics

    async def run(self, handler: HandlerSpec, delivery: Delivery) -> bytes:
        """Run the handler, repeat it as its retry policy allows in this process, and return its result as JSON.

        The result is empty bytes if it is needed neither for a reply nor for `once=`, which stores it.

        :raises HandlerOutcome: if the handler chose an outcome, or the message is undecodable.
        :raises HandlingFailed: with the error of the last attempt.
        :raises RemoteError: the handler's answer to a request.
        """
        own = handler.middlewares
        is_wrapped = self._middlewares.handle or (own is not None and own.wrap_handlers)
        attempt = self._attempt_in_middlewares if is_wrapped else self._attempt
        try:
            return await attempt(handler, delivery)
        except Exception as error:
            if not is_retryable(error):
                raise
            failure = error
        return await self._repeat(attempt, handler, delivery, failure)

    async def _repeat(
        self,
        attempt: Callable[[HandlerSpec, Delivery], Awaitable[bytes]],
        handler: HandlerSpec,
        delivery: Delivery,
        first: Exception,
    ) -> bytes:
        """Repeat the attempt as the retry policy allows; return the result.

        :param attempt: makes an attempt.
        :param first: error of the first attempt, which was made without tenacity, so that success does not pay for it.
        :raises HandlerOutcome, HandlingFailed, RemoteError: as `run`.
        """
        last = first
        is_first = True
        made = 1
        policy = handler.retry or self._retry
        handling = delivery.handling
        deadline = delivery.deadline if handler.reply is not None else None

        async def next_attempt() -> bytes:
            nonlocal is_first, last, made
            if is_first:
                # The error of the first attempt is replayed for tenacity to count.
                is_first = False
                self._statistics.failed_attempts += 1
                raise first
            if handling is not None:
                handling.pausing = False
            if delivery.lost:
                raise Abandoned
            self._statistics.retried += 1
            made += 1
            try:
                return await attempt(handler, delivery)
            except Exception as error:
                if is_retryable(error):
                    self._statistics.failed_attempts += 1
                    last = error
                raise

        async def log_attempt(state: RetryCallState) -> None:
            if state.outcome is not None and (error := state.outcome.exception()) is not None:
                number = AttemptNumber.of(policy, delivery, made)
                next_step = f"again in {round(state.upcoming_sleep, 3):g} s"
                self._report.attempt_failed(handler, delivery, error, number, next_step)
            if before_sleep is not None and (waiting := before_sleep(state)) is not None:
                await waiting
            if delivery.lost or (handling is not None and handling.stopping):
                raise Abandoned
            if handling is not None:
                handling.pausing = True

        def stop(state: RetryCallState) -> bool:
            if retrying.stop(state):
                return True
            # The caller of a request will have gone before the next attempt.
            return deadline is not None and time() + state.upcoming_sleep >= deadline.timestamp()

        try:
            retrying = policy.attempts(self._clock)
            before_sleep: Callable[[RetryCallState], Any] | None = retrying.before_sleep
            result: bytes = await retrying.copy(before_sleep=log_attempt, stop=stop)(next_attempt)
        except Exception as error:
            if not is_retryable(error):
                raise
            if error is not last and not isinstance(error, RetryError):
                # The error of a retry policy of the application does not replace that of the handler.
                self._report.delivery_failed(delivery)
            raise HandlingFailed(last, made) from error
        return result

    async def _attempt_in_middlewares(self, handler: HandlerSpec, delivery: Delivery) -> bytes:
        """Make one attempt: pass the delivery through the handle middlewares, the innermost of which calls the handler.
        Return the handler's result as JSON.

        :raises Ack: if a middleware did not call the next one; the message is then acknowledged without its handler.
        """
        results: list[bytes] = []

        async def innermost(changed: Delivery) -> None:
            with as_current_delivery(changed):
                results.append(await self._attempt(handler, changed))

        await (handler.middlewares or self._middlewares).receive(delivery, innermost)
        if not results:
            raise Ack
        return results[-1]

    async def _attempt(self, handler: HandlerSpec, delivery: Delivery) -> bytes:
        """Decode the message, call the handler, and return its result as JSON; empty bytes if neither a reply nor
        `once=` needs it.

        With `once=`, a duplicate of a handled message gets the stored result, and the handler is not called.

        :raises HandlerOutcome: if the handler chose an outcome, or the message is undecodable.
        """
        try:
            message = decode(handler.kind, delivery)
        except ValueError as error:
            raise Undecodable(error) from error
        if handler.once is None:
            result = await handler.call(message, delivery)
            if handler.reply is not None:
                return handler.reply.write(result)
            if result is not None:
                if isinstance(result, HandlerOutcome):
                    raise result
                if inspect.isgenerator(result) or inspect.isasyncgen(result):
                    raise TypeError(
                        f"the handler {handler.name} returned a generator, which nobody runs: return the result, do not"
                        " yield, also behind a decorator"
                    )
            return b""

        async def run() -> bytes:
            result = await handler.call(message, delivery)
            if isinstance(result, HandlerOutcome):
                if not isinstance(result, Ack):
                    raise result
                result = None
            return encode_result(result) if handler.reply is None else handler.reply.write(result)

        return await handler.once.run(message, delivery, run)
