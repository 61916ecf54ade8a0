"""Access-control service: asks questions over HTTP in threads, and keeps the answers for a time.

An answer is kept for the cache's time to live. A permission that is used after that is asked for again in the background;
until the new answer comes, the old one holds, so that publishing never waits. A login is asked for again before it is
accepted. Whatever goes wrong counts as denied.
"""

from __future__ import annotations

import asyncio
import hmac
import http.client
import logging
import secrets
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from warren.broker.access.access_service.access_service_config import AccessServiceConfig
from warren.broker.access.access_service.questions import FAILED, Answer, Question, parse_answer
from warren.broker.access.pending_decisions import DecisionPending

logger = logging.getLogger(__name__)

MOST_ANSWERS: Final = 65536
"""Most answers that are kept; the one used the longest ago is dropped for another."""
MOST_WAITING: Final = 4096
"""Most questions that may be asked or wait at the same time; further ones are denied."""
MOST_BYTES: Final = 65536
"""Largest answer in bytes."""
FAILED_SECONDS: Final = 1.0
"""Seconds for which a failure is kept, so that a service that is down is not asked for each frame."""
SUCCESS: Final = (200, 201)


@dataclass(slots=True)
class _Kept:
    answer: Answer
    answered_at: float
    used_at: float


class AccessService:
    """Service that decides on logins and permissions.

    :param time_to_live: seconds for which an answer is kept.
    :param on_outdated: called when permissions may have changed, so that cached ones are checked again.
    """

    def __init__(
        self,
        config: AccessServiceConfig,
        time_to_live: float,
        on_outdated: Callable[[], None],
    ) -> None:
        self._config = config
        self._time_to_live = time_to_live
        self._on_outdated = on_outdated
        self._kept: dict[tuple[Question, bytes], _Kept] = {}
        self._asking: dict[tuple[Question, bytes], asyncio.Task[None]] = {}
        self._key = secrets.token_bytes(32)
        self._failing = False
        self._threads = ThreadPoolExecutor(config.connections, thread_name_prefix="warren-access")
        self._context = ssl.create_default_context(cafile=config.ca)
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, question: Question) -> Answer:
        """Return the answer to a question.

        :raises DecisionPending: if it has to be asked first.
        """
        # A digest instead of the password: no memory dump shows it, and equal ones of two users differ.
        digest = hmac.digest(self._key, question.secret, "sha256") if question.secret else b""
        key = (Question(question.kind, question.parameters), digest)
        now = asyncio.get_running_loop().time()
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept[key] = kept
            kept.used_at = now
            limit = FAILED_SECONDS if kept.answer.has_failed else self._time_to_live
            if now - kept.answered_at <= limit:
                return kept.answer
            if question.kind != "user" and not kept.answer.has_failed:
                if key not in self._asking and len(self._asking) < MOST_WAITING:
                    self._start(key, question)
                return kept.answer
        if key not in self._asking:
            if len(self._asking) >= MOST_WAITING:
                self._log_failure(question.kind, f"{MOST_WAITING} questions wait already")
                return FAILED
            self._start(key, question)
        raise DecisionPending(self._asking[key])

    def close(self) -> None:
        """Ask no more questions."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._asking.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, key: tuple[Question, bytes], question: Question) -> None:
        loop = asyncio.get_running_loop()
        self._asking[key] = loop.create_task(self._run(key, question))
        if self._timer is None:
            self._timer = loop.call_later(self._time_to_live, self._outdate)

    async def _run(self, key: tuple[Question, bytes], question: Question) -> None:
        answer = FAILED
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._request, question)
            self._failing = False
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._log_failure(question.kind, str(error))
        except RuntimeError as error:
            # The broker stops, and its threads with it.
            self._log_failure(question.kind, str(error))
        finally:
            self._asking.pop(key, None)
            now = asyncio.get_running_loop().time()
            before = self._kept.pop(key, None)
            self._kept[key] = _Kept(answer, now, now if before is None else before.used_at)
            if len(self._kept) > MOST_ANSWERS:
                del self._kept[next(iter(self._kept))]
            if before is not None and before.answer != answer:
                self._on_outdated()

    def _outdate(self) -> None:
        """Have permissions in use checked again, and forget answers that were not used for long."""
        self._timer = None
        oldest = asyncio.get_running_loop().time() - 2 * self._time_to_live
        for key in [key for key, kept in self._kept.items() if kept.used_at < oldest]:
            del self._kept[key]
        if self._kept:
            self._on_outdated()
            self._timer = asyncio.get_running_loop().call_later(self._time_to_live, self._outdate)

    def _log_failure(self, kind: str, error: str) -> None:
        if not self._failing:
            self._failing = True
            logger.error(
                "event=access_service.failed path=%s error=%r", getattr(self._config, f"{kind}_path"), error
            )

    def _request(self, question: Question) -> Answer:
        """Ask a question over HTTP. It blocks, for at most the request timeout and one answer of the socket.

        :raises OSError: if the service cannot be reached, or takes too long.
        :raises ValueError: if its answer is none.
        """
        config = self._config
        seconds = config.request_timeout / 1000
        url = getattr(config, f"{question.kind}_path")
        parameters = list(question.parameters)
        if question.secret:
            parameters.insert(1, ("password", question.secret.decode("utf-8", "surrogateescape")))
        form = urllib.parse.urlencode(parameters, errors="surrogateescape")
        if config.http_method == "get":
            request = urllib.request.Request(f"{url}?{form}")
        else:
            request = urllib.request.Request(url, form.encode())
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=self._context),
            _NoRedirects(),
        )
        end = time.monotonic() + seconds
        data = b""
        try:
            with opener.open(request, timeout=seconds) as response:
                if response.status not in SUCCESS:
                    raise ValueError(f"it answered {response.status}")
                while piece := response.read1(MOST_BYTES):
                    data += piece
                    if len(data) > MOST_BYTES:
                        raise ValueError(f"its answer is larger than {MOST_BYTES} bytes")
                    if time.monotonic() > end:
                        raise TimeoutError(f"its answer took longer than {config.request_timeout} ms")
        except urllib.error.HTTPError as error:
            error.close()
            raise ValueError(f"it answered {error.code}") from None
        except urllib.error.URLError as error:
            raise OSError(str(error.reason)) from None
        answer = parse_answer(question.kind, data.decode("utf-8", "replace"))
        if answer is None:
            raise ValueError("its answer is neither allow nor deny")
        return answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow no redirect: it would send the credentials elsewhere."""
