"""Open connections of one port, bounded in total and per address.

A connection that has no request under way is *waiting*: fresh, idle, or with a head that is not
complete. Where a bound is reached the longest waiting one makes room, so a flood of connections
that send nothing keeps no client out. After these the longest one makes room whose request is not
authenticated and whose body has not arrived. Only where there is none is a new one refused.
"""

from collections import OrderedDict
from typing import Protocol

from gateway_apiserver.middleware.clients import ConnectionBounds, Proxies, name_holder


class Connection(Protocol):
    """What the table needs of a connection."""

    def is_authenticated(self) -> bool:
        """Whether the caller of the latest request is known."""
        ...

    def evict(self) -> None:
        """Closes the connection."""
        ...


class _Peer:
    __slots__ = ("open", "receiving", "trusted", "waiting")

    def __init__(self, *, trusted: bool) -> None:
        self.open = 0
        self.trusted = trusted
        self.waiting: OrderedDict[Connection, None] = OrderedDict()
        self.receiving: OrderedDict[Connection, None] = OrderedDict()
        """Those whose request's body has not arrived."""


class ConnectionTable:
    """The connections of one port; `evicted` and `refused` count connections beyond the bounds."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._proxies = Proxies(bounds.trusted_proxies)
        self._peers: dict[str, _Peer] = {}
        self._owners: dict[Connection, str] = {}
        self.evicted = 0
        self.refused = 0
        self.pending_refusals = 0
        """Refused connections that are still open, to be answered with 503."""

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def bounds(self) -> ConnectionBounds:
        """The bounds of this port."""
        return self._bounds

    def admit(self, connection: Connection, host: str) -> bool:
        """Takes a new connection in, as waiting; False where there is no place for it."""
        name = name_holder(host)
        peer = self._peers.get(name)
        if peer is None:
            peer = _Peer(trusted=self._proxies.trusts(host))
        if not peer.trusted and peer.open >= self._bounds.per_address:
            room = self._evict_from(peer)
        elif len(self._owners) >= self._bounds.connections:
            room = self._evict_from_largest()
        else:
            room = True
        if not room:
            self.refused += 1
            return False
        # the eviction may have ended this peer's last connection
        peer = self._peers.setdefault(name, peer)
        peer.open += 1
        peer.waiting[connection] = None
        self._owners[connection] = name
        return True

    def set_receiving(self, connection: Connection) -> None:
        """A request has begun on it, whose body has not arrived."""
        name = self._owners.get(connection)
        if name is not None:
            self._peers[name].waiting.pop(connection, None)
            self._peers[name].receiving[connection] = None

    def set_busy(self, connection: Connection) -> None:
        """The request's body has arrived."""
        name = self._owners.get(connection)
        if name is not None:
            self._peers[name].receiving.pop(connection, None)

    def set_waiting(self, connection: Connection) -> None:
        """Its last request has ended."""
        name = self._owners.get(connection)
        if name is not None:
            self._peers[name].receiving.pop(connection, None)
            self._peers[name].waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """It has ended. Nothing happens where it is not in the table."""
        name = self._owners.pop(connection, None)
        if name is None:
            return
        peer = self._peers[name]
        peer.waiting.pop(connection, None)
        peer.receiving.pop(connection, None)
        peer.open -= 1
        if not peer.open:
            del self._peers[name]

    def _evict_from(self, peer: _Peer) -> bool:
        oldest = next(iter(peer.waiting), None) or next(
            (each for each in peer.receiving if not each.is_authenticated()), None
        )
        if oldest is None:
            return False
        self.remove(oldest)
        self.evicted += 1
        oldest.evict()
        return True

    def _evict_from_largest(self) -> bool:
        """Evict from the address with the most connections that has one to evict."""
        waiting = [peer for peer in self._peers.values() if peer.waiting]
        receiving = (peer for peer in self._peers.values() if peer.receiving)
        candidates = waiting or receiving
        return any(map(self._evict_from, sorted(candidates, key=lambda peer: -peer.open)))
