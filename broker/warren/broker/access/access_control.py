"""Access control of one broker: users and permissions, and a count of their changes to outdate caches."""

from __future__ import annotations

from warren.broker.access.permissions import Permissions
from warren.broker.access.users import Users
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.broker.store.definitions.definition_rows import Snapshot
from warren.broker.store.definitions.definitions_database import Definitions


class Access:
    """Users and permissions of one broker, and a count of their changes (`epoch`)."""

    def __init__(self, virtual_hosts: VirtualHosts, definitions: Definitions | None = None) -> None:
        self.epoch = 0
        """Number of changes made to users and permissions so far; a cache filled at an earlier number is outdated."""
        self.users = Users(definitions, self._changed)
        self.permissions = Permissions(
            definitions, self._changed, self.users.__contains__, virtual_hosts.__contains__
        )
        self._virtual_hosts = virtual_hosts
        self.users.on_deleted.append(lambda name: self.permissions.forget(user=name))
        virtual_hosts.on_deleted.append(lambda name: self.permissions.forget(vhost=name))

    def restore(self, snapshot: Snapshot) -> None:
        """Load users and permissions from the data folder, without storing them again."""
        self.users.restore(snapshot.users)
        self.permissions.restore(snapshot.permissions, snapshot.topic_permissions)

    def outdate(self) -> None:
        """Have all cached permissions checked again: a back end may answer differently now."""
        self._changed()

    def _changed(self) -> None:
        self.epoch += 1
        self._virtual_hosts.invalidate_routes()
