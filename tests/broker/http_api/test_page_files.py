"""Files of the management page over HTTP: headers, caching, paths, and requests of other sites."""

from __future__ import annotations

import contextlib
import http.client
import re
import tomllib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.support.http_client import HttpApi
from tests.support.in_process_broker import InProcessBroker
from warren.broker import BrokerConfig
from warren.broker.http_api.page.page_files import FOLDER, load_files

ROOT = Path(__file__).parents[3]


class Answer(NamedTuple):
    """Answer to a request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(api: HttpApi, path: str, **headers: str) -> Answer:
    with contextlib.closing(http.client.HTTPConnection(urlsplit(api.base).netloc, timeout=120)) as connection:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        found = connection.getresponse()
        return Answer(found.status, found.headers, found.read())


def test_the_index_forbids_all_that_the_page_does_not_need(api: HttpApi) -> None:
    answer = ask(api, "/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "unsafe" not in policy
    assert answer.headers["Set-Cookie"] is None
    body = answer.body.decode()
    assert "{version}" not in body
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|style=|https?:", body)


def test_every_file_is_cached_for_ever_under_its_version_and_validated(api: HttpApi) -> None:
    body = ask(api, "/").body.decode()
    paths = re.findall(r'(?:src|href)="(page/[^"]+)"', body)
    version, files = load_files()
    assert {path.removeprefix(f"page/{version}/") for path in paths} == files.keys() - {"index.html"}
    for path in paths:
        answer = ask(api, f"/{path}")
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.body
        assert ask(api, f"/{path}", If_None_Match=answer.headers["ETag"]).status == 304
    index = ask(api, "/")
    assert index.headers["Cache-Control"] == "no-cache"
    assert ask(api, "/", If_None_Match=index.headers["ETag"]).status == 304


@pytest.mark.parametrize(
    "path",
    [
        "/page/{}/../page_files.py",
        "/page/{}/%2e%2e/page_files.py",
        "/page/{}/..%2fpage_files.py",
        "/page/{}//etc/passwd",
        "/page/{}/vendor/LICENSE.htm",
        "/page/other/app.js",
        "/page/{}/",
        "/page/{}/views/admin",
        "/page/{}/views/admin/../../../page_files.py",
        "/static/app.js",
    ],
)
def test_no_other_file_is_served(api: HttpApi, path: str) -> None:
    assert ask(api, path.format(load_files()[0])).status == 404


def test_the_address_of_the_former_page_leads_to_its_views_on_this_page(api: HttpApi) -> None:
    for former, target in (("/warren/", "../#/dead-letters"), ("/warren", "./#/dead-letters")):
        answer = ask(api, former)
        assert (answer.status, answer.headers["Location"]) == (302, target)
        assert answer.headers["X-Frame-Options"] == "DENY"
    for path in ("/warren/main.js", "/warren//evil.example", "/warren/../page_files.py"):
        assert ask(api, path).status == 404


def test_every_file_is_in_the_package_that_users_install() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["warren.broker.http_api.page"]
    packaged = {path for pattern in patterns for path in FOLDER.parent.glob(pattern)}
    assert {FOLDER / name for name in load_files()[1]} <= packaged


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_cannot_change_anything(api: HttpApi, site: str) -> None:
    assert api.ask("PUT", "queues/%2F/made", {}, {"Sec-Fetch-Site": site}).status == 403
    assert api.get("queues") == []
    assert api.ask("GET", "queues", headers={"Sec-Fetch-Site": site}).status == 200
    assert api.ask("PUT", "queues/%2F/made", {}, {"Sec-Fetch-Site": "same-origin"}).status == 201


def test_the_page_can_be_turned_off() -> None:
    with InProcessBroker(config=BrokerConfig(management_port=0, management_page=False)) as broker:
        assert broker.broker is not None
        api = HttpApi(f"http://{broker.broker.management_addresses[0]}")
        assert ask(api, "/").status == 404
        assert ask(api, "/warren/").status == 404
        assert api.get("whoami")["name"] == "guest"
