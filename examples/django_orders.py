"""Django with a Warren App: views publish after the commit, plain handlers use the database, a command runs the consumers.

Run it: AMQP_URL=amqp://localhost python django_orders.py consume, and python django_orders.py runserver (pip install django)
"""

import asyncio
import os
import sys
from typing import Any

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.management.base import BaseCommand
from django.db import close_old_connections, connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from warren.sdk import App, Event

if not settings.configured:  # settings.py of a project
    settings.configure(
        SECRET_KEY="only for this example",
        DEBUG=True,
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": os.environ.get("DATABASE_FILE", "shop.sqlite"),
                "OPTIONS": {"timeout": 60},
            }
        },
    )
    django.setup()


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: int


# The service also starts while its broker is away.
messaging = App(start="background")


@messaging.handle(OrderPlaced, queue="billing")
def bill(order: OrderPlaced) -> None:
    """Write the invoice; a plain handler runs in a thread, where Django's database layer may block."""
    close_old_connections()
    try:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO invoices VALUES (%s)", [order.order_id])
    finally:
        connection.close()


def place(request: HttpRequest, order_id: int) -> JsonResponse:
    """Place an order in a synchronous view; `app.sync` starts the App in a thread at its first use."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [order_id])
        transaction.on_commit(lambda: messaging.sync.publish(OrderPlaced(order_id=order_id)))
    return JsonResponse({"order_id": order_id}, status=202)


async def announce(request: HttpRequest, order_id: int) -> JsonResponse:
    """Publish in an asynchronous view, which Django may run on any event loop: through `app.sync`, in a thread."""
    await asyncio.to_thread(messaging.sync.publish, OrderPlaced(order_id=order_id))
    return JsonResponse({"order_id": order_id}, status=202)


urlpatterns = [path("orders/<int:order_id>", place), path("announcements/<int:order_id>", announce)]


class Consume(BaseCommand):  # type: ignore[misc]
    """In a project: the class `Command` in management/commands/consume.py."""

    help = "Handle messages until SIGTERM."

    def handle(self, *arguments: Any, **options: Any) -> None:
        messaging.run()


def create_tables() -> None:
    with connection.cursor() as cursor:
        for table in ("orders", "invoices"):
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} (id integer primary key)")


if __name__ == "__main__":
    create_tables()
    if sys.argv[1:2] == ["consume"]:
        Consume().run_from_argv(sys.argv)
    else:
        execute_from_command_line(sys.argv)
