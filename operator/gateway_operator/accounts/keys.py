"""Readiness of keys, and the tokens of those that the operator mints."""

from collections.abc import Callable, Iterable
from datetime import datetime

from gateway_core.accounts.guardrails import find_excess, shorten
from gateway_core.api.account import GatewayAccount, GatewayUser, Role
from gateway_core.api.conditions import Reason
from gateway_core.api.key import GatewayKey
from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_operator.accounts.accounts import check_account
from gateway_operator.accounts.declaredkeys import DeclaredKeys
from gateway_operator.accounts.readiness import Finding, Ref, refer

EXPIRY_MARGIN_SECONDS = 0.5


def project_key(obj: Object) -> GatewayKey:
    """The key of an object, without fields that the operator does not read.

    One that is revoked, or beyond the bounds of contract §9.0, has no lists: it authorizes nothing.
    """
    excess = find_excess(obj["spec"])
    keep = excess is None and not obj["spec"].get("revoked")
    return GatewayKey.read(shorten(obj, keep=keep), excess)


class Keys:
    """The same rules as the API's, which answers 401 to a key that is not ready here."""

    kind = GatewayKey
    contested = ""

    def __init__(
        self,
        table: Cache[GatewayKey],
        accounts: Cache[GatewayAccount],
        users: Cache[GatewayUser],
        declared: DeclaredKeys,
        now: Callable[[], datetime],
    ) -> None:
        self.table = table
        self._accounts = accounts
        self._users = users
        self._declared = declared
        self._now = now
        table.subscribe(self._notice)

    def list_references(self, obj: GatewayKey) -> Iterable[Ref]:
        """Its account and the user who made it."""
        spec = obj.spec
        creator = [refer(GatewayUser, spec.created_by)] if spec.created_by else []
        return [refer(GatewayAccount, spec.account_name), *creator]

    async def check(self, obj: GatewayKey) -> Finding:
        """Check the key, and reconcile the Secret and tokens of a declared one."""
        made = Finding()
        if obj.spec.secret_name is not None:
            made = await self._declared.follow(obj)
        problem = (
            check_key(obj, self._now())
            or made.problem
            or check_account(self._accounts.get(obj.spec.account_name), obj.spec.account_name)
            or check_creator(obj, self._users)
        )
        waits = [wait for wait in (made.again_in, self._find_expiry(obj)) if wait is not None]
        return Finding(problem, made.status, min(waits, default=None))

    def _notice(self, name: str) -> None:
        if self.table.get(name) is None:
            self._declared.forget(name)

    def _find_expiry(self, obj: GatewayKey) -> float | None:
        """Seconds until the key expires; None if it never does, or already has."""
        if obj.spec.expiration_time is None:
            return None
        left = (parse_time(obj.spec.expiration_time) - self._now()).total_seconds()
        return left + EXPIRY_MARGIN_SECONDS if left > 0 else None


def check_key(key: GatewayKey, now: datetime) -> Problem | None:
    """Why the key itself authorizes nothing at `now` (aware)."""
    spec = key.spec
    if spec.revoked:
        return Problem(Reason.REVOKED, "the key is revoked")
    if key.excess is not None:
        return Problem(Reason.TOO_LARGE, f"{key.excess}: the key opens nothing until it has less")
    if spec.disabled:
        return Problem(Reason.DISABLED, "the key is disabled by spec.disabled")
    if spec.expiration_time and parse_time(spec.expiration_time) <= now:
        return Problem(Reason.EXPIRED, "spec.expirationTime is over")
    return None


def check_creator(key: GatewayKey, users: Cache[GatewayUser]) -> Problem | None:
    """Why the key authorizes nothing, where that is because of the user who made it."""
    name, account = key.spec.created_by, key.spec.account_name
    if name is None:
        return None
    user = users.get(name)
    if user is None:
        return Problem(Reason.USER_NOT_FOUND, f"no GatewayUser is called {name}")
    if user.spec.suspended:
        return Problem(Reason.SUSPENDED, f"user {name}, who made the key, is suspended")
    if find_role(user, account) is None:
        text = f"user {name}, who made the key, is no member of account {account}"
        return Problem(Reason.NOT_A_MEMBER, text)
    return None


def find_role(user: GatewayUser, account: str) -> Role | None:
    """The user's role in the account; None without one."""
    memberships = user.spec.memberships or ()
    return next((part.role for part in memberships if part.account_name == account), None)
