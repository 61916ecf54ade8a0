"""Every verb of `warren ctl`: what it takes, in RabbitMQ's syntax (https://www.rabbitmq.com/docs/man/rabbitmqctl.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Option:
    """`--name VALUE`, or `--name` alone if it is a flag."""

    name: str
    flag: bool = False
    number: bool = False
    short: str = ""

    @property
    def argument(self) -> str:
        """The request's argument that it becomes."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Verb:
    """One verb.

    :param takes: its words, in order: `name` is needed, `name?` may be missing, `name...` are all that are left.
    :param announce: what is said before it is done; `{name}` is an argument.
    :param vhost: it works on one virtual host, `/` unless `-p` names another.
    """

    summary: str
    takes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    announce: str = ""
    vhost: bool = False

    @property
    def usage(self) -> str:
        words = ["-p VHOST"] if self.vhost else []
        words += [f"--{o.name}" if o.flag else f"--{o.name} {o.name.upper()}" for o in self.options]
        shown = [f"[{word}]" for word in words]
        for name in self.takes:
            plain = name.rstrip("?.").upper()
            shown.append(
                f"[{plain} ...]" if name.endswith("...") else f"[{plain}]" if name.endswith("?") else plain
            )
        return " ".join(shown)


def flag(name: str) -> Option:
    return Option(name, flag=True)


POLICY_OPTIONS: Final = (Option("priority", number=True), Option("apply-to"))
ITEMS: Final = ("items...",)

VERBS: Final[dict[str, Verb]] = {
    "list_queues": Verb(
        "Lists queues and their items: name and messages unless others are named",
        ITEMS,
        (flag("online"), flag("offline"), flag("local")),
        "Timeout: {timeout} seconds ...\nListing queues for vhost {vhost} ...",
        vhost=True,
    ),
    "list_exchanges": Verb(
        "Lists exchanges", ITEMS, announce="Listing exchanges for vhost {vhost} ...", vhost=True
    ),
    "list_bindings": Verb(
        "Lists bindings", ITEMS, announce="Listing bindings for vhost {vhost}...", vhost=True
    ),
    "list_consumers": Verb(
        "Lists consumers", ITEMS, announce="Listing consumers in vhost {vhost} ...", vhost=True
    ),
    "list_connections": Verb("Lists connections", ITEMS, announce="Listing connections ..."),
    "list_channels": Verb("Lists channels", ITEMS, announce="Listing channels ..."),
    "set_policy": Verb(
        "Sets a policy for the queues and exchanges whose names a pattern is found in",
        ("name", "pattern", "definition"),
        POLICY_OPTIONS,
        'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
        'for vhost "{vhost}" ...',
        vhost=True,
    ),
    "clear_policy": Verb(
        "Clears a policy", ("name",), announce='Clearing policy "{name}" on vhost "{vhost}" ...', vhost=True
    ),
    "list_policies": Verb("Lists policies", announce='Listing policies for vhost "{vhost}" ...', vhost=True),
    "set_operator_policy": Verb(
        "Sets an operator policy, which bounds what other policies may set",
        ("name", "pattern", "definition"),
        POLICY_OPTIONS,
        'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}" with priority '
        '"{priority}" for vhost "{vhost}" ...',
        vhost=True,
    ),
    "clear_operator_policy": Verb(
        "Clears an operator policy",
        ("name",),
        announce='Clearing operator policy "{name}" on vhost "{vhost}" ...',
        vhost=True,
    ),
    "list_operator_policies": Verb(
        "Lists operator policies",
        announce='Listing operator policy overrides for vhost "{vhost}" ...',
        vhost=True,
    ),
    "purge_queue": Verb(
        "Drops the ready messages of a queue",
        ("queue",),
        announce="Purging queue '{queue}' in vhost '{vhost}' ...",
        vhost=True,
    ),
    "delete_queue": Verb(
        "Deletes a queue",
        ("queue",),
        (Option("if-empty", flag=True, short="e"), Option("if-unused", flag=True, short="u")),
        "Deleting queue '{queue}' on vhost '{vhost}' ...",
        vhost=True,
    ),
    "close_connection": Verb(
        "Closes a connection, named by its pid of list_connections",
        ("pid", "reason"),
        announce="Closing connection {pid}, reason: {reason}...",
    ),
    "close_all_connections": Verb(
        "Closes the connections of a virtual host, or all",
        ("reason",),
        (flag("global"), Option("limit", number=True)),
        "Closing connections, reason: {reason}...",
        vhost=True,
    ),
    "close_all_user_connections": Verb(
        "Closes the connections of a user",
        ("user", "reason"),
        announce="Closing connections of user {user}, reason: {reason}...",
    ),
    "ping": Verb("Asks whether the broker answers"),
    "status": Verb("Says how the broker stands", announce="Status of the broker ..."),
}

DEFAULTS: Final = {"priority": 0, "vhost": "/", "apply_to": "all"}
"""What an announcement shows where nothing was given."""
