"""Start of the HTTP library by the first connection, and the end of the server."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.http_client import HttpApi
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.http_api import application


def connect(api: HttpApi) -> socket.socket:
    address = urlsplit(api.base)
    return socket.create_connection((address.hostname, address.port), timeout=120)


def is_refused(api: HttpApi) -> bool:
    try:
        connect(api).close()
    except OSError:
        return True
    return False


def test_a_start_of_the_library_that_failed_is_tried_again(
    api: HttpApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError("out of memory")

    with monkeypatch.context() as failing:
        failing.setattr(application, "start", fail)
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            api.get("whoami")

    assert api.get("whoami")["name"] == "guest"


def test_the_server_ends_what_still_starts_when_it_is_closed(
    served: InProcessBroker, api: HttpApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun, may_start = application.start, threading.Event(), threading.Event()
    runners: list[Any] = []

    async def start_later(*arguments: Any) -> object:
        begun.set()
        await asyncio.get_running_loop().run_in_executor(None, may_start.wait)
        runners.append(await start(*arguments))
        return runners[0]

    monkeypatch.setattr(application, "start", start_later)
    stopping = threading.Thread(target=served.stop)
    with connect(api):
        assert begun.wait(120)
        stopping.start()
        wait_until(lambda: is_refused(api), "the server listens no more")
        may_start.set()
        stopping.join(120)

    assert [runner.server for runner in runners] == [None]


def test_a_socket_that_was_accepted_just_before_the_end_is_closed(served: InProcessBroker) -> None:
    assert served.broker is not None
    (server,) = served.broker._http
    accepted, client = socket.socketpair()

    async def accept_and_close() -> None:
        server._on_accepted(accepted, "127.0.0.1", None)
        await server.close()

    with client:
        served._run(accept_and_close())
        assert accepted.fileno() == -1
    assert len(server._connections) == 0


def test_a_virtual_host_is_traced_while_its_field_says_so(api: HttpApi) -> None:
    assert api.get("vhosts/%2f")["tracing"] is False
    api.put("vhosts/%2f", {"tracing": True})
    assert api.get("vhosts/%2f")["tracing"] is True
    api.put("vhosts/%2f", {"description": "still traced"})
    assert api.get("vhosts/%2f")["tracing"] is True
    api.put("vhosts/%2f", {"tracing": False})
    assert api.get("vhosts/%2f")["tracing"] is False


def test_features_of_rabbitmq_are_listed(api: HttpApi) -> None:
    flags = {each["name"]: each["state"] for each in api.get("feature-flags")}
    assert flags["quorum_queue"] == "enabled"
    phases = {each["name"]: each["deprecation_phase"] for each in api.get("deprecated-features")}
    assert phases["classic_queue_mirroring"] == "removed"
    assert api.get("deprecated-features/used") == []
