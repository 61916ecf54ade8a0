"""The tab Admin of the management page, and the definitions of the overview: every action, roles, and hostile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import pytest

from tests.page.tools import needs_browser
from tests.page.viewer import Viewer
from tests.support.http_client import HttpApi

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)>/%2f#?"
"""Name that breaks a page which takes text for HTML, or does not quote it in paths."""
VIEWS = {
    "users": "Users",
    "users/guest": "User guest",
    "vhosts": "Virtual hosts",
    "vhosts/%2F": "Virtual host /",
    "policies": "Policies",
    "policies/%2F/ttl": "Policy ttl",
    "operator-policies/%2F/cap": "Operator policy cap",
    "limits": "Limits",
    "parameters": "Runtime parameters",
    "shovels": "Shovels",
    "feature-flags": "Feature flags",
    "deprecated-features": "Deprecated features",
    "cluster-name": "Cluster",
    "whoami": "Your user",
}
"""Addresses of the tab, with their headings."""


def part(name: str) -> str:
    return quote(name, safe="")


def row(viewer: Viewer, text: str) -> Locator:
    return viewer.page.locator("tbody tr", has_text=text)


def press(viewer: Viewer, title: str, *, sure: bool = False) -> None:
    """Press a button, and the one of the dialog that asks whether it is meant."""
    viewer.page.get_by_role("button", name=title, exact=True).click()
    if sure:
        viewer.page.get_by_role("dialog").get_by_role("button", name=title, exact=True).click()


def told(viewer: Viewer, text: str) -> None:
    """Wait for a notice, and take it away."""
    notice = viewer.page.locator(".notices p", has_text=text)
    notice.first.wait_for()
    notice.first.get_by_role("button", name="Dismiss").click()


def form(viewer: Viewer, action: str) -> Locator:
    """Return the form whose button has a title."""
    button = viewer.page.get_by_role("button", name=action, exact=True)
    return viewer.page.locator("form").filter(has=button)


def stock(api: HttpApi) -> None:
    """Set what the views show: policies, limits, parameters, permissions."""
    definition = {"message-ttl": 60000, "dead-letter-exchange": "dead"}
    api.put("policies/%2F/ttl", {"pattern": "^orders", "definition": definition, "apply-to": "queues"})
    api.put("operator-policies/%2F/cap", {"pattern": ".*", "definition": {"max-length": 10}})
    api.put("queues/%2F/orders", {"durable": True})
    api.put("vhost-limits/%2F/max-queues", {"value": 100})
    api.put("user-limits/guest/max-channels", {"value": 50})
    api.put("global-parameters/team", {"value": {"name": "payments"}})
    api.put("topic-permissions/%2F/guest", {"exchange": "amq.topic", "write": "^a", "read": ".*"})


def test_a_user_is_added_changed_and_deleted(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("users", "Users")
    viewer.show_all()
    page.get_by_label("Username *").fill(HOSTILE)
    page.get_by_label("New password").fill("secret")
    page.get_by_label("Repeat it").fill("other")
    page.get_by_role("button", name="Monitoring").click()
    page.get_by_role("button", name="Policymaker").click()
    press(viewer, "Add user")
    told(viewer, "The two passwords differ")
    page.get_by_label("Repeat it").fill("secret")
    press(viewer, "Add user")
    told(viewer, "is added")
    found = row(viewer, HOSTILE)
    assert "monitoring, policymaker" in found.inner_text()
    assert "none" in found.inner_text()
    found.get_by_role("link", name=HOSTILE).click()
    page.locator("h1", has_text=HOSTILE).wait_for()
    page.locator("dl.facts").wait_for()
    viewer.show_all()

    form(viewer, "Set permission").get_by_label("Write regexp").fill("^<b>")
    press(viewer, "Set permission")
    told(viewer, "are set")
    assert api.get(f"permissions/%2F/{part(HOSTILE)}")["write"] == "^<b>"
    listed = page.get_by_role("region", name="Permissions", exact=True).locator("tbody th")
    assert listed.all_inner_texts() == ["/"]
    press(viewer, "Set topic permission")
    told(viewer, "Topic permissions")
    assert api.get(f"topic-permissions/%2F/{part(HOSTILE)}")[0]["exchange"] == "amq.topic"

    form(viewer, "Update user").get_by_label("Tags").fill("management")
    press(viewer, "Update user")
    told(viewer, "is changed")
    assert api.get(f"users/{part(HOSTILE)}")["tags"] == ["management"]
    changed = HttpApi(api.base, user=HOSTILE, password="secret").get("whoami")
    assert changed["name"] == HOSTILE, "the password is as it was"

    for kind in ("topic permissions", "permissions"):
        page.get_by_role("button", name=f"Clear {kind} of").click()
        page.get_by_role("dialog").get_by_role("button", name="Clear").click()
        told(viewer, f"The {kind} of")
    assert api.get(f"users/{part(HOSTILE)}/permissions") == []
    press(viewer, "Delete user", sure=True)
    page.locator("h1", has_text="Users").wait_for()
    row(viewer, HOSTILE).wait_for(state="detached")
    assert [each["name"] for each in api.get("users")] == ["guest"]


def test_the_search_box_finds_users_virtual_hosts_and_policies(api: HttpApi, viewer: Viewer) -> None:
    api.put("users/shopkeeper", {"password": "secret", "tags": "management"})
    api.put("vhosts/shop", {})
    api.put("policies/shop/shop-ttl", {"pattern": "^shop", "definition": {"message-ttl": 1000}})
    search = viewer.page.get_by_label("Search everywhere")
    for text, heading in (
        ("shopkeeper", "User shopkeeper"),
        ("Virtual host shop", "Virtual host shop"),
        ("shop-ttl", "Policy shop-ttl"),
    ):
        search.fill("shop")
        viewer.page.get_by_role("option").filter(has_text=text).click()
        viewer.page.locator("h1", has_text=heading).wait_for()


def test_who_changes_their_own_password_stays_logged_in(api: HttpApi, viewer: Viewer) -> None:
    viewer.open("users/guest", "User guest")
    viewer.show_all()
    viewer.page.get_by_label("Password", exact=True).select_option("password")
    viewer.page.get_by_label("New password").fill("longer")
    viewer.page.get_by_label("Repeat it").fill("longer")
    press(viewer, "Update user")
    told(viewer, "is changed")
    with viewer.page.expect_response(lambda found: "/api/users" in found.url and found.status == 200):
        viewer.open("users", "Users")
    row(viewer, "guest").wait_for()


def test_a_virtual_host_is_added_changed_and_deleted(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("vhosts", "Virtual hosts")
    viewer.show_all()
    mine = form(viewer, "Add virtual host")
    mine.get_by_label("Name *").fill(HOSTILE)
    mine.get_by_label("Description").fill("<b>bold</b>")
    mine.get_by_label("Tags").fill("a, b")
    mine.get_by_label("Default queue type").select_option("quorum")
    press(viewer, "Add virtual host")
    told(viewer, "is added")
    page.locator("header option", has_text=HOSTILE).wait_for(state="attached")
    row(viewer, HOSTILE).get_by_role("link").click()
    page.locator("h1", has_text=HOSTILE).wait_for()
    page.locator("dd", has_text="<b>bold</b>").wait_for()
    viewer.show_all()
    press(viewer, "Start tracing")
    told(viewer, "Tracing of")
    assert api.get(f"vhosts/{part(HOSTILE)}")["tracing"] is True
    press(viewer, "Stop tracing")
    told(viewer, "is off")
    form(viewer, "Update virtual host").get_by_label("Description").fill("other")
    press(viewer, "Update virtual host")
    told(viewer, "is changed")
    found = api.get(f"vhosts/{part(HOSTILE)}")
    assert (found["description"], found["tags"], found["default_queue_type"]) == (
        "other",
        ["a", "b"],
        "quorum",
    )
    assert found["tracing"] is False
    press(viewer, "Protect from deletion")
    press(viewer, "Allow deletion")
    press(viewer, "Delete virtual host", sure=True)
    page.locator("h1", has_text="Virtual hosts").wait_for()
    row(viewer, HOSTILE).wait_for(state="detached")
    assert [each["name"] for each in api.get("vhosts")] == ["/"]


def test_a_policy_is_added_applies_and_is_deleted(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    for name in ("orders", "orders.dead", "audit"):
        api.put(f"queues/%2F/{name}", {"durable": True})
    api.put(
        "policies/%2F/strong", {"pattern": "^orders.dead$", "definition": {"max-length": 1}, "priority": 9}
    )
    viewer.open("policies", "Policies")
    viewer.show_all()
    mine = form(viewer, "Add policy")
    mine.get_by_label("Name *").fill(HOSTILE)
    mine.get_by_label("Pattern").fill("^orders")
    mine.get_by_label("Apply to").select_option("queues")
    mine.get_by_role("button", name="Message TTL").click()
    mine.get_by_label("Definition: value 1").fill("soon")
    press(viewer, "Add policy")
    told(viewer, 'message-ttl: "soon" is no number')
    mine.get_by_label("Definition: value 1").fill("60000")
    press(viewer, "Add policy")
    told(viewer, "is set")
    row(viewer, HOSTILE).get_by_role("link").click()
    page.locator("h1", has_text=HOSTILE).wait_for()
    matches = page.get_by_role("region", name="Matches")
    matches.wait_for()
    assert matches.locator("tbody tr").all_inner_texts() == [
        "orders\tclassic queue\tyes",
        "orders.dead\tclassic queue\tno: strong does",
    ]
    viewer.show_all()
    page.get_by_label("Definition: value 1").fill("30000")
    press(viewer, "Update policy")
    told(viewer, "is set")
    assert api.get(f"policies/%2F/{part(HOSTILE)}")["definition"] == {"message-ttl": 30000}
    press(viewer, "Delete policy", sure=True)
    page.locator("h1", has_text="Policies").wait_for()
    assert [each["name"] for each in api.get("policies")] == ["strong"]

    viewer.show_all()
    mine = form(viewer, "Add operator policy")
    mine.get_by_label("Name *").fill("cap")
    mine.get_by_label("Pattern").fill(".*")
    mine.get_by_role("button", name="Max length", exact=True).click()
    mine.get_by_label("Definition: value 1").fill("5")
    press(viewer, "Add operator policy")
    told(viewer, "Operator policy cap is set")
    page.get_by_role("link", name="cap").click()
    page.locator("h1", has_text="Operator policy cap").wait_for()
    page.get_by_role("region", name="Matches").locator("tbody tr", has_text="audit").wait_for()
    viewer.show_all()
    press(viewer, "Delete operator policy", sure=True)
    page.locator("h1", has_text="Policies").wait_for()
    assert api.get("operator-policies") == []


def test_limits_are_set_and_cleared(api: HttpApi, viewer: Viewer) -> None:
    viewer.open("limits", "Limits")
    for owner, name, value, path in (
        ("virtual host", "max-queues", "7", "vhost-limits"),
        ("user", "max-channels", "8", "user-limits"),
    ):
        mine = form(viewer, f"Set limit of {owner}")
        mine.get_by_label("Limit", exact=True).select_option(name)
        mine.get_by_label("Value").fill(value)
        press(viewer, f"Set limit of {owner}")
        told(viewer, "is set")
        assert api.get(path)[0]["value"] == {name: int(value)}
        viewer.page.get_by_role("button", name=f"Clear {name} of").click()
        viewer.page.get_by_role("dialog").get_by_role("button", name="Clear").click()
        told(viewer, "is cleared")
        assert api.get(path) == []


def test_parameters_and_the_name_of_the_cluster_are_set(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("parameters", "Runtime parameters")
    viewer.show_all()
    mine = form(viewer, "Set global parameter")
    mine.get_by_label("Name *").fill("team")
    mine.get_by_label("Value").fill("payments")
    press(viewer, "Set global parameter")
    told(viewer, "The value is not JSON")
    mine.get_by_label("Value").fill('{"name": "<b>"}')
    press(viewer, "Set global parameter")
    told(viewer, "is set")
    page.locator("td code", has_text='{"name":"<b>"}').wait_for()
    page.get_by_role("button", name="Delete team").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    told(viewer, "is deleted")
    mine = form(viewer, "Set parameter")
    mine.get_by_label("Component").fill("nothing")
    mine.get_by_label("Name *").fill("x")
    mine.get_by_label("Value").fill("1")
    press(viewer, "Set parameter")
    told(viewer, "nothing")
    viewer.forgive("400")
    viewer.open("cluster-name", "Cluster")
    page.get_by_label("Name *").fill("warren@east")
    press(viewer, "Change name")
    told(viewer, "warren@east")
    assert api.get("cluster-name") == {"name": "warren@east"}


def test_a_shovel_is_added_restarted_and_deleted(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    api.put("queues/%2F/orders", {"durable": True})
    viewer.open("shovels", "Shovels")
    viewer.show_all()
    mine = form(viewer, "Add shovel")
    mine.get_by_label("Name *").fill(HOSTILE)
    mine.get_by_label("Source queue or exchange").fill("orders")
    mine.get_by_label("Source URI").fill("http://nothing")
    mine.get_by_label("Destination queue or exchange").fill("elsewhere")
    press(viewer, "Add shovel")
    told(viewer, "not a valid URI")
    viewer.forgive("400")
    mine.get_by_label("Source URI").fill("amqp://")
    press(viewer, "Add shovel")
    told(viewer, "is added")
    found = row(viewer, HOSTILE)
    found.get_by_text("running").wait_for()
    assert "queue orders" in found.inner_text()
    assert "queue elsewhere" in found.inner_text()
    stored = api.get(f"parameters/shovel/%2F/{part(HOSTILE)}")["value"]
    assert (stored["src-queue"], stored["dest-queue"], stored["src-delete-after"]) == (
        "orders",
        "elsewhere",
        "never",
    )

    page.get_by_role("button", name=f"Restart {HOSTILE}").click()
    told(viewer, "connects again")
    page.get_by_role("button", name=f"Delete {HOSTILE}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    told(viewer, "is deleted")
    assert api.get("shovels") == []

    mine.get_by_label("Name *").fill("published")
    mine.get_by_label("Consume from").select_option("exchange")
    mine.get_by_label("Source queue or exchange").fill("amq.topic")
    mine.get_by_label("Binding key").fill("a.#")
    mine.get_by_label("Publish to").select_option("published")
    press(viewer, "Add shovel")
    told(viewer, "is added")
    row(viewer, "published").get_by_text("running").wait_for()
    stored = api.get("parameters/shovel/%2F/published")["value"]
    assert (stored["src-exchange"], stored["src-exchange-key"]) == ("amq.topic", "a.#")
    assert "dest-exchange" not in stored


def test_features_show_what_clients_have_used(viewer: Viewer) -> None:
    viewer.open("feature-flags", "Feature flags")
    assert "enabled" in row(viewer, "stream_queue").inner_text()
    viewer.open("deprecated-features", "Deprecated features")
    assert row(viewer, "global_qos").locator("td").last.inner_text() == "no"


def test_definitions_are_downloaded_and_uploaded(api: HttpApi, viewer: Viewer, tmp_path: Path) -> None:
    page = viewer.page
    api.put("vhosts/other", {})
    api.put("queues/%2F/orders", {"durable": True, "arguments": {"x-max-length": 2**53 + 1}})
    viewer.open("", "Overview")
    viewer.show_all()
    with page.expect_download() as download:
        press(viewer, "Download definitions")
    whole = json.loads(download.value.path().read_text())
    assert whole["users"][0]["name"] == "guest"
    assert whole["queues"][0]["arguments"] == {"x-max-length": 2**53 + 1, "x-queue-type": "classic"}
    page.get_by_label("Definitions of virtual host").select_option("/")
    with page.expect_download() as download:
        press(viewer, "Download definitions")
    kept = tmp_path / "definitions.json"
    kept.write_text(download.value.path().read_text())
    assert "users" not in json.loads(kept.read_text())

    page.get_by_label("File", exact=True).set_input_files(kept)
    page.get_by_label("Into virtual host").select_option("other")
    press(viewer, "Upload definitions")
    page.get_by_role("dialog").get_by_text("1 queues will be added to virtual host other").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    told(viewer, "are imported")
    assert api.get("queues/other/orders")["arguments"]["x-max-length"] == 2**53 + 1

    kept.write_text("[1, 2]")
    page.get_by_label("File", exact=True).set_input_files(kept)
    press(viewer, "Upload definitions")
    told(viewer, "it is no JSON object")
    kept.write_text(json.dumps({"vhosts": [{"name": "third"}]}))
    page.get_by_label("File", exact=True).set_input_files(kept)
    page.get_by_label("Into virtual host").select_option("")
    press(viewer, "Upload definitions")
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    page.locator("header option", has_text="third").wait_for(state="attached")


def test_users_without_rights_see_what_they_may_and_read_what_they_lack(
    browser: Browser, api: HttpApi
) -> None:
    stock(api)
    for name, tags in (("clerk", "management"), ("maker", "policymaker")):
        api.put(f"users/{name}", {"password": "secret", "tags": tags})
        api.put(f"permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    with Viewer.at(browser, api.base) as viewer:
        page = viewer.page
        viewer.log_in("clerk", "secret")
        page.get_by_role("link", name="Admin").click()
        page.locator("h1", has_text="Virtual hosts").wait_for()
        menu = page.get_by_role("navigation", name="Menu of the tab")
        assert menu.locator("a").all_inner_texts() == [
            "Virtual hosts",
            "Policies",
            "Limits",
            "Cluster",
            "Your user",
        ]
        viewer.show_all()
        page.get_by_text("To add virtual hosts, your user needs the tag administrator.").wait_for()
        viewer.open("users", "Not allowed")
        viewer.open("vhosts/%2F", "Not allowed")
        viewer.open("policies/%2F/ttl", "Not allowed")
        viewer.open("limits", "Limits")
        page.get_by_text("To see and set limits of users").wait_for()
        assert page.get_by_role("button", name="Clear").count() == 0
        viewer.open("", "Overview")
        viewer.show_all()
        page.get_by_text("To export and import definitions").wait_for()
        assert viewer.noise == []
    with Viewer.at(browser, api.base) as viewer:
        viewer.log_in("maker", "secret")
        viewer.page.get_by_role("link", name="Admin").click()
        viewer.open("policies/%2F/ttl", "Policy ttl")
        viewer.show_all()
        viewer.page.get_by_role("button", name="Update policy").wait_for()
        viewer.open("operator-policies/%2F/cap", "Not allowed")
        viewer.open("parameters", "Runtime parameters")
        viewer.show_all()
        viewer.page.get_by_role("button", name="Set global parameter").wait_for()
        assert viewer.noise == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_views_are_accessible_and_fit_a_phone(
    browser: Browser, api: HttpApi, scheme: Literal["light", "dark"]
) -> None:
    stock(api)
    with Viewer.at(browser, api.base, scheme) as viewer:
        viewer.log_in()
        viewer.page.locator("h1", has_text="Overview").wait_for()
        for address, heading in VIEWS.items():
            viewer.check_accessibility(address, heading, scheme)
        assert viewer.noise == []
