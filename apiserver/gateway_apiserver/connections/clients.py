"""Clients behind trusted proxies: who they are, and how many requests each may have at once.

The connections of a proxy are not its own, so these are bounded by request.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from gateway_apiserver.connections.bounds import ConnectionBounds
from gateway_apiserver.connections.peers import Proxies, name_holder
from gateway_core.contract.errors import Unavailable


class ProxiedClients:
    """Requests that are under way, by client."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._proxies = Proxies(bounds.trusted_proxies)
        self._most = bounds.per_address
        self._requests: Counter[str] = Counter()

    @contextmanager
    def enter(self, scope: Scope) -> Iterator[None]:
        """Goes around a request. `scope["client"]` is the client from here on. Unavailable."""
        client = scope.get("client")
        found = None
        if client is not None and self._proxies.trusts(client[0]):
            found = self._proxies.find_client(scope["headers"])
        if found is None:
            yield
            return
        scope["client"] = (found, 0)
        holder = name_holder(found)
        if self._requests[holder] >= self._most:
            raise Unavailable("Too many requests at once.")
        self._requests[holder] += 1
        try:
            yield
        finally:
            self._requests[holder] -= 1
            if not self._requests[holder]:
                del self._requests[holder]


def name_client(scope: Scope) -> str:
    """What the limits of this request's client are kept under."""
    client = scope.get("client")
    return name_holder(client[0]) if client else ""
