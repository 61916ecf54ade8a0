"""Dependencies that were written for FastAPI, in handlers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Query, Request, Response, Security
from fastapi import Depends as FastApiDepends
from fastapi.security import OAuth2PasswordBearer

from tests.sdk.conftest import MakeApp
from tests.support.polling import eventually
from warren.sdk import App, Command, ConfigError, Depends


async def test_functions_written_for_fastapi_supply_the_parameters_of_a_handler(
    make_app: MakeApp, name: str
) -> None:
    class Ping(Command, queue=name):
        pass

    steps: list[str] = []

    class Settings:
        def __init__(self) -> None:
            self.url = "db"

    def get_engine(settings: Annotated[Settings, FastApiDepends()]) -> str:
        steps.append("engine")
        return f"engine of {settings.url}"

    def get_session(engine: str = FastApiDepends(get_engine), page: int = 1) -> Iterator[str]:
        steps.append("open")
        yield f"session {page} of {engine}"
        steps.append("close")

    async def get_user(session: Annotated[str, FastApiDepends(get_session)]) -> AsyncIterator[str]:
        yield f"user in {session}"
        steps.append("user gone")

    class Checker:
        """An instance is the dependency, as of FastAPI's security classes."""

        async def __call__(self, engine: Annotated[str, FastApiDepends(get_engine)]) -> AsyncIterator[str]:
            yield f"checked {engine}"
            steps.append("checker gone")

    checker = Checker()

    def own(session: Annotated[str, FastApiDepends(get_session)]) -> str:
        return session

    app = make_app()
    seen: list[object] = []

    @app.handle(Ping)
    async def ping(
        message: Ping,
        user: Annotated[str, FastApiDepends(get_user)],
        checked: Annotated[str, Security(checker)],
        mixed: Annotated[str, Depends(own)],
        uncached: Annotated[str, FastApiDepends(get_engine, use_cache=False)],
        by_default: str = FastApiDepends(get_session),
    ) -> None:
        steps.append("handle")
        seen.append((user, checked, mixed, uncached, by_default))

    async with app:
        await app.publish(Ping())
        await eventually(lambda: "close" in steps, "the dependencies are cleaned up")
        assert seen == [
            (
                "user in session 1 of engine of db",
                "checked engine of db",
                "session 1 of engine of db",
                "engine of db",
                "session 1 of engine of db",
            )
        ]
        assert steps.count("engine") == 2
        assert steps.count("open") == 1
        assert steps[steps.index("handle") :] == ["handle", "checker gone", "user gone", "close"]
        seen.clear()
        with app.override(get_engine, lambda: "a fake"):
            await app.publish(Ping())
            await eventually(lambda: bool(seen), "the message was handled")
        assert seen == [
            (
                "user in session 1 of a fake",
                "checked a fake",
                "session 1 of a fake",
                "a fake",
                "session 1 of a fake",
            )
        ]


def with_request(request: Request) -> str:
    return request.url.path


def with_response(response: Response) -> None: ...


def with_query(page: Annotated[int, Query()]) -> int:
    return page


def with_default_query(page: int = Query(1)) -> int:
    return page


def with_tasks(tasks: BackgroundTasks) -> None: ...


def nested(path: Annotated[str, FastApiDepends(with_request)]) -> str:
    return path


@pytest.mark.parametrize(
    ("dependency", "text"),
    [
        (with_request, "the dependency with_request takes Request of FastAPI (parameter 'request')"),
        (nested, "the dependency with_request takes Request of FastAPI (parameter 'request')"),
        (with_response, "the dependency with_response takes Response of FastAPI (parameter 'response')"),
        (with_query, "the dependency with_query takes Query of FastAPI (parameter 'page')"),
        (with_default_query, "the dependency with_default_query takes Query of FastAPI (parameter 'page')"),
        (with_tasks, "the dependency with_tasks takes BackgroundTasks of FastAPI (parameter 'tasks')"),
        (OAuth2PasswordBearer("token"), "of FastAPI (parameter 'request')"),
    ],
)
def test_a_dependency_that_needs_an_http_request_is_refused(
    dependency: Callable[..., Any], text: str
) -> None:
    app = App("amqp://localhost")
    with pytest.raises(ConfigError) as raised:

        @app.handle(int, queue="numbers")
        async def handle(message: int, value: Annotated[Any, FastApiDepends(dependency)]) -> None: ...

    assert text in str(raised.value)
    assert "a message comes without an HTTP request" in str(raised.value)


@pytest.mark.processes
def test_fastapi_is_not_imported_for_a_program_that_does_not_use_it() -> None:
    program = (
        "import sys; from typing import Annotated; from warren.sdk import App, Depends\n"
        "app = App('amqp://localhost')\n"
        "def one() -> int: return 1\n"
        "@app.handle(int, queue='q')\n"
        "async def handle(message: int, value: Annotated[int, Depends(one)]) -> None: ...\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('fastapi', 'starlette')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
