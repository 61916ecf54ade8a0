"""Verbs of `warren ctl` with their arguments, in rabbitmqctl's syntax (https://www.rabbitmq.com/docs/man/rabbitmqctl.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Option:
    """Option of a verb: `--name VALUE`, or `--name` alone for a flag.

    :param flag: True if it takes no value
    :param number: True if the value must be an integer
    :param short: letter of the short form `-x`; empty for none
    """

    name: str
    flag: bool = False
    number: bool = False
    short: str = ""

    @property
    def argument(self) -> str:
        """Name of the option's value among the arguments of the request, with `_` for `-`."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Verb:
    """Operation of `warren ctl`, such as `list_queues`: its arguments, options and output.

    :param takes: names of the arguments, in order: `name` is required, `name?` optional, `name...` takes all that
        remain
    :param announce: line that is printed before the request is sent; `{name}` stands for the value of the argument
    :param vhost: True if it works on one virtual host: `/`, or that of `-p`
    """

    summary: str
    takes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    announce: str = ""
    done: str = ""
    """Line that is printed after the verb has succeeded; empty for none."""
    vhost: bool = False

    @property
    def usage(self) -> str:
        """Usage of the verb's options and arguments for the help, such as `[-p VHOST] NAME`."""
        words = ["-p VHOST"] if self.vhost else []
        words += [f"--{o.name}" if o.flag else f"--{o.name} {o.name.upper()}" for o in self.options]
        parts = [f"[{word}]" for word in words]
        for name in self.takes:
            plain = name.rstrip("?.").upper()
            parts.append(
                f"[{plain} ...]" if name.endswith("...") else f"[{plain}]" if name.endswith("?") else plain
            )
        return " ".join(parts)


def flag(name: str) -> Option:
    """Return an option `--name` without a value."""
    return Option(name, flag=True)


POLICY_OPTIONS: Final = (Option("priority", number=True), Option("apply-to"))
ITEMS: Final = ("items...",)
ENCRYPTION_OPTIONS: Final = (Option("cipher"), Option("hash"), Option("iterations", number=True))

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
        "Sets a policy for the queues and exchanges whose names match a pattern",
        ("name", "pattern", "definition"),
        POLICY_OPTIONS,
        'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
        'for vhost "{vhost}" ...',
        vhost=True,
    ),
    "clear_policy": Verb(
        "Clears a policy", ("name",), announce='Clearing policy "{name}" on vhost "{vhost}" ...', vhost=True
    ),
    "list_policies": Verb(
        "Lists policies", takes=ITEMS, announce='Listing policies for vhost "{vhost}" ...', vhost=True
    ),
    "set_operator_policy": Verb(
        "Sets an operator policy, which limits the values of other policies",
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
        takes=ITEMS,
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
    "add_user": Verb(
        "Adds a user; without PASSWORD it is read from standard input",
        ("username", "password?"),
        announce='Adding user "{username}" ...',
        done="Done. Don't forget to grant the user permissions to some virtual hosts! "
        "See 'warren ctl help set_permissions' to learn more.",
    ),
    "delete_user": Verb("Deletes a user", ("username",), announce='Deleting user "{username}" ...'),
    "change_password": Verb(
        "Sets a user's password; without PASSWORD it is read from standard input",
        ("username", "password?"),
        announce='Changing password for user "{username}" ...',
    ),
    "clear_password": Verb(
        "Removes a user's password, so that no login with a password is possible",
        ("username",),
        announce='Clearing password for user "{username}" ...',
    ),
    "authenticate_user": Verb(
        "Checks a user's password; without PASSWORD it is read from standard input",
        ("username", "password?"),
        announce='Authenticating user "{username}" ...',
    ),
    "set_user_tags": Verb(
        "Sets a user's tags",
        ("username", "tags..."),
        announce='Setting tags for user "{username}" to [{tags}] ...',
    ),
    "list_users": Verb("Lists users and their tags", takes=ITEMS, announce="Listing users ..."),
    "set_user_limits": Verb(
        "Sets a user's limits: a JSON object of max-connections and max-channels",
        ("username", "definition"),
        announce='Setting user limits to "{definition}" for user "{username}" ...',
    ),
    "clear_user_limits": Verb(
        "Clears a user's limit, or `all`",
        ("username", "limit"),
        announce='Clearing "{limit}" limit for user "{username}" ...',
    ),
    "list_user_limits": Verb(
        "Lists users' limits",
        options=(Option("user"), flag("global")),
        announce="Listing limits of users ...",
    ),
    "set_permissions": Verb(
        "Sets the names that a user may configure, write and read, as regular expressions",
        ("username", "configure", "write", "read"),
        announce='Setting permissions for user "{username}" in vhost "{vhost}" ...',
        vhost=True,
    ),
    "clear_permissions": Verb(
        "Removes a user's permissions on a virtual host",
        ("username",),
        announce='Clearing permissions for user "{username}" in vhost "{vhost}" ...',
        vhost=True,
    ),
    "list_permissions": Verb(
        "Lists the permissions for a virtual host",
        takes=ITEMS,
        announce='Listing permissions for vhost "{vhost}" ...',
        vhost=True,
    ),
    "list_user_permissions": Verb(
        "Lists a user's permissions",
        ("username", "items..."),
        announce='Listing permissions for user "{username}" ...',
    ),
    "set_topic_permissions": Verb(
        "Sets the routing keys that a user may use with a topic exchange",
        ("username", "exchange", "write", "read"),
        announce='Setting topic permissions on "{exchange}" for user "{username}" in vhost "{vhost}" ...',
        vhost=True,
    ),
    "clear_topic_permissions": Verb(
        "Clears a user's topic permissions, on one exchange or all",
        ("username", "exchange?"),
        announce='Clearing topic permissions for user "{username}" in vhost "{vhost}" ...',
        vhost=True,
    ),
    "list_topic_permissions": Verb(
        "Lists the topic permissions for a virtual host",
        takes=ITEMS,
        announce='Listing topic permissions for vhost "{vhost}" ...',
        vhost=True,
    ),
    "list_user_topic_permissions": Verb(
        "Lists a user's topic permissions",
        ("username", "items..."),
        announce='Listing topic permissions for user "{username}" ...',
    ),
    "add_vhost": Verb(
        "Adds a virtual host",
        ("name",),
        (Option("description"), Option("tags"), Option("default-queue-type")),
        'Adding vhost "{name}" ...',
    ),
    "update_vhost_metadata": Verb(
        "Changes the metadata of a virtual host",
        ("name",),
        (Option("description"), Option("tags"), Option("default-queue-type")),
        'Updating metadata of vhost "{name}" ...',
    ),
    "set_vhost_tags": Verb(
        "Sets a virtual host's tags",
        ("name", "tags..."),
        announce='Setting tags for vhost "{name}" to [{tags}] ...',
    ),
    "enable_vhost_protection_from_deletion": Verb(
        "Protects a virtual host from deletion",
        ("name",),
        announce='Protecting vhost "{name}" from deletion ...',
    ),
    "disable_vhost_protection_from_deletion": Verb(
        "Removes the protection of a virtual host from deletion",
        ("name",),
        announce='Removing deletion protection from vhost "{name}" ...',
    ),
    "enable_vhost_deletion_protection": Verb(
        "Protects a virtual host from deletion",
        ("name",),
        announce='Protecting vhost "{name}" from deletion ...',
    ),
    "disable_vhost_deletion_protection": Verb(
        "Removes the protection of a virtual host from deletion",
        ("name",),
        announce='Removing deletion protection from vhost "{name}" ...',
    ),
    "delete_vhost": Verb(
        "Deletes a virtual host with everything in it", ("name",), announce='Deleting vhost "{name}" ...'
    ),
    "list_vhosts": Verb("Lists virtual hosts", ITEMS, announce="Listing vhosts ..."),
    "trace_on": Verb(
        "Publishes a copy of each published and delivered message to the exchange amq.rabbitmq.trace",
        announce='Starting tracing for vhost "{vhost}" ...',
        vhost=True,
    ),
    "trace_off": Verb(
        "Stops publishing copies to the exchange amq.rabbitmq.trace",
        announce='Stopping tracing for vhost "{vhost}" ...',
        vhost=True,
    ),
    "set_vhost_limits": Verb(
        "Sets a virtual host's limits: a JSON object of max-connections and max-queues",
        ("definition",),
        announce='Setting vhost limits to "{definition}" for vhost "{vhost}" ...',
        vhost=True,
    ),
    "clear_vhost_limits": Verb(
        "Clears a virtual host's limits", announce='Clearing vhost "{vhost}" limits ...', vhost=True
    ),
    "list_vhost_limits": Verb(
        "Lists the limits of a virtual host, or of all",
        options=(flag("global"),),
        announce='Listing limits for vhost "{vhost}" ...',
        vhost=True,
    ),
    "set_parameter": Verb(
        "Sets a runtime parameter of a component, such as `shovel`, to a JSON value",
        ("component", "name", "value"),
        announce='Setting runtime parameter "{name}" for component "{component}" to "{value}" in vhost "{vhost}" ...',
        vhost=True,
    ),
    "clear_parameter": Verb(
        "Clears a runtime parameter",
        ("component", "name"),
        announce='Clearing runtime parameter "{name}" for component "{component}" on vhost "{vhost}" ...',
        vhost=True,
    ),
    "list_parameters": Verb(
        "Lists the runtime parameters of a virtual host",
        announce='Listing runtime parameters for vhost "{vhost}" ...',
        vhost=True,
    ),
    "set_global_parameter": Verb(
        "Sets a global runtime parameter to a JSON value",
        ("name", "value"),
        announce='Setting global runtime parameter "{name}" to "{value}" ...',
    ),
    "clear_global_parameter": Verb(
        "Clears a global runtime parameter",
        ("name",),
        announce='Clearing global runtime parameter "{name}" ...',
    ),
    "list_global_parameters": Verb(
        "Lists the global runtime parameters", announce="Listing global runtime parameters ..."
    ),
    "set_cluster_name": Verb(
        "Sets the name of the cluster", ("name",), announce="Setting cluster name to {name} ..."
    ),
    "shovel_status": Verb("Shows the status of the shovels", announce="Shovel status ..."),
    "delete_shovel": Verb(
        "Deletes a shovel", ("name",), (flag("force"),), "Deleting shovel {name} in vhost {vhost}", vhost=True
    ),
    "restart_shovel": Verb(
        "Closes the connections of a shovel and opens them again",
        ("name",),
        announce="Restarting dynamic Shovel {name} in virtual host {vhost}",
        vhost=True,
    ),
    "export_definitions": Verb(
        "Writes all definitions to a file, - for standard output",
        ("file?",),
        announce='Exporting definitions in JSON to a file at "{file}" ...',
    ),
    "import_definitions": Verb(
        "Imports the definitions of a file, - for standard input",
        ("file?",),
        announce='Importing definitions in JSON from a file at "{file}" ...',
    ),
    "ping": Verb("Checks that the broker answers"),
    "status": Verb(
        "Shows version, memory, disk, totals and listeners of the broker", announce="Status of the broker ..."
    ),
    "cluster_status": Verb(
        "Shows the status of the cluster, which is one node", announce="Cluster status ..."
    ),
    "environment": Verb("Shows the configuration", announce="Configuration of the broker ..."),
    "listeners": Verb("Lists the addresses that accept connections", announce="Listeners of the broker ..."),
    "alarms": Verb("Lists the alarms that block publishers", announce="Alarms of the broker ..."),
    "check_running": Verb("Checks that the broker runs"),
    "check_local_alarms": Verb("Fails if an alarm blocks publishers"),
    "check_port_connectivity": Verb("Fails if a listener does not accept connections"),
    "list_unresponsive_queues": Verb(
        "Lists queues that do not answer",
        ITEMS,
        announce="Listing unresponsive queues for vhost {vhost} ...",
        vhost=True,
    ),
    "set_vm_memory_high_watermark": Verb(
        "Sets the memory limit: a fraction of the memory, or `absolute` and a size",
        ("limit...",),
        announce="Setting memory threshold to {limit} ...",
    ),
    "set_disk_free_limit": Verb(
        "Sets the limit of free disk space: a size, or `mem_relative` and a factor of the memory",
        ("limit...",),
        announce="Setting disk free limit to {limit} ...",
    ),
    "set_log_level": Verb(
        "Sets the level of the broker's log", ("level",), announce='Setting log level to "{level}" ...'
    ),
    "await_startup": Verb("Waits until the broker has started, at most as long as the timeout (-t)"),
    "wait": Verb(
        "The same as await_startup; a PID file, which the broker does not write, is not looked at",
        ("pidfile?",),
        (Option("pid", number=True),),
    ),
    "version": Verb("Shows the versions of Warren and of the RabbitMQ whose behaviour it follows"),
    "server_version": Verb("The same as version"),
    "report": Verb(
        "Shows all that describes the broker, for a support request, without passwords and messages",
        announce="Reporting server status ...",
    ),
    "list_feature_flags": Verb(
        "Lists RabbitMQ's feature flags that the broker has; all are enabled",
        announce="Listing feature flags ...",
    ),
    "enable_feature_flag": Verb(
        "Accepts a feature flag that is enabled already, or `all`",
        ("feature_flag",),
        announce='Enabling feature flag "{feature_flag}" ...',
    ),
    "list_deprecated_features": Verb(
        "Lists RabbitMQ's deprecated features, or those in use",
        options=(flag("used"),),
        announce="Listing deprecated features ...",
    ),
    "check_if_any_deprecated_features_are_used": Verb(
        "Fails if a client has used a deprecated feature since the broker started"
    ),
    "list_node_auth_attempt_stats": Verb(
        "Lists how many logins succeeded and failed", announce="Listing authentication attempts ..."
    ),
    "check_alarms": Verb("Fails if an alarm blocks publishers"),
    "check_virtual_hosts": Verb("Checks that all virtual hosts run"),
    "check_if_node_is_quorum_critical": Verb("Succeeds: a single node has no quorum to lose"),
    "check_port_listener": Verb("Fails if no listener has the port", ("port",)),
    "check_protocol_listener": Verb(
        "Fails if no listener serves the protocol: amqp, amqps, http, https", ("protocol",)
    ),
    "is_running": Verb("Checks that the broker runs"),
    "is_booting": Verb("Fails unless the broker is still starting"),
    "node_health_check": Verb("Checks nothing, as in RabbitMQ; use check_running and check_alarms"),
    "hash_password": Verb(
        "Hashes a password for definitions; without PASSWORD it is read from standard input", ("password?",)
    ),
    "encode": Verb(
        "Encrypts an Erlang term for RabbitMQ's advanced.config; what is not given is read from standard input",
        ("value?", "passphrase?"),
        ENCRYPTION_OPTIONS,
        "Encrypting value to be used in advanced.config...",
    ),
    "decode": Verb(
        "Decrypts a value of RabbitMQ's advanced.config; without PASSPHRASE it is read from standard input",
        ("value", "passphrase?"),
        ENCRYPTION_OPTIONS,
        "Decrypting an advanced.config (Erlang term) value...",
    ),
    "encrypt_conf_value": Verb(
        "Encrypts a value for a rabbitmq.conf of RabbitMQ; what is not given is read from standard input",
        ("value?", "passphrase?"),
        ENCRYPTION_OPTIONS,
        "Encrypting value to be used in rabbitmq.conf...",
    ),
    "decrypt_conf_value": Verb(
        "Decrypts a value of a rabbitmq.conf; without PASSPHRASE it is read from standard input",
        ("value", "passphrase?"),
        ENCRYPTION_OPTIONS,
        "Decrypting a rabbitmq.conf string value...",
    ),
    "list_ciphers": Verb("Lists the ciphers of encode and decode", announce="Listing supported ciphers ..."),
    "list_hashes": Verb(
        "Lists the hash functions of encode and decode", announce="Listing supported hash algorithms ..."
    ),
    "force_gc": Verb(
        "Runs a garbage collection of the broker's process", announce="Running garbage collection ..."
    ),
    "set_permissions_globally": Verb(
        "Sets the permissions of a user in all virtual hosts",
        ("username", "configure", "write", "read"),
        announce='Setting permissions for user "{username}" in all virtual hosts ...',
    ),
    "suspend_listeners": Verb(
        "Closes the listeners for AMQP clients; open connections go on",
        announce="Will suspend client connection listeners. The broker will no longer accept client connections!",
    ),
    "resume_listeners": Verb(
        "Opens the listeners for AMQP clients again",
        announce="Will resume client connection listeners. The broker will now accept client connections",
    ),
    "stop_app": Verb(
        "Closes the listeners and connections of AMQP clients; queues and messages stay",
        announce="Stopping the service of clients ...",
    ),
    "start_app": Verb(
        "Accepts AMQP clients again after stop_app", announce="Starting the service of clients ..."
    ),
    "restart_vhost": Verb(
        "Does nothing: each virtual host runs",
        announce="Trying to restart vhost '{vhost}' ...",
        vhost=True,
    ),
    "rotate_logs": Verb("Refused, as in RabbitMQ 4.3: the log goes to standard error"),
    "shutdown": Verb("Stops the broker gracefully", announce="Shutting down the broker ..."),
    "stop": Verb("The same as shutdown", announce="Stopping the broker ..."),
}

DEFAULTS: Final = {"file": "-", "priority": 0, "vhost": "/", "apply_to": "all"}
"""Values of arguments that were not given, as the line printed before a verb runs (`Verb.announce`) shows them."""
LOCAL_VERBS: Final = frozenset(
    {"encode", "decode", "encrypt_conf_value", "decrypt_conf_value", "list_ciphers", "list_hashes"}
)
"""Verbs that need no broker."""
