"""Projections of clients and grants that a process keeps in memory, and indexes of grants."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from sys import intern
from typing import Any

from gateway_core.accounts.changes import Change
from gateway_core.api.oauth import AuthMethod
from gateway_core.api.times import format_time, parse_time
from gateway_core.kube.informer import Cache
from gateway_core.oauth.redirects import is_redirect_uri


@dataclass(frozen=True, slots=True)
class StoredToken:
    """The digest of a token. `expires_at` is Unix seconds."""

    generation: int
    digest: str
    pepper_version: int
    expires_at: float
    scopes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """A grant. Times are Unix seconds; `last_used_at` is from the operator's copy, 0 for never.

    `refreshed_at` is when the valid refresh token was issued; 0 where an older release did it.
    """

    name: str
    user: str
    account: str
    client_id: str
    client_name: str
    redirect_host: str
    scopes: frozenset[str]
    resource: str
    created_at: str
    last_used_at: float
    expires_at: float
    refreshed_at: float
    refresh: StoredToken
    access: tuple[StoredToken, ...]


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client. `id` is what it calls itself by; `secret` is a digest and its pepper's version.

    `created_at` is Unix seconds. `dynamic` is whether it registered itself; `authorized_by` the
    first user who approved it.
    """

    id: str
    name: str
    redirect_uris: tuple[str, ...]
    auth_method: AuthMethod = "none"
    secret: tuple[str, int] | None = None
    scopes: frozenset[str] | None = None
    authorized: bool = False
    authorized_by: str | None = None
    dynamic: bool = False
    created_at: float = 0.0


def project_grant(obj: Mapping[str, Any]) -> GrantRecord | None:
    """Return the record of a GatewayGrant.

    Return None of one that is being deleted: it gives no access.
    """
    return None if "deletionTimestamp" in obj["metadata"] else read_grant(obj)


def read_grant(obj: Mapping[str, Any]) -> GrantRecord:
    """Return the record of a GatewayGrant, also of one that is being deleted."""
    meta, spec = obj["metadata"], obj["spec"]
    used = (obj.get("status") or {}).get("lastUsedTime")
    return GrantRecord(
        name=meta["name"],
        user=intern(spec["userName"]),
        account=intern(spec["accountName"]),
        client_id=intern(spec["clientId"]),
        client_name=intern(spec["clientName"]),
        redirect_host=intern(spec["redirectHost"]),
        scopes=frozenset(spec["scopes"]),
        resource=intern(spec["resource"]),
        created_at=meta["creationTimestamp"],
        last_used_at=parse_time(used).timestamp() if used else 0.0,
        expires_at=parse_time(spec["expirationTime"]).timestamp(),
        refreshed_at=parse_time(spec["refreshToken"].get("issuedTime")).timestamp(),
        refresh=_read_token(spec["refreshToken"]),
        access=tuple(map(_read_token, spec.get("accessTokens") or ())),
    )


def list_grant_changes(grant: GrantRecord, used_at: float = 0.0) -> list[Change]:
    """Return the rows that the audit has of a grant while it lasts.

    `used_at` is the last use that the counters know, in Unix seconds.
    """
    rows = [Change(grant.created_at, f"user/{grant.user}", "access given")]
    if latest := max(grant.last_used_at, used_at):
        at = format_time(datetime.fromtimestamp(int(latest), UTC))
        rows.append(Change(at, f"application/{grant.client_name}", "access last used"))
    return rows


def project_client(obj: Mapping[str, Any]) -> ClientRecord | None:
    """Return the record of a GatewayOAuthClient; None of one that is being deleted."""
    spec = obj["spec"]
    if "deletionTimestamp" in obj["metadata"]:
        return None
    secret, scopes = spec.get("secret"), spec.get("scopes")
    return ClientRecord(
        id=obj["metadata"]["name"].replace("-", "_", 1),
        name=spec["clientName"],
        # an admin may have declared others
        redirect_uris=tuple(filter(is_redirect_uri, spec["redirectUris"])),
        auth_method=spec.get("tokenEndpointAuthMethod", "none"),
        secret=(secret["digest"], secret.get("pepperVersion", 1)) if secret else None,
        scopes=None if scopes is None else frozenset(scopes),
        authorized=spec.get("authorized", False),
        authorized_by=spec.get("authorizedBy"),
        dynamic=spec.get("dynamic", False),
        created_at=parse_time(obj["metadata"]["creationTimestamp"]).timestamp(),
    )


def _read_token(token: Mapping[str, Any]) -> StoredToken:
    return StoredToken(
        generation=token.get("generation", 1),
        digest=token["digest"],
        pepper_version=token.get("pepperVersion", 1),
        expires_at=parse_time(token["expirationTime"]).timestamp(),
        scopes=frozenset(token.get("scopes") or ()),
    )


class GrantIndex:
    """Grants by user, account and client; follows the table of grants."""

    def __init__(self, table: Cache[GrantRecord]) -> None:
        self._table = table
        self._names: dict[tuple[str, str], set[str]] = {}
        self._keys_of: dict[str, tuple[tuple[str, str], ...]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def list_of(self, user: str) -> list[GrantRecord]:
        """Return the grants that the user gave, the newest first."""
        return self._list("user", user)

    def list_in(self, account: str) -> list[GrantRecord]:
        """Return the grants to the account, the newest first."""
        return self._list("account", account)

    def list_same(self, user: str, client_id: str, account: str) -> list[GrantRecord]:
        """Return the grants of one user, client and account, the newest first."""
        return [
            grant
            for grant in self.list_of(user)
            if grant.client_id == client_id and grant.account == account
        ]

    def has_client(self, client_id: str) -> bool:
        """Return whether the client has a grant."""
        return ("client", client_id) in self._names

    def _list(self, kind: str, name: str) -> list[GrantRecord]:
        found = map(self._table.get, self._names.get((kind, name), ()))
        grants = [grant for grant in found if grant is not None]
        return sorted(grants, key=lambda grant: (grant.created_at, grant.name), reverse=True)

    def _follow(self, name: str) -> None:
        for key in self._keys_of.pop(name, ()):
            self._names[key].discard(name)
            if not self._names[key]:
                del self._names[key]
        record = self._table.get(name)
        if record is not None:
            keys = (
                ("user", record.user),
                ("account", record.account),
                ("client", record.client_id),
            )
            self._keys_of[name] = keys
            for key in keys:
                self._names.setdefault(key, set()).add(name)
