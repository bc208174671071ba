"""Who has anything in one pool: a tenant of a service class, with what of it waits and what is at engines.

Owns these counts, one record each, found once for a ticket and kept by it. Knows no bound: others hold them against it.
"""

from __future__ import annotations

from collections.abc import Iterator


class Tenant:
    """is_set_aside: the lanes pass it over, because it runs as much as its class allows."""

    __slots__ = ("is_set_aside", "name", "queued", "running", "service_class")

    def __init__(self, service_class: str, name: str) -> None:
        self.service_class = service_class
        self.name = name
        self.queued = 0
        self.running = 0
        self.is_set_aside = False


class Tenants:
    """Everybody who has a ticket in line or at an engine; nobody else is remembered."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Tenant] = {}

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._known.values())

    def named(self, service_class: str, name: str) -> Tenant:
        key = service_class, name
        tenant = self._known.get(key)
        if tenant is None:
            tenant = self._known[key] = Tenant(service_class, name)
        return tenant

    def forget_if_idle(self, tenant: Tenant) -> None:
        if not tenant.running and not tenant.queued:
            self._known.pop((tenant.service_class, tenant.name), None)
