"""Access control as a whole: users, permissions, and the epoch in which decisions about them hold."""

from __future__ import annotations

from warren.broker.access.permissions import Permissions
from warren.broker.access.users import Users
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.broker.store.definitions.definition_rows import Snapshot
from warren.broker.store.definitions.definitions_database import Definitions


class Access:
    """Who may come in, and do what in which virtual host."""

    def __init__(self, virtual_hosts: VirtualHosts, definitions: Definitions | None = None) -> None:
        self.epoch = 0
        """Raised by every change of users and permissions: what was decided before does not stand."""
        self.users = Users(definitions, self._changed)
        self.permissions = Permissions(
            definitions, self._changed, self.users.__contains__, virtual_hosts.__contains__
        )
        self._virtual_hosts = virtual_hosts
        self.users.on_deleted.append(lambda name: self.permissions.forget(user=name))
        virtual_hosts.on_deleted.append(lambda name: self.permissions.forget(vhost=name))

    def restore(self, snapshot: Snapshot) -> None:
        """Take what was stored, without storing it."""
        self.users.restore(snapshot.users)
        self.permissions.restore(snapshot.permissions, snapshot.topic_permissions)

    def _changed(self) -> None:
        self.epoch += 1
        self._virtual_hosts.invalidate_routes()
