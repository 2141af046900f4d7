"""The rules of readiness of accounts, users, keys and guardrails."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from gateway_core.accounts.guardrails import find_excess, shorten
from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser, Role
from gateway_core.api.conditions import Reason
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_core.providers.offers import FIELDS, Offers
from gateway_operator.accounts.declaredkeys import DeclaredKeys
from gateway_operator.accounts.memberships import Memberships
from gateway_operator.accounts.readiness import Finding, Ref, name_offered, refer
from gateway_operator.accounts.removal import RemainsRemoval


@dataclass(eq=False)
class Accounts:
    """An account is ready unless it is suspended or deleted."""

    kind = GatewayAccount
    contested = ""

    table: Cache[GatewayAccount]
    defaults: AccountDefaults
    removal: RemainsRemoval

    def list_references(self, obj: GatewayAccount) -> Iterable[Ref]:
        """Return nothing: an account depends on no other object."""
        return ()

    async def check(self, obj: GatewayAccount) -> Finding:
        """Check whether it is suspended; and the limits in effect, where its status differs.

        Of a deleted one remove what belongs to it.
        """
        if obj.metadata.deletion_timestamp is not None:
            return await self.removal.remove(obj)
        await self.removal.guard(obj)
        rate = self.defaults.choose_rate(obj.spec.requests_per_minute)
        storage = self.defaults.choose_storage(obj.spec.storage_bytes)
        shown = obj.status.requests_per_minute, obj.status.storage_bytes
        limits = {"requestsPerMinute": rate, "storageBytes": storage}
        return Finding(
            check_account(obj, obj.metadata.name), {} if shown == (rate, storage) else limits
        )


@dataclass(eq=False)
class Users:
    """A user is ready if all accounts of the memberships exist."""

    kind = GatewayUser
    contested = ""

    table: Cache[GatewayUser]
    accounts: Cache[GatewayAccount]
    removal: RemainsRemoval
    memberships: Memberships

    def list_references(self, obj: GatewayUser) -> Iterable[Ref]:
        """Return the accounts of the memberships."""
        return [refer(GatewayAccount, part.account_name) for part in obj.spec.memberships or ()]

    async def check(self, obj: GatewayUser) -> Finding:
        """Check whether it is suspended, or a member of a missing account.

        Of a deleted one remove what belongs to it.
        """
        if obj.metadata.deletion_timestamp is not None:
            return await self.removal.remove(obj)
        await self.removal.guard(obj)
        status = await self.memberships.compare(obj)
        if obj.spec.suspended:
            text = "the user is suspended by spec.suspended"
            return Finding(Problem(Reason.SUSPENDED, text), status)
        for part in obj.spec.memberships or ():
            if self.accounts.get(part.account_name) is None:
                return Finding(find_no_account(part.account_name), status)
        return Finding(status=status)


def check_account(account: GatewayAccount | None, name: str) -> Problem | None:
    """Return the problem of the account of this name, None for none."""
    if account is None:
        return find_no_account(name)
    if account.metadata.deletion_timestamp is not None:
        return Problem(Reason.REMOVING, f"account {name} is being removed")
    if account.spec.suspended:
        return Problem(Reason.SUSPENDED, "the account is suspended by spec.suspended")
    return None


def find_no_account(name: str) -> Problem:
    """Return the problem of an object that names a missing account."""
    return Problem(Reason.ACCOUNT_NOT_FOUND, f"no GatewayAccount is called {name}")


EXPIRY_MARGIN_SECONDS = 0.5
RECHECK_SECONDS = 600.0
"""Between two looks at names that nothing has, where no reference tells of their coming."""
MOST_REFERENCES = 16
"""Entries of an object's lists that are followed: all keys' are in memory."""


def check_names(obj: GatewayKey | GatewayGuardrail, offers: Offers | None) -> Problem | None:
    """Return what an admin should know of the names in the object's lists; None for nothing."""
    if offers is None:
        return None
    lists = obj.spec.model_dump(by_alias=True, include={*FIELDS})
    unknown = offers.current.find_unknown(lists)
    return Problem(Reason.NAME_NOT_FOUND, f"ready, but {unknown}") if unknown else None


def list_names(obj: GatewayKey | GatewayGuardrail) -> list[Ref]:
    """Return the models and services that the object's lists name, as far as they are followed."""
    spec = obj.spec.model_dump(include={*FIELDS})
    refs = [
        name_offered(field.split("_")[1], entry)
        for field in sorted(spec)
        for entry in spec[field] or ()
    ]
    return refs[:MOST_REFERENCES]


def project_key(obj: Object) -> GatewayKey:
    """Return the key of an object, without fields that the operator does not read.

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
        offers: Offers | None = None,
    ) -> None:
        self.table = table
        self._accounts = accounts
        self._users = users
        self._declared = declared
        self._now = now
        self._offers = offers
        table.subscribe(self._notice)

    def list_references(self, obj: GatewayKey) -> Iterable[Ref]:
        """Return its account, the user who made it, and what its lists name."""
        spec = obj.spec
        creator = [refer(GatewayUser, spec.created_by)] if spec.created_by else []
        return [refer(GatewayAccount, spec.account_name), *creator, *list_names(obj)]

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
        note = None if problem else check_names(obj, self._offers)
        recheck = None if note is None else RECHECK_SECONDS
        waits = (made.again_in, self._find_expiry(obj), recheck)
        again_in = min((wait for wait in waits if wait is not None), default=None)
        return Finding(problem, made.status, again_in, note)

    def _notice(self, name: str) -> None:
        if self.table.get(name) is None:
            self._declared.forget(name)

    def _find_expiry(self, obj: GatewayKey) -> float | None:
        """Return seconds until the key expires; None if it never does, or already has."""
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
    if user.metadata.deletion_timestamp is not None:
        return Problem(Reason.REMOVING, f"user {name}, who made the key, is being removed")
    if user.spec.suspended:
        return Problem(Reason.SUSPENDED, f"user {name}, who made the key, is suspended")
    if find_role(user, account) is None:
        text = f"user {name}, who made the key, is no member of account {account}"
        return Problem(Reason.NOT_A_MEMBER, text)
    return None


def find_role(user: GatewayUser, account: str) -> Role | None:
    """Return the user's role in the account; None without one."""
    memberships = user.spec.memberships or ()
    return next((part.role for part in memberships if part.account_name == account), None)


def project_guardrail(obj: Object) -> GatewayGuardrail:
    """Return the guardrail of an object, without fields that the operator does not read.

    One beyond the bounds of contract §9.0 allows nothing, as in the API; nor does one that today's
    schema refuses: if it were dropped, its keys would be unrestricted.
    """
    excess = find_excess(obj["spec"])
    short = shorten(obj, keep=excess is None)
    if excess is None:
        try:
            return GatewayGuardrail.read(short)
        except ValidationError as error:
            excess = f"{error.error_count()} fields are invalid"
            names = ("accountName", "displayName", "keyNames")
            spec = {name: obj["spec"][name] for name in names if name in obj["spec"]}
            short = {**short, "spec": spec, "status": {}}
    short["spec"]["allowedModels"] = []
    return GatewayGuardrail.read(short, excess)


class Guardrails:
    """Guardrails compete for keys: of too many for a key the newest one is not ready."""

    kind = GatewayGuardrail
    contested = GatewayKey.plural

    def __init__(
        self,
        table: Cache[GatewayGuardrail],
        accounts: Cache[GatewayAccount],
        keys: Cache[GatewayKey],
        offers: Offers | None = None,
    ) -> None:
        self.table = table
        self._accounts = accounts
        self._keys = keys
        self._offers = offers
        self._names_of: dict[str, set[str]] = {}
        self._keys_of: dict[str, tuple[str, ...]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def list_references(self, obj: GatewayGuardrail) -> Iterable[Ref]:
        """Return its account, its keys, and what its lists name."""
        keys = [refer(GatewayKey, name) for name in obj.spec.key_names or ()]
        return [refer(GatewayAccount, obj.spec.account_name), *keys, *list_names(obj)]

    async def check(self, obj: GatewayGuardrail) -> Finding:
        """Check its account, its keys, and that no key has too many guardrails."""
        if obj.excess is not None:
            text = f"{obj.excess}: its keys may call nothing until it has less"
            return Finding(Problem(Reason.TOO_LARGE, text))
        account = obj.spec.account_name
        problem = check_account(self._accounts.get(account), account)
        names = obj.spec.key_names or ()
        problem = problem or next(filter(None, (self._check_place(obj, n) for n in names)), None)
        problem = problem or next(filter(None, (self._check_key(obj, n) for n in names)), None)
        note = None if problem else check_names(obj, self._offers)
        return Finding(problem, again_in=None if note is None else RECHECK_SECONDS, note=note)

    def _check_place(self, obj: GatewayGuardrail, key: str) -> Problem | None:
        found = [self.table.get(name) for name in self._names_of.get(key, ())]
        before = [
            other
            for other in found
            if other is not None
            and other.spec.account_name == obj.spec.account_name
            and _rank(other) < _rank(obj)
        ]
        if len(before) < MOST_GUARDRAILS:
            return None
        text = f"{key} has {MOST_GUARDRAILS} guardrails without this one: its calls are refused"
        return Problem(Reason.TOO_MANY_GUARDRAILS, text)

    def _check_key(self, obj: GatewayGuardrail, key: str) -> Problem | None:
        found = self._keys.get(key)
        if found is not None and found.spec.account_name == obj.spec.account_name:
            return None
        text = f"account {obj.spec.account_name} has no GatewayKey {key}; it holds for the others"
        return Problem(Reason.KEY_NOT_FOUND, text)

    def _follow(self, name: str) -> None:
        for key in self._keys_of.pop(name, ()):
            names = self._names_of[key]
            names.discard(name)
            if not names:
                del self._names_of[key]
        obj = self.table.get(name)
        if obj is not None:
            self._keys_of[name] = tuple(dict.fromkeys(obj.spec.key_names or ()))
            for key in self._keys_of[name]:
                self._names_of.setdefault(key, set()).add(name)


def _rank(obj: GatewayGuardrail) -> tuple[str, str]:
    """Which was made first."""
    return obj.metadata.creation_timestamp or "", obj.metadata.name
