"""`warren topology`: comparison with the broker, declaration, export, and risks."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from tests.cli.conftest import Command, Module
from tests.support.broker_process import BrokerProcess
from tests.support.rabbitmq import RabbitMQ
from warren.cli.import_target import load_object
from warren.sdk import App, Binding, Event, Exchange, Queue
from warren.sdk.planning import Kind, risks

SHOP = """
from datetime import timedelta
from warren.sdk import App, Binding, Command, Event, Exchange, Queue

def ship(order: str) -> None: ...

class Placed(Event, exchange="{name}.orders", key="order.placed", audience=["{name}.billing"]):
    order_id: str

class Cancel(Command, queue="{name}.cancel"):
    order_id: str

app = App({url!r})
app.publishes(Placed)

@app.handle(Cancel)
async def cancel(message: Cancel) -> None: ...

app.declare({further})
"""


def on_broker(url: str, work: Callable[[AbstractChannel], Any]) -> None:
    async def main() -> None:
        connection = await aio_pika.connect(url)
        async with connection:
            await work(await connection.channel())

    asyncio.run(main())


@pytest.fixture
def shop(module: Module, amqp_url: str, name: str) -> Iterator[Callable[..., str]]:
    """Return a function that writes a shop for the broker under test, and returns its `MODULE:APP`."""

    def write(further: str = "") -> str:
        return module(SHOP.format(name=name, url=amqp_url, further=further)) + ":app"

    yield write

    async def tidy(channel: AbstractChannel) -> None:
        for queue in ("billing", "billing.dead", "cancel", "cancel.dead", "other", "other.dead"):
            await channel.queue_delete(f"{name}.{queue}")
        await channel.exchange_delete(f"{name}.orders")

    on_broker(amqp_url, tidy)


def statuses(plan: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["status"] for each in plan["items"]}


def test_apply_declares_what_plan_lists_as_missing(
    warren: Command, shop: Callable[..., str], name: str
) -> None:
    target = shop()
    before = warren("topology", "plan", target, "--json")
    assert before.status == 1
    assert statuses(before.json)[f"queue '{name}.billing'"] == "missing"
    assert "is missing" in warren("topology", "plan", target).out
    applied = warren("topology", "apply", target)
    assert applied.status == 0
    assert f"declared queue '{name}.cancel'" in applied.out
    after = warren("topology", "plan", target, "--json")
    assert after.status == 0
    assert set(statuses(after.json).values()) == {"present", "unknown"}
    assert not after.json["listed"]
    # Bindings that cannot be listed are declared again, which changes nothing.
    assert all("the binding" in made for made in warren("topology", "apply", target, "--json").json["made"])


def test_differences_are_printed_argument_by_argument_and_never_changed(
    warren: Command, shop: Callable[..., str], amqp_url: str, name: str
) -> None:
    async def foreign(channel: AbstractChannel) -> None:
        await channel.declare_queue(
            f"{name}.other",
            durable=True,
            arguments={"x-queue-type": "quorum", "x-max-length": 3, "x-message-ttl": 2000},
        )

    on_broker(amqp_url, foreign)
    further = f"Queue({name + '.other'!r}, delivery_limit=None, dead_letter_exchange=None, message_ttl=timedelta(seconds=1))"
    target = shop(further)
    shown = warren("topology", "plan", target)
    assert shown.status == 1
    assert f"~ queue '{name}.other' differs" in shown.out
    assert "x-message-ttl is 2000 on the broker and 1000 here" in shown.out
    assert "x-max-length is 3 on the broker and none here" in shown.out
    refused = warren("topology", "apply", target)
    assert refused.status == 1
    assert refused.err.startswith("warren topology: nothing was declared: ")
    assert len(refused.err.splitlines()) == 1
    assert statuses(warren("topology", "plan", target, "--json").json)[f"queue '{name}.cancel'"] == "missing"
    assert warren("topology", "apply", target, "--mismatch", "adopt").status == 0
    after = statuses(warren("topology", "plan", target, "--json").json)
    assert after[f"queue '{name}.other'"] == "differs"
    assert after[f"queue '{name}.cancel'"] == "present"


def test_the_advice_for_an_argument_that_a_policy_can_set_is_a_policy(
    warren: Command, shop: Callable[..., str], amqp_url: str, name: str
) -> None:
    async def foreign(channel: AbstractChannel) -> None:
        await channel.declare_queue(f"{name}.other", durable=True, arguments={"x-queue-type": "quorum"})

    on_broker(amqp_url, foreign)
    further = f"Queue({name + '.other'!r}, delivery_limit=None, dead_letter_exchange=None, max_length=10)"
    shown = warren("topology", "plan", shop(further))
    assert (
        f"rabbitmqctl set_policy NAME '^{name}.other$' '{{\"max-length\": 10}}' --apply-to queues"
        in shown.out
    )


def test_missing_dead_letter_and_alternate_exchanges_are_risks(
    warren: Command, shop: Callable[..., str], name: str
) -> None:
    further = (
        f"Queue({name + '.other'!r}, dead_letter_exchange='', dead_letter_routing_key={name + '.gone'!r}),"
        f" *(Exchange(f'{name}.x{{n}}', alternate_exchange={name + '.lost'!r}) for n in range(5))"
    )
    target = shop(further)
    found = warren("topology", "plan", target, "--json").json["risks"]
    texts = {each["subject"]: each["text"] for each in found if "not there" in each["text"]}
    assert texts[f"queue '{name}.other'"] == f"dead-letters to queue '{name}.gone', which is not there"
    assert f"has the alternate exchange '{name}.lost', which is not there" in texts[f"exchange '{name}.x4'"]
    # Equal risks of several exchanges are one line.
    shown = warren("topology", "plan", target).out
    assert f"! exchange '{name}.x0', exchange '{name}.x1', exchange '{name}.x2' and 2 more: has the" in shown


def listed(
    warren: Command, write: Module, url: str, options: list[str], name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two plans of a shop that lacks a binding and has undeclared items: before and after `apply`."""
    target = write(SHOP.format(name=name, url=url, further="")) + ":app"
    assert warren("topology", "apply", target).status == 0

    async def foreign(channel: AbstractChannel) -> None:
        billing = await channel.get_queue(f"{name}.billing")
        await billing.unbind(f"{name}.orders", "order.placed")
        await billing.bind(f"{name}.orders", "order.old")
        await channel.declare_queue(f"{name}.strange", durable=True)

    on_broker(url, foreign)
    before = warren("topology", "plan", target, "--json", *options)
    assert before.status == 1, before
    assert warren("topology", "apply", target, *options).out.count("declared") == 1
    return before.json, warren("topology", "plan", target, "--json", *options).json


def assert_listed(before: dict[str, Any], after: dict[str, Any], name: str) -> None:
    binding = f"the binding of queue '{name}.billing' to exchange '{name}.orders' with key "
    assert statuses(before)[f"{binding}'order.placed'"] == "missing"
    assert f"{binding}'order.old'" in before["undeclared"]
    assert f"queue '{name}.strange'" in before["undeclared"]
    assert set(statuses(after).values()) == {"present"}
    assert after["stands"]
    assert after["listed"]
    # A policy sets an alternate exchange that does not exist.
    (alternate,) = [each["text"] for each in after["risks"] if each["subject"] == f"exchange '{name}.orders'"]
    assert alternate.startswith(f"has the alternate exchange '{name}.by.policy', which is not there")


def policy_of(name: str) -> list[str]:
    """Return the arguments of set_policy for an alternate exchange of the shop."""
    definition = json.dumps({"alternate-exchange": f"{name}.by.policy"})
    return ["set_policy", f"{name}-alternate", f"^{name}[.]orders$", definition, "--apply-to", "exchanges"]


def test_the_control_socket_lists_bindings_and_undeclared_items(
    warren: Command, module: Module, broker: BrokerProcess, name: str
) -> None:
    assert warren("ctl", "--data-dir", broker.data_dir, *policy_of(name)).status == 0
    options = ["--control-socket", str(broker.data_dir / "control.sock")]
    assert_listed(*listed(warren, module, broker.url, options, name), name)


def test_the_management_api_lists_the_same(
    warren: Command, module: Module, rabbitmq: RabbitMQ, name: str
) -> None:
    rabbitmq.ctl(*policy_of(name))
    assert_listed(
        *listed(warren, module, rabbitmq.url, ["--management-url", rabbitmq.management_url], name), name
    )
    wrong = warren("topology", "plan", f"{module(SHOP.format(name=name, url=rabbitmq.url, further=''))}:app",
                   "--management-url", rabbitmq.management_url.replace("//", "//guest:wrong@"))  # fmt: skip
    assert (wrong.status, len(wrong.err.splitlines())) == (74, 1)
    assert "wrong" not in wrong.err


def test_an_export_can_be_imported_into_rabbitmq_and_warren(
    warren: Command,
    module: Module,
    rabbitmq: RabbitMQ,
    broker: BrokerProcess,
    name: str,
    tmp_path: Path,
) -> None:
    further = (
        f"Queue({name + '.log'!r}, max_age=timedelta(days=1)), Queue({name + '.mine'!r}, exclusive=True),"
        f" Queue({name + '.prio'!r}, max_priority=5, dead_letter_exchange=None),"
        f" Exchange({name + '.lost'!r}, type='fanout'), Exchange({name + '.x'!r}, alternate_exchange={name + '.lost'!r}),"
        f" Binding({name + '.x'!r}, {name + '.lost'!r}, '#', to_exchange=True)"
    )
    target = module(SHOP.format(name=name, url=broker.url, further=further)) + ":app"
    file = tmp_path / "definitions.json"
    exported = warren("topology", "export", target, "-o", file)
    assert exported.status == 0
    assert f"{name}.mine" in exported.err
    assert json.loads(file.read_text()) == warren("topology", "export", target).json
    loaded = rabbitmq.folder / "definitions.json"
    shutil.copy(file, loaded)
    loaded.chmod(0o644)
    done = rabbitmq.run("import_definitions", rabbitmq.inside(loaded))
    assert done.returncode == 0, done.stdout + done.stderr
    assert warren("definitions", "import", file, "--data-dir", broker.data_dir).status == 0
    for options in (
        ["--url", rabbitmq.url, "--management-url", rabbitmq.management_url],
        ["--control-socket", str(broker.data_dir / "control.sock")],
    ):
        plan = warren("topology", "plan", target, "--json", *options).json
        unknown = {each for each, status in statuses(plan).items() if status != "present"}
        assert unknown == {f"queue '{name}.mine'"}


@pytest.mark.parametrize(
    ("words", "status", "warning"),
    [
        (["plan", "there_is_none:app"], 2, "there is no module 'there_is_none'"),
        (["plan", "shop/app.py"], 2, "write shop.app:app"),
        (["plan", "MODULE:nothing"], 2, "has no 'nothing'; it has app"),
        (["plan", "MODULE:Placed"], 2, "is not an App, but of type"),
        (["plan", "MODULE:ship"], 2, "is not an App, but a function with parameters; it has app"),
        (["plan", "BROKEN:app"], 2, "NameError: name 'undefined' is not defined"),
        (["plan", "MODULE:app", "--url", "amqp://127.0.0.1:1"], 74, "cannot connect"),
        (["plan", "MODULE:app", "--url", "http://127.0.0.1"], 2, "not an AMQP URL"),
        (["plan", "MODULE:app", "--management-url", "localhost"], 74, "not an HTTP URL"),
        (["plan", "MODULE:app", "--control-socket", "none.sock"], 74, "no broker listens"),
        (["plan"], 2, "Missing argument"),
        (["plan", "MODULE:app", "--nonsense"], 2, "No such option"),
    ],
)  # fmt: skip
def test_wrong_use_is_an_error_of_one_line(
    warren: Command, module: Module, words: list[str], status: int, warning: str
) -> None:
    shop = module(SHOP.format(name="n", url="amqp://127.0.0.1:1", further=""))
    broken = module("undefined\n")
    done = warren("topology", *(word.replace("MODULE", shop).replace("BROKEN", broken) for word in words))
    assert (done.status, len(done.err.splitlines())) == (status, 1), done
    assert warning in done.err


def texts(*items: Exchange | Queue | Binding, **known: Any) -> dict[Kind, list[str]]:
    found: dict[Kind, list[str]] = {}
    for risk in risks(items, **known):
        found.setdefault(risk.kind, []).append(f"{risk.subject} {risk.text}")
    return found


def test_risks_at_a_restart() -> None:
    found = texts(
        Exchange("x", durable=False),
        Exchange("a", auto_delete=True),
        Queue("q", durable=False),
        Queue("e", exclusive=True),
        Queue("d", auto_delete=True),
        Queue("kept"),
        Binding("x", "kept"),
        Binding("x", "q"),
    )
    assert [text.partition(",")[0] for text in found[Kind.RESTART]] == [
        "exchange 'x' is transient: a restart removes it with its bindings",
        "exchange 'a' is auto-delete: it goes with its last binding",
        "queue 'q' is transient: a restart removes it with its messages",
        "queue 'e' is exclusive: it goes with its connection",
        "queue 'd' is auto-delete: it goes with its last consumer",
        "the binding of queue 'kept' to exchange 'x' with key '' does not survive a restart",
    ]


@pytest.mark.parametrize(
    ("items", "warning"),
    [
        ([Exchange("x")], "has no alternate exchange: messages, as nothing is bound to it,"),
        ([Exchange("x"), Queue("q"), Binding("x", "q", "a.*")], "has no alternate exchange: messages that no binding"),
        ([Exchange("x"), Queue("q"), Binding("x", "q", "#")], ""),
        ([Exchange("x", alternate_exchange="gone")], "'gone', which is not there"),
        ([Exchange("x", alternate_exchange="lost"), Exchange("lost"), Queue("q"), Binding("lost", "q", "a.#")],
         "has no catch-all"),
        ([Exchange("x", alternate_exchange="lost"), Exchange("lost", type="fanout")], "has no catch-all"),
        ([Exchange("x", alternate_exchange="lost"), Exchange("lost", type="fanout"), Queue("q"), Binding("lost", "q")], ""),
        ([Exchange("x", alternate_exchange="lost"), Exchange("lost"), Queue("q"), Binding("lost", "q", "#")], ""),
    ],
)  # fmt: skip
def test_risks_of_loss_at_an_exchange(items: list[Exchange | Queue | Binding], warning: str) -> None:
    found = [risk.text for risk in risks(items, missing={"gone"}) if risk.subject == "exchange 'x'"]
    assert (warning in found[0] and len(found) == 1) if warning else not found, found


@pytest.mark.parametrize(
    ("items", "warning"),
    [
        ([Queue("q", dead_letter_exchange=None)], "has no dead letter exchange: what a consumer rejects is dropped"),
        ([Queue("q", dead_letter_exchange=None, message_ttl=timedelta(1), max_length=5)],
         "a consumer rejects or expires or is too much for its length"),
        ([Queue("q", dead_letter_exchange="gone")], "'gone', which is not there"),
        ([Queue("q", dead_letter_exchange="d", dead_letter_routing_key="k.x"), Exchange("d"), Queue("z"),
          Binding("d", "z", "k.*.*")], "key 'k.x', which no binding takes"),
        ([Queue("q", dead_letter_exchange="d", dead_letter_routing_key="k.x"), Exchange("d"), Queue("z"),
          Binding("d", "z", "#.k.*")], ""),
        ([Queue("q", type="classic")], "dead-letters at most once"),
        ([Queue("q", overflow="drop-head")], "dead-letters at most once"),
        ([Queue("q", expires=timedelta(hours=1))], "expires: 1:00:00 without a consumer"),
        ([Queue("q")], ""),
        ([Queue("q", type="stream")], ""),
    ],
)  # fmt: skip
def test_risks_of_loss_in_a_queue(items: list[Exchange | Queue | Binding], warning: str) -> None:
    found = [
        risk.text
        for risk in risks(items, missing={"gone"})
        if risk.subject == "queue 'q'" and risk.kind is Kind.LOSS
    ]
    assert (len(found) == 1 and warning in found[0]) if warning else not found, found


def test_events_with_an_audience_are_not_dropped_silently() -> None:
    class Heard(Event, exchange="x", key="heard", audience=["q"]):
        pass

    class Unheard(Event, exchange="x", key="unheard"):
        pass

    def losses(*kinds: type[Event]) -> list[str]:
        app = App("memory://")
        app.publishes(*kinds)
        assert app.messages == kinds
        found = risks(app.topology, messages=app.messages)
        return [each.text for each in found if (each.subject, each.kind) == ("exchange 'x'", Kind.LOSS)]

    assert not losses(Heard)
    assert len(losses(Unheard)) == 1
    assert len(losses(Heard, Unheard)) == 1


def test_risks_of_portability() -> None:
    assert not texts(Queue("q"), Queue("s", type="stream"), rabbitmq=(4, 3))
    assert (
        "is a classic queue because of max_priority=5"
        in texts(Queue("q", max_priority=5))[Kind.PORTABILITY][0]
    )
    new = Queue("q", consumer_timeout=timedelta(minutes=1))
    assert not texts(new, rabbitmq=(4, 3)).get(Kind.PORTABILITY)
    assert "RabbitMQ supports since 4.3" in texts(new, rabbitmq=(3, 10))[Kind.PORTABILITY][0]
    lazy = Queue("q", type="classic", mode="lazy")
    assert not texts(lazy, rabbitmq=(3, 10)).get(Kind.PORTABILITY)
    assert "ignores or refuses since 3.12" in texts(lazy)[Kind.PORTABILITY][0]


def without_configure(ctl: Callable[..., object], url: str, name: str) -> str:
    """Yield a URL with a user that may configure reply queues only."""
    ctl("add_user", name, "secret")
    ctl("set_permissions", name, r"^warren\.reply\.", ".*", ".*")
    return (
        url.replace("guest:guest@", f"{name}:secret@")
        if "@" in url
        else url.replace("//", f"//{name}:secret@")
    )


def works_without_configure(warren: Command, write: Module, url: str, limited: str, name: str) -> None:
    text = SHOP.format(name=name, url=url, further="")
    assert warren("topology", "apply", f"{write(text)}:app").status == 0
    plan = warren("topology", "plan", f"{write(text)}:app", "--url", limited, "--json")
    # A broker compares declarations only for users with configure permission.
    assert (plan.status, set(statuses(plan.json).values())) == (1, {"unknown"})
    module = write(text.replace("App(", "App(declare='never', url=").replace(repr(url), repr(limited)))

    async def run() -> None:
        app = load_object(f"{module}:app", App, "an App")
        async with app:
            assert app.ready

    asyncio.run(run())


def test_declare_never_needs_no_configure_permission(
    warren: Command, module: Module, broker: BrokerProcess, name: str
) -> None:
    def ctl(*words: str) -> None:
        assert warren("ctl", "--data-dir", broker.data_dir, *words).status == 0

    works_without_configure(warren, module, broker.url, without_configure(ctl, broker.url, name), name)


def test_declare_never_needs_no_configure_permission_on_rabbitmq(
    warren: Command, module: Module, rabbitmq: RabbitMQ, name: str
) -> None:
    limited = without_configure(rabbitmq.ctl, rabbitmq.url, name)
    works_without_configure(warren, module, rabbitmq.url, limited, name)
