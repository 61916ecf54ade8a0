"""Verbs of the control socket: the requests of operators by name, such as `list_queues`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from warren.broker.access.audit_log import CONTROL_SOCKET, DONE, FAILED, REFUSED, Change
from warren.broker.management.management import Management
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs import (
    client_service,
    definitions,
    diagnostics,
    health,
    listing,
    operations,
    permissions,
    policies,
    runtime_parameters,
    shovels,
    users,
    virtual_hosts,
)
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.operations.waiting import changes_stored
from warren.wire.reply_codes import AmqpError

Action: TypeAlias = Callable[[Management, Request], Json]
"""Function that performs a request of an operator, and returns its result or an awaitable of it."""


class Verb(NamedTuple):
    """Verb of the control socket.

    :ivar changes: True if the verb may change something: then its requests are recorded in the audit log.
    """

    action: Action
    changes: bool = False


async def perform(management: Management, action: Action, request: Request) -> Json:
    """Perform an action and return its result, after its changes are stored on disk.

    :raises OperationRefused: if the request is refused
    """
    async with changes_stored(management.node):
        try:
            result = action(management, request)
            return await result if inspect.isawaitable(result) else result
        except AmqpError as error:
            raise RequestRefused(error.explanation) from None


async def perform_verb(management: Management, name: str, request: Request, source: str) -> Json:
    """Perform the verb of a request at the control socket, and record it in the audit log if it may change something.

    :param source: user id and process id of the operator's process, for the audit log
    :raises RequestRefused: if there is no such verb
    :raises OperationRefused: if the request is refused
    """
    verb = VERBS.get(name)
    if verb is None:
        raise RequestRefused(f"there is no verb {name!r}")
    audit = management.audit
    if audit is None or not verb.changes:
        return await perform(management, verb.action, request)
    outcome = FAILED
    try:
        result = await perform(management, verb.action, request)
        outcome = DONE
        return result
    except OperationRefused:
        outcome = REFUSED
        raise
    finally:
        await audit.record(Change("", source, CONTROL_SOCKET, name, request.object(), outcome))


VERBS: Final[Mapping[str, Verb]] = {
    "list_queues": Verb(listing.list_queues),
    "list_exchanges": Verb(listing.list_exchanges),
    "list_bindings": Verb(listing.list_bindings),
    "list_consumers": Verb(listing.list_consumers),
    "list_connections": Verb(listing.list_connections),
    "list_channels": Verb(listing.list_channels),
    "set_policy": Verb(policies.set_policy, changes=True),
    "clear_policy": Verb(policies.clear_policy, changes=True),
    "list_policies": Verb(policies.list_policies),
    "set_operator_policy": Verb(policies.set_operator_policy, changes=True),
    "clear_operator_policy": Verb(policies.clear_operator_policy, changes=True),
    "list_operator_policies": Verb(policies.list_operator_policies),
    "add_user": Verb(users.add_user, changes=True),
    "delete_user": Verb(users.delete_user, changes=True),
    "change_password": Verb(users.change_password, changes=True),
    "clear_password": Verb(users.clear_password, changes=True),
    "authenticate_user": Verb(users.authenticate_user),
    "set_user_tags": Verb(users.set_user_tags, changes=True),
    "list_users": Verb(users.list_users),
    "set_user_limits": Verb(users.set_user_limits, changes=True),
    "clear_user_limits": Verb(users.clear_user_limits, changes=True),
    "list_user_limits": Verb(users.list_user_limits),
    "set_permissions": Verb(permissions.set_permissions, changes=True),
    "clear_permissions": Verb(permissions.clear_permissions, changes=True),
    "list_permissions": Verb(permissions.list_permissions),
    "list_user_permissions": Verb(permissions.list_user_permissions),
    "set_topic_permissions": Verb(permissions.set_topic_permissions, changes=True),
    "clear_topic_permissions": Verb(permissions.clear_topic_permissions, changes=True),
    "list_topic_permissions": Verb(permissions.list_topic_permissions),
    "list_user_topic_permissions": Verb(permissions.list_user_topic_permissions),
    "add_vhost": Verb(virtual_hosts.add_vhost, changes=True),
    "update_vhost_metadata": Verb(virtual_hosts.update_vhost_metadata, changes=True),
    "set_vhost_tags": Verb(virtual_hosts.set_vhost_tags, changes=True),
    "enable_vhost_protection_from_deletion": Verb(
        virtual_hosts.enable_vhost_protection_from_deletion, changes=True
    ),
    "disable_vhost_protection_from_deletion": Verb(
        virtual_hosts.disable_vhost_protection_from_deletion, changes=True
    ),
    "enable_vhost_deletion_protection": Verb(
        virtual_hosts.enable_vhost_protection_from_deletion, changes=True
    ),
    "disable_vhost_deletion_protection": Verb(
        virtual_hosts.disable_vhost_protection_from_deletion, changes=True
    ),
    "delete_vhost": Verb(virtual_hosts.delete_vhost, changes=True),
    "list_vhosts": Verb(virtual_hosts.list_vhosts),
    "trace_on": Verb(virtual_hosts.trace_on, changes=True),
    "trace_off": Verb(virtual_hosts.trace_off, changes=True),
    "set_vhost_limits": Verb(virtual_hosts.set_vhost_limits, changes=True),
    "clear_vhost_limits": Verb(virtual_hosts.clear_vhost_limits, changes=True),
    "list_vhost_limits": Verb(virtual_hosts.list_vhost_limits),
    "set_parameter": Verb(runtime_parameters.set_parameter, changes=True),
    "clear_parameter": Verb(runtime_parameters.clear_parameter, changes=True),
    "list_parameters": Verb(runtime_parameters.list_parameters),
    "set_global_parameter": Verb(runtime_parameters.set_global_parameter, changes=True),
    "clear_global_parameter": Verb(runtime_parameters.clear_global_parameter, changes=True),
    "list_global_parameters": Verb(runtime_parameters.list_global_parameters),
    "set_cluster_name": Verb(runtime_parameters.set_cluster_name, changes=True),
    "shovel_status": Verb(shovels.shovel_status),
    "delete_shovel": Verb(shovels.delete_shovel, changes=True),
    "restart_shovel": Verb(shovels.restart_shovel, changes=True),
    "export_definitions": Verb(definitions.export_definitions),
    "import_definitions": Verb(definitions.import_definitions, changes=True),
    "purge_queue": Verb(operations.purge_queue, changes=True),
    "delete_queue": Verb(operations.delete_queue, changes=True),
    "close_connection": Verb(operations.close_connection, changes=True),
    "close_all_connections": Verb(operations.close_all_connections, changes=True),
    "close_all_user_connections": Verb(operations.close_all_user_connections, changes=True),
    "set_vm_memory_high_watermark": Verb(operations.set_vm_memory_high_watermark, changes=True),
    "set_disk_free_limit": Verb(operations.set_disk_free_limit, changes=True),
    "suspend_listeners": Verb(client_service.suspend_listeners, changes=True),
    "resume_listeners": Verb(client_service.resume_listeners, changes=True),
    "stop_app": Verb(client_service.stop_app, changes=True),
    "start_app": Verb(client_service.start_app, changes=True),
    "restart_vhost": Verb(client_service.restart_vhost),
    "rotate_logs": Verb(client_service.rotate_logs),
    "shutdown": Verb(operations.shutdown, changes=True),
    "stop": Verb(operations.shutdown, changes=True),
    "ping": Verb(health.ping),
    "status": Verb(health.status),
    "check_running": Verb(health.check_running),
    "await_startup": Verb(health.await_startup),
    "wait": Verb(health.await_startup),
    "alarms": Verb(health.alarms),
    "check_local_alarms": Verb(health.check_local_alarms),
    "listeners": Verb(health.listeners),
    "check_port_connectivity": Verb(health.check_port_connectivity),
    "list_unresponsive_queues": Verb(health.list_unresponsive_queues),
    "set_log_level": Verb(health.set_log_level, changes=True),
    "environment": Verb(health.environment),
    "cluster_status": Verb(health.cluster_status),
    "version": Verb(diagnostics.version),
    "server_version": Verb(diagnostics.version),
    "report": Verb(diagnostics.report),
    "list_feature_flags": Verb(diagnostics.list_feature_flags),
    "enable_feature_flag": Verb(diagnostics.enable_feature_flag),
    "list_deprecated_features": Verb(diagnostics.list_deprecated_features),
    "check_if_any_deprecated_features_are_used": Verb(diagnostics.check_if_any_deprecated_features_are_used),
    "list_node_auth_attempt_stats": Verb(diagnostics.list_node_auth_attempt_stats),
    "check_alarms": Verb(diagnostics.check_alarms),
    "check_virtual_hosts": Verb(diagnostics.check_virtual_hosts),
    "check_if_node_is_quorum_critical": Verb(diagnostics.check_if_node_is_quorum_critical),
    "check_port_listener": Verb(diagnostics.check_port_listener),
    "check_protocol_listener": Verb(diagnostics.check_protocol_listener),
    "is_running": Verb(diagnostics.is_running),
    "is_booting": Verb(diagnostics.is_booting),
    "node_health_check": Verb(diagnostics.node_health_check),
    "hash_password": Verb(diagnostics.hash_password),
    "force_gc": Verb(diagnostics.force_gc),
    "set_permissions_globally": Verb(diagnostics.set_permissions_globally, changes=True),
}
