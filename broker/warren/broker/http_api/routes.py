"""Routes of the API: each path and method with the function that answers it, and the role that the caller needs."""

from __future__ import annotations

from typing import Final, NamedTuple

from warren.broker.http_api.call import Handler
from warren.broker.http_api.caller import ADMINISTRATOR, ANYBODY, MONITORING, POLICYMAKER
from warren.broker.http_api.json_body import DEFINITIONS_BODY, MESSAGE_BODY, ORDINARY_BODY, BodyLimits
from warren.broker.http_api.resources import (
    bindings,
    clients,
    cluster,
    dead_letters,
    definitions,
    delays,
    exchanges,
    health,
    limits,
    messages,
    openapi,
    parameters,
    permissions,
    policies,
    queues,
    shovels,
    stories,
    topology,
    users,
    virtual_hosts,
)


class Route(NamedTuple):
    """Answer to the requests with one method to one path.

    :ivar path: path with names of its parts in braces.
    :ivar role: role that the caller needs besides MANAGEMENT; empty for none, ANYBODY for no login at all.
    :ivar body: what the body may have at most.
    """

    method: str
    path: str
    handler: Handler
    role: str = ""
    body: BodyLimits = ORDINARY_BODY

    @property
    def changes(self) -> bool:
        """True if requests may change something: users, topology, messages or the broker."""
        return self.method != "GET" and self.role != ANYBODY


ROUTES: Final = (
    Route("GET", "/api/overview", cluster.overview),
    Route("POST", "/api/login", cluster.log_in, ANYBODY),
    Route("DELETE", "/api/login", cluster.log_out, ANYBODY),
    Route("GET", "/api/whoami", cluster.whoami),
    Route("GET", "/api/version", cluster.version, ANYBODY),
    Route("GET", "/api/extensions", cluster.extensions),
    Route("GET", "/api/cluster-name", cluster.cluster_name),
    Route("PUT", "/api/cluster-name", cluster.set_cluster_name, ADMINISTRATOR),
    Route("GET", "/api/nodes", cluster.nodes, MONITORING),
    Route("GET", "/api/nodes/{node}", cluster.node, MONITORING),
    Route("GET", "/api/nodes/{node}/memory", cluster.memory, MONITORING),
    Route("GET", "/api/nodes/{node}/memory/relative", cluster.relative_memory, MONITORING),
    Route("DELETE", "/api/reset", cluster.reset_statistics, ADMINISTRATOR),
    Route("DELETE", "/api/reset/{node}", cluster.reset_statistics_of_node, ADMINISTRATOR),
    Route("GET", "/api/feature-flags", cluster.feature_flags),
    Route("PUT", "/api/feature-flags/{name}/enable", cluster.enable_feature_flag, ADMINISTRATOR),
    Route("GET", "/api/deprecated-features", cluster.deprecated_features),
    Route("GET", "/api/deprecated-features/used", cluster.used_deprecated_features),
    Route("GET", "/api/config/effective", cluster.environment, ADMINISTRATOR),
    Route("POST", "/api/rebalance/queues", cluster.rebalance, ADMINISTRATOR),
    Route("GET", "/api/auth/attempts/{node}", cluster.login_attempts, MONITORING),
    Route("DELETE", "/api/auth/attempts/{node}", cluster.reset_login_attempts, ADMINISTRATOR),
    Route("GET", "/api/auth/attempts/{node}/source", cluster.login_attempts_by_source, MONITORING),
    Route("DELETE", "/api/auth/attempts/{node}/source", cluster.reset_login_attempts, ADMINISTRATOR),
    Route("GET", "/api/auth/hash_password/{password}", cluster.hash_password, ADMINISTRATOR),
    # -- clients
    Route("GET", "/api/connections", clients.connections),
    Route("GET", "/api/connections/{name}", clients.connection),
    Route("DELETE", "/api/connections/{name}", clients.close_connection),
    Route("GET", "/api/connections/{name}/channels", clients.channels_of_connection),
    Route("GET", "/api/connections/username/{user}", clients.connections_of_user),
    Route("DELETE", "/api/connections/username/{user}", clients.close_connections_of_user),
    Route("GET", "/api/vhosts/{vhost}/connections", clients.connections_of_vhost),
    Route("GET", "/api/vhosts/{vhost}/channels", clients.channels_of_vhost),
    Route("GET", "/api/channels", clients.channels),
    Route("GET", "/api/channels/{name}", clients.channel),
    Route("GET", "/api/consumers", clients.consumers),
    Route("GET", "/api/consumers/{vhost}", clients.consumers_of_vhost),
    # -- topology
    Route("GET", "/api/exchanges", exchanges.list_all),
    Route("GET", "/api/exchanges/{vhost}", exchanges.list_in_vhost),
    Route("GET", "/api/exchanges/{vhost}/{exchange}", exchanges.show),
    Route("PUT", "/api/exchanges/{vhost}/{exchange}", exchanges.declare),
    Route("DELETE", "/api/exchanges/{vhost}/{exchange}", exchanges.delete),
    Route("POST", "/api/exchanges/{vhost}/{exchange}/publish", exchanges.publish, body=MESSAGE_BODY),
    Route("GET", "/api/exchanges/{vhost}/{exchange}/bindings/source", bindings.from_exchange),
    Route("GET", "/api/exchanges/{vhost}/{exchange}/bindings/destination", bindings.to_exchange),
    Route("GET", "/api/queues", queues.list_all),
    Route("GET", "/api/queues/detailed", queues.list_detailed),
    Route("GET", "/api/queues/{vhost}", queues.list_in_vhost),
    Route("GET", "/api/queues/{vhost}/{queue}", queues.show),
    Route("PUT", "/api/queues/{vhost}/{queue}", queues.declare),
    Route("DELETE", "/api/queues/{vhost}/{queue}", queues.delete),
    Route("GET", "/api/queues/{vhost}/{queue}/bindings", bindings.to_queue),
    Route("DELETE", "/api/queues/{vhost}/{queue}/contents", queues.purge),
    Route("POST", "/api/queues/{vhost}/{queue}/actions", queues.act, ADMINISTRATOR),
    Route("POST", "/api/queues/{vhost}/{queue}/get", queues.get_messages),
    Route("GET", "/api/bindings", bindings.list_all),
    Route("GET", "/api/bindings/{vhost}", bindings.list_in_vhost),
    Route("GET", "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}", bindings.between),
    Route("POST", "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}", bindings.bind),
    Route("GET", "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}/{key}", bindings.show),
    Route("DELETE", "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}/{key}", bindings.unbind),
    # -- virtual hosts, users, permissions
    Route("GET", "/api/vhosts", virtual_hosts.list_all),
    Route("GET", "/api/vhosts/{vhost}", virtual_hosts.show, ADMINISTRATOR),
    Route("PUT", "/api/vhosts/{vhost}", virtual_hosts.put, ADMINISTRATOR),
    Route("DELETE", "/api/vhosts/{vhost}", virtual_hosts.delete, ADMINISTRATOR),
    Route("POST", "/api/vhosts/{vhost}/start/{node}", virtual_hosts.start, ADMINISTRATOR),
    Route("POST", "/api/vhosts/{vhost}/deletion/protection", virtual_hosts.protect, ADMINISTRATOR),
    Route("DELETE", "/api/vhosts/{vhost}/deletion/protection", virtual_hosts.unprotect, ADMINISTRATOR),
    Route("GET", "/api/vhosts/{vhost}/permissions", permissions.of_vhost, ADMINISTRATOR),
    Route("GET", "/api/vhosts/{vhost}/topic-permissions", permissions.topics_of_vhost, ADMINISTRATOR),
    Route("GET", "/api/users", users.list_all, ADMINISTRATOR),
    Route("GET", "/api/users/without-permissions", users.without_permissions, ADMINISTRATOR),
    Route("POST", "/api/users/bulk-delete", users.bulk_delete, ADMINISTRATOR),
    Route("GET", "/api/users/{user}", users.show, ADMINISTRATOR),
    Route("PUT", "/api/users/{user}", users.put, ADMINISTRATOR),
    Route("DELETE", "/api/users/{user}", users.delete, ADMINISTRATOR),
    Route("GET", "/api/users/{user}/permissions", permissions.of_user, ADMINISTRATOR),
    Route("GET", "/api/users/{user}/topic-permissions", permissions.topics_of_user, ADMINISTRATOR),
    Route("GET", "/api/permissions", permissions.list_all, ADMINISTRATOR),
    Route("GET", "/api/permissions/{vhost}/{user}", permissions.show, ADMINISTRATOR),
    Route("PUT", "/api/permissions/{vhost}/{user}", permissions.put, ADMINISTRATOR),
    Route("DELETE", "/api/permissions/{vhost}/{user}", permissions.delete, ADMINISTRATOR),
    Route("GET", "/api/topic-permissions", permissions.list_topics, ADMINISTRATOR),
    Route("GET", "/api/topic-permissions/{vhost}/{user}", permissions.show_topics, ADMINISTRATOR),
    Route("PUT", "/api/topic-permissions/{vhost}/{user}", permissions.put_topic, ADMINISTRATOR),
    Route("DELETE", "/api/topic-permissions/{vhost}/{user}", permissions.delete_topics, ADMINISTRATOR),
    Route("GET", "/api/topic-permissions/{vhost}/{user}/{exchange}", permissions.show_topics, ADMINISTRATOR),
    Route("PUT", "/api/topic-permissions/{vhost}/{user}/{exchange}", permissions.put_topic, ADMINISTRATOR),
    Route(
        "DELETE", "/api/topic-permissions/{vhost}/{user}/{exchange}", permissions.delete_topic, ADMINISTRATOR
    ),
    # -- policies, parameters, limits
    Route("GET", "/api/policies", policies.list_all),
    Route("GET", "/api/policies/{vhost}", policies.list_in_vhost),
    Route("GET", "/api/policies/{vhost}/{name}", policies.show, POLICYMAKER),
    Route("PUT", "/api/policies/{vhost}/{name}", policies.put, POLICYMAKER),
    Route("DELETE", "/api/policies/{vhost}/{name}", policies.delete, POLICYMAKER),
    Route("GET", "/api/operator-policies", policies.list_all_operator),
    Route("GET", "/api/operator-policies/{vhost}", policies.list_operator_in_vhost),
    Route("GET", "/api/operator-policies/{vhost}/{name}", policies.show_operator, ADMINISTRATOR),
    Route("PUT", "/api/operator-policies/{vhost}/{name}", policies.put_operator, ADMINISTRATOR),
    Route("DELETE", "/api/operator-policies/{vhost}/{name}", policies.delete_operator, ADMINISTRATOR),
    Route("GET", "/api/parameters", parameters.list_all, POLICYMAKER),
    Route("GET", "/api/parameters/{component}", parameters.list_component, POLICYMAKER),
    Route("GET", "/api/parameters/{component}/{vhost}", parameters.list_in_vhost, POLICYMAKER),
    Route("GET", "/api/parameters/{component}/{vhost}/{name}", parameters.show, POLICYMAKER),
    Route("PUT", "/api/parameters/{component}/{vhost}/{name}", parameters.put, POLICYMAKER),
    Route("DELETE", "/api/parameters/{component}/{vhost}/{name}", parameters.delete, POLICYMAKER),
    Route("GET", "/api/global-parameters", parameters.list_global, POLICYMAKER),
    Route("GET", "/api/global-parameters/{name}", parameters.show_global, POLICYMAKER),
    Route("PUT", "/api/global-parameters/{name}", parameters.put_global, POLICYMAKER),
    Route("DELETE", "/api/global-parameters/{name}", parameters.delete_global, POLICYMAKER),
    Route("GET", "/api/vhost-limits", limits.of_vhosts),
    Route("GET", "/api/vhost-limits/{vhost}", limits.of_vhost),
    Route("PUT", "/api/vhost-limits/{vhost}/{name}", limits.put_vhost, ADMINISTRATOR),
    Route("DELETE", "/api/vhost-limits/{vhost}/{name}", limits.delete_vhost, ADMINISTRATOR),
    Route("GET", "/api/user-limits", limits.of_users, ADMINISTRATOR),
    Route("GET", "/api/user-limits/{user}", limits.of_user),
    Route("PUT", "/api/user-limits/{user}/{name}", limits.put_user, ADMINISTRATOR),
    Route("DELETE", "/api/user-limits/{user}/{name}", limits.delete_user, ADMINISTRATOR),
    # -- shovels
    Route("GET", "/api/shovels", shovels.list_all, MONITORING),
    Route("GET", "/api/shovels/{vhost}", shovels.list_in_vhost, MONITORING),
    Route("GET", "/api/shovels/vhost/{vhost}/{name}", shovels.show, MONITORING),
    Route("DELETE", "/api/shovels/vhost/{vhost}/{name}", shovels.delete, POLICYMAKER),
    Route("GET", "/api/shovels/vhost/{vhost}/{name}/restart", shovels.show, MONITORING),
    Route("DELETE", "/api/shovels/vhost/{vhost}/{name}/restart", shovels.restart, POLICYMAKER),
    # -- definitions
    Route("GET", "/api/definitions", definitions.export_all, ADMINISTRATOR),
    Route("POST", "/api/definitions", definitions.import_all, ADMINISTRATOR, DEFINITIONS_BODY),
    Route("GET", "/api/all-configuration", definitions.export_all, ADMINISTRATOR),
    Route("POST", "/api/all-configuration", definitions.import_all, ADMINISTRATOR, DEFINITIONS_BODY),
    Route("GET", "/api/definitions/{vhost}", definitions.export_vhost, ADMINISTRATOR),
    Route("POST", "/api/definitions/{vhost}", definitions.import_vhost, ADMINISTRATOR, DEFINITIONS_BODY),
    # -- health
    Route("GET", "/api/health/checks/alarms", health.alarms),
    Route("GET", "/api/health/checks/local-alarms", health.alarms),
    Route("GET", "/api/health/checks/port-listener/{port}", health.port_listener),
    Route("GET", "/api/health/checks/protocol-listener/{protocols}", health.protocol_listener),
    Route("GET", "/api/health/checks/virtual-hosts", health.ok),
    Route("GET", "/api/health/checks/node-is-quorum-critical", health.quorum_critical),
    # Without a login, as in RabbitMQ: load balancers and orchestrators ask these.
    Route("GET", "/api/health/checks/is-in-service", health.in_service, ANYBODY),
    Route("GET", "/api/health/checks/below-node-connection-limit", health.below_connection_limit, ANYBODY),
    Route("GET", "/api/health/checks/ready-to-serve-clients", health.ready_to_serve, ANYBODY),
    Route("GET", "/api/health/checks/certificate-expiration/{within}/{unit}", health.certificates),
    *(
        Route("GET", f"/api/health/checks/{path}", health.ok)
        for path in (
            "quorum-queues-without-elected-leaders/all-vhosts",
            "quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}",
            "metadata-store/initialized",
            "metadata-store/initialized/with-data",
        )
    ),
    *(
        Route(
            "GET",
            f"/api/health/checks/quorum-queues-without-elected-leaders/vhost/{path}",
            health.ok_in_monitored_vhost,
        )
        for path in ("{vhost}", "{vhost}/pattern/{pattern}")
    ),
    Route("GET", "/api/health/checks/reached-target-cluster-size", health.ok, ANYBODY),
    Route("GET", "/api/healthchecks/node", health.ok),
    Route("GET", "/api/healthchecks/node/{node}", health.ok_of_node),
    Route("GET", "/api/aliveness-test/{vhost}", health.ok_in_vhost),
    # -- Warren's own
    Route("GET", "/api/warren/queues/{vhost}/{queue}/messages", messages.browse),
    Route("POST", "/api/warren/queues/{vhost}/{queue}/messages/delete", messages.delete, body=MESSAGE_BODY),
    Route("POST", "/api/warren/queues/{vhost}/{queue}/messages/move", messages.move, body=MESSAGE_BODY),
    Route("POST", "/api/warren/queues/{vhost}/{queue}/messages/replay", messages.replay, body=MESSAGE_BODY),
    Route("GET", "/api/warren/queues/{vhost}/{queue}/dead-letters", dead_letters.groups),
    Route("GET", "/api/warren/exchanges/{vhost}/{exchange}/delayed", messages.browse_delayed),
    Route("GET", "/api/warren/dead-letters", dead_letters.list_all),
    Route("GET", "/api/warren/dead-letters/{vhost}", dead_letters.list_in_vhost),
    Route("GET", "/api/warren/delays", delays.list_all),
    Route("GET", "/api/warren/delays/{vhost}", delays.list_in_vhost),
    Route("GET", "/api/warren/topology/{vhost}", topology.graph),
    Route("GET", "/api/warren/stories/{vhost}/{message_id}", stories.story),
    Route("GET", "/api/warren/openapi.json", openapi.document, ANYBODY),
)
