"""Client of RabbitMQ's management HTTP API (https://www.rabbitmq.com/docs/http-api-reference), which only reads."""

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
        url = f"{self._base}/api/{path}"
        request = Request(url, headers={"Authorization": f"Basic {self._token}"})
        try:
            with urlopen(request, timeout=SECONDS) as response:
                body = response.read(LIMIT_BYTES + 1)
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
                    f"the management API at {self._base} answers {error.code} {error.reason} to {path}"
                ) from None
        except (URLError, OSError) as error:
            raise ListingError(
                f"the management API at {self._base} does not answer: {getattr(error, 'reason', error)}"
            ) from None
        if len(body) > LIMIT_BYTES:
            raise ListingError(
                f"the management API at {self._base} answers with more than {LIMIT_BYTES} bytes"
            )
        try:
            return json.loads(body)
        except ValueError:
            raise ListingError(
                f"{self._base} is no management API: it answers with something else than JSON"
            ) from None

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
