"""Client of RabbitMQ's management HTTP API (https://www.rabbitmq.com/docs/http-api-reference)."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, ClassVar, Final
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from warren.sdk.errors import WarrenError

LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Largest response that is read; enough for about 100,000 queues."""
SECONDS: Final = 30.0


class ListingError(WarrenError):
    """Error in reading the listing of a virtual host; its text is one line with the reason."""

    exit_status: ClassVar[int] = 74


class ManagementApi:
    """Management API of a RabbitMQ. Each request blocks for at most 30 s. Its user needs the tag `management`.

    :param url: `http://host:15672`; a user and password in it take precedence over the parameters.
    :raises ListingError: if it is not an HTTP URL.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ListingError(f"not an HTTP URL: {parts.scheme or url}; write http://host:15672")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._base = f"{parts.scheme}://{host}:{parts.port or 15672}{parts.path.rstrip('/')}"
        if parts.username:
            user, password = unquote(parts.username), unquote(parts.password or "")
        self._token = b64encode(f"{user}:{password}".encode()).decode()

    def get(self, path: str) -> Any:
        """Return the JSON value at a path below `/api/`; None if there is no such path.

        :raises ListingError: if the API does not reply, refuses the user, or its reply is not JSON.
        """
        body = self._read(Request(f"{self._base}/api/{path}"))
        if body is None:
            return None
        try:
            return json.loads(body)
        except ValueError:
            raise ListingError(
                f"{self._base} is no management API: it answers with something else than JSON"
            ) from None

    def post(self, path: str, value: Any) -> None:
        """Send a JSON value to a path below `/api/`.

        :raises ListingError: if the API does not reply or refuses the value; with its reason.
        """
        content = {"Content-Type": "application/json"}
        request = Request(
            f"{self._base}/api/{path}", json.dumps(value).encode(), headers=content, method="POST"
        )
        if self._read(request) is None:
            raise ListingError(f"the management API at {self._base} answers 404 Not Found to {path}")

    def _read(self, request: Request) -> bytes | None:
        """Return the body of the reply to a request; None if there is no such path."""
        path = request.full_url.removeprefix(f"{self._base}/api/")
        request.add_header("Authorization", f"Basic {self._token}")
        try:
            with urlopen(request, timeout=SECONDS) as response:
                body: bytes = response.read(LIMIT_BYTES + 1)
        except HTTPError as error:
            with error:
                if error.code in (401, 403):
                    raise ListingError(
                        f"the management API at {self._base} refuses the user: it needs the tag `management`"
                        " (`monitoring` for connections and nodes)"
                    ) from None
                if error.code == 404:
                    return None
                raise ListingError(
                    f"the management API at {self._base} answers {error.code} {error.reason} to {path}{_reason(error)}"
                ) from None
        except (URLError, OSError) as error:
            raise ListingError(
                f"the management API at {self._base} does not answer: {getattr(error, 'reason', error)}"
            ) from None
        if len(body) > LIMIT_BYTES:
            raise ListingError(
                f"the management API at {self._base} answers with more than {LIMIT_BYTES} bytes"
            )
        return body

    def get_list(self, path: str) -> list[dict[str, Any]]:
        """Return the JSON list at a path below `/api/`.

        :raises ListingError: as `get`, and if there is no list at this path.
        """
        found = self.get(path)
        if found is None:
            raise ListingError(f"the management API at {self._base} answers 404 Not Found to {path}")
        if not isinstance(found, list):
            raise ListingError(
                f"{self._base} is no management API: it answers with something else than a JSON list"
            )
        return found


def _reason(error: HTTPError) -> str:
    """Return the reason in the body of an error reply, on one line; empty if it has none."""
    try:
        found = json.loads(error.read(4096))
    except (ValueError, OSError):
        return ""
    reason = found.get("reason") if isinstance(found, dict) else None
    return f": {' '.join(str(reason).split())}" if reason else ""
