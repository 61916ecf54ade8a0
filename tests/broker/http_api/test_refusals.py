"""Refusals and roles of the HTTP API, as RabbitMQ 4.3.6 answered the same requests."""

from __future__ import annotations

import pytest

from tests.support.http_client import HttpApi


@pytest.fixture
def user(api: HttpApi) -> HttpApi:
    """Return a client with the tag `management` only, and the permissions of one virtual host."""
    api.put("users/u", {"password": "p", "tags": "management"})
    api.put("permissions/%2f/u", {"configure": ".*", "write": ".*", "read": ".*"})
    return HttpApi(api.base, "u", "p")


@pytest.mark.parametrize("key", ["x", "q"])
def test_the_bindings_of_the_default_exchange_cannot_be_changed(api: HttpApi, key: str) -> None:
    api.put("queues/%2f/q")
    refused = {"error": "not_authorised", "reason": "Access refused."}

    found = api.ask("POST", "bindings/%2f/e/amq.default/q/q", {"routing_key": key})
    assert (found.status, found.body) == (401, refused)
    found = api.ask("DELETE", "bindings/%2f/e/amq.default/q/q/q")
    assert (found.status, found.body) == (401, refused)
    assert [each["routing_key"] for each in api.get("queues/%2f/q/bindings")] == ["q"]


@pytest.mark.parametrize("path", ["amq.topic/q/missing", "missing/q/q", "missing/e/amq.topic"])
def test_there_are_no_bindings_of_what_does_not_exist(api: HttpApi, path: str) -> None:
    api.put("queues/%2f/q")
    assert api.get(f"bindings/%2f/e/{path}") == []
    assert api.ask("GET", f"bindings/%2f/e/{path}/key").status == 404


def test_the_name_of_a_queue_has_255_bytes_at_most(api: HttpApi) -> None:
    api.put("queues/%2f/" + "n" * 255)
    found = api.ask("PUT", "queues/%2f/" + "n" * 256, {})
    reason = "queue should be less than 255 bytes, actually was 256\n"
    assert (found.status, found.body) == (400, {"error": "bad_request", "reason": reason})


def test_a_queue_is_declared_on_this_node_only(api: HttpApi) -> None:
    for node in ("warren@localhost", "", None):
        api.put("queues/%2f/q", {"node": node})
    found = api.ask("PUT", "queues/%2f/q", {"node": "rabbit@elsewhere"})
    reason = "Node rabbit@elsewhere is not a cluster member"
    assert (found.status, found.body) == (400, {"error": "bad_request", "reason": reason})


def test_consumers_have_no_pages(api: HttpApi) -> None:
    assert api.get("consumers?page=1&page_size=5") == []


def test_every_user_of_the_api_may_see_feature_flags(user: HttpApi) -> None:
    assert user.ask("GET", "feature-flags").status == 200
    assert user.ask("PUT", "feature-flags/all/enable", {}).status == 401


def test_a_user_who_may_not_change_policies_is_told_so(user: HttpApi) -> None:
    for method, path in (("GET", "parameters"), ("PUT", "policies/%2f/p")):
        found = user.ask(method, path)
        reason = "User not authorised to access object"
        assert (found.status, found.body) == (401, {"error": "not_authorised", "reason": reason})
