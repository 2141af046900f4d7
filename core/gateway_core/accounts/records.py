"""Projections of keys, accounts, users and tasks that the API keeps in memory.

A process holds one entry for each live object, so entries are small.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, Field

from gateway_core.accounts.changes import (
    NO_HISTORY,
    Change,
    History,
    find_writers,
    read_changes,
    read_history,
)
from gateway_core.accounts.guardrails import (
    NO_RULES,
    Rules,
    Shown,
    find_excess,
    read_rules,
    read_shown,
)
from gateway_core.accounts.password_links import IssuedLink, read_link
from gateway_core.api.account import AccountDefaults, Role
from gateway_core.api.errors import Unavailable
from gateway_core.api.key import KeyClass
from gateway_core.api.money import ceil_cents, floor_cents
from gateway_core.billing.counters import Spending
from gateway_core.kube.informer import Cache

_DEFAULTS = AccountDefaults()
SILENT_SECONDS = 20.0
"""Silence of a watch, of several times its heartbeat, after which lists are not shown."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One token of a key. `expires_at` is Unix seconds."""

    id: str
    digest: str
    pepper_version: int
    expires_at: float


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key. `usable` is false once disabled or revoked; `expires_at` is Unix seconds.

    `creator` names the GatewayUser with whose role it acts; None for a declared key. `rules`
    are its own restrictions, beside those of its guardrails. `logs_content`: the request log has
    the prompts and answers of its LLM calls. One that is revoked, or beyond the bounds of contract
    §9.0, has no tokens: it opens nothing, like an unknown one.
    """

    name: str
    account: str
    key_class: KeyClass
    creator: str | None
    usable: bool
    revoked: bool
    expires_at: float
    tokens: tuple[TokenRecord, ...]
    rules: Rules
    display_name: str = ""
    logs_content: bool = False
    shown: Shown | None = None


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account. Ids are integers below 2^53, made of the object's uid; funds are micros.

    `suspended`: it is refused, also because it is being deleted.
    """

    name: str
    id: int
    owner_id: int
    display_name: str
    owner_name: str
    owner_email: str
    paid_micros: int
    bonus_micros: int
    unlimited: bool
    suspended: bool
    requests_per_minute: int
    storage_bytes: int
    history: History = NO_HISTORY

    @property
    def funds(self) -> int:
        """Micro-dollars ever paid in."""
        return self.paid_micros + self.bonus_micros


class Balance(BaseModel):
    """An account's money in whole cents, each figure rounded down, reservations up.

    So the figures may add up to some cents less than what was paid in.
    """

    balance_cents: int = Field(description="Left after charges and open reservations.")
    paid_balance_cents: int = Field(description="What is left of the money paid in.")
    bonus_balance_cents: int = Field(description="What is left of the bonus, which goes first.")
    spent_cents_today: int = Field(description="Charged on this UTC day.")
    spent_cents_total: int = Field(description="Charged ever.")


def split_rest(account: AccountRecord, spending: Spending) -> tuple[int, int]:
    """Return what is left of the money paid in and of the bonus, before reservations."""
    bonus_left = max(0, account.bonus_micros - spending.charged)
    return account.paid_micros - max(0, spending.charged - account.bonus_micros), bonus_left


def work_out_balance(account: AccountRecord, spending: Spending) -> Balance:
    """Return the five figures: bonus is spent first, and only sums are rounded (contract §2.4)."""
    paid_left, bonus_left = split_rest(account, spending)
    return Balance(
        balance_cents=floor_cents(paid_left + bonus_left) - ceil_cents(spending.held),
        paid_balance_cents=floor_cents(paid_left),
        bonus_balance_cents=floor_cents(bonus_left),
        spent_cents_today=floor_cents(spending.charged_today),
        spent_cents_total=floor_cents(spending.charged),
    )


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A person. `id` and `suspended` as an account's; `created_at` is RFC 3339; `roles` are
    (account, role).

    `identity` is issuer and subject of the provider by which they sign in.
    """

    name: str
    id: int
    display_name: str
    email: str
    suspended: bool
    created_at: str
    roles: tuple[tuple[str, Role], ...]
    password_hash: str | None = field(default=None, repr=False)
    password_link: IssuedLink | None = None
    identity: tuple[str, str] | None = None
    changes: tuple[Change, ...] = ()
    """Of roles, and those by other programs."""

    def find_role(self, account: str) -> Role | None:
        """Return what they are in the account; None for nothing."""
        return next((role for name, role in self.roles if name == account), None)

    def list_accounts(self) -> frozenset[str]:
        """Return the accounts in which they have a role, or had one when it was changed."""
        roles = (name for name, _ in self.roles)
        return frozenset((*roles, *(row.account for row in self.changes if row.account)))

    def list_changes(self, account: str) -> list[Change]:
        """Return the changes that concern the account.

        What another program has written may be about another account, so of a user of several
        none does.
        """
        is_only_here = self.list_accounts() == {account}
        return [
            row
            for row in self.changes
            if row.account == account or (is_only_here and not row.account)
        ]


def project_key(obj: Mapping[str, Any], *, shows: bool = False) -> KeyRecord:
    """Return the record of a GatewayKey; `shows` adds what pages show, some 500 bytes."""
    spec = obj["spec"]
    is_bounded = find_excess(spec) is None
    opens = is_bounded and not spec.get("revoked")
    tokens = spec.get("tokens") or (obj.get("status") or {}).get("tokens") or ()
    return KeyRecord(
        name=obj["metadata"]["name"],
        account=intern(spec["accountName"]),
        key_class=spec.get("class", "Standard"),
        creator=spec.get("createdBy"),
        usable=opens and not spec.get("disabled"),
        revoked=spec.get("revoked", False),
        expires_at=_expiry(spec),
        tokens=tuple(
            TokenRecord(
                id=token["id"],
                digest=token["digest"],
                pepper_version=token.get("pepperVersion", 1),
                expires_at=_expiry(token),
            )
            for token in tokens
            if opens
        ),
        # of a revoked one only what pages show
        rules=read_rules(spec if opens else {"limit": spec.get("limit")})
        if is_bounded
        else NO_RULES,
        display_name=spec["displayName"],
        logs_content=spec.get("logContent", False),
        shown=read_shown(obj) if shows else None,
    )


def project_account(
    obj: Mapping[str, Any], *, defaults: AccountDefaults = _DEFAULTS
) -> AccountRecord:
    """Return the record of a GatewayAccount, with the limits that hold for it."""
    meta, spec = obj["metadata"], obj["spec"]
    funds = spec.get("funds") or {}
    return AccountRecord(
        name=meta["name"],
        id=_to_integer(meta["uid"]),
        owner_id=_to_integer("owner/" + meta["uid"]),
        display_name=spec["displayName"],
        owner_name=spec["owner"]["name"],
        owner_email=spec["owner"]["email"],
        paid_micros=funds.get("paidMicros", 0),
        bonus_micros=funds.get("bonusMicros", 0),
        unlimited=spec.get("unlimited", False),
        suspended=_is_refused(obj),
        requests_per_minute=defaults.choose_rate(spec.get("requestsPerMinute")),
        storage_bytes=defaults.choose_storage(spec.get("storageBytes")),
        history=read_history(obj),
    )


def project_user(obj: Mapping[str, Any]) -> UserRecord:
    """Return the record of a GatewayUser."""
    meta, spec = obj["metadata"], obj["spec"]
    bound = spec.get("singleSignOn")
    return UserRecord(
        name=meta["name"],
        id=_to_integer(meta["uid"]),
        display_name=spec["displayName"],
        email=spec["email"],
        suspended=_is_refused(obj),
        created_at=meta["creationTimestamp"],
        roles=tuple(
            (intern(entry["accountName"]), entry["role"]) for entry in spec.get("memberships") or ()
        ),
        password_hash=spec.get("passwordHash"),
        password_link=read_link(spec),
        identity=(bound["issuer"], bound["subject"]) if bound else None,
        changes=(*read_changes(obj), *find_writers(obj)),
    )


def _is_refused(obj: Mapping[str, Any]) -> bool:
    """Return whether the account or user is suspended, or its remains are being removed."""
    return "deletionTimestamp" in obj["metadata"] or obj["spec"].get("suspended", False)


def _expiry(part: Mapping[str, Any]) -> float:
    text = part.get("expirationTime")
    return datetime.fromisoformat(text).timestamp() if text else float("inf")


def _to_integer(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") >> 3


class _OfAccount(Protocol):
    @property
    def account(self) -> str: ...


E = TypeVar("E", bound=_OfAccount)


class AccountIndex(Generic[E]):
    """Entries of a table by account; follows the table. `noun` names several of them."""

    def __init__(self, table: Cache[E], noun: str) -> None:
        self._table = table
        self._noun = noun
        self._names: dict[str, set[str]] = {}
        self._account_of: dict[str, str] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def find(self, account: str) -> list[E]:
        """Return those of the account, in no order."""
        entries = map(self._table.get, self._names.get(account, ()))
        return [entry for entry in entries if entry is not None]

    def list_names(self, account: str) -> list[str]:
        """Return names of the account's entries, in no order."""
        return [*self._names.get(account, ())]

    def get(self, account: str, name: str) -> E | None:
        """Return the account's entry of this name; None without one."""
        return self._table.get(name) if self._account_of.get(name) == account else None

    def find_current(self, account: str) -> list[E]:
        """As `find`; Unavailable where the table may be behind by more than a watch's delay."""
        if self._table.staleness > SILENT_SECONDS:
            raise Unavailable(f"{self._noun} cannot be read now.", retry_after=1)
        return self.find(account)

    def _follow(self, name: str) -> None:
        entry, before = self._table.get(name), self._account_of.pop(name, None)
        if before is not None:
            names = self._names[before]
            names.discard(name)
            if not names:
                del self._names[before]
        if entry is not None:
            self._account_of[name] = entry.account
            self._names.setdefault(entry.account, set()).add(name)


class OwnerIndex:
    """Owners by account; follows the table of users."""

    def __init__(self, table: Cache[UserRecord]) -> None:
        self._table = table
        self._owners: dict[str, set[str]] = {}
        self._accounts_of: dict[str, tuple[str, ...]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def find(self, account: str) -> UserRecord | None:
        """Return the oldest user who owns the account now; None without an owner."""
        found = [self._table.get(name) for name in self._owners.get(account, ())]
        owners = [owner for owner in found if owner is not None]
        return min(owners, key=lambda owner: (owner.created_at, owner.name), default=None)

    def _follow(self, name: str) -> None:
        for account in self._accounts_of.pop(name, ()):
            names = self._owners[account]
            names.discard(name)
            if not names:
                del self._owners[account]
        record = self._table.get(name)
        owned = tuple(a for a, role in record.roles if role == "owner") if record else ()
        if owned:
            self._accounts_of[name] = owned
        for account in owned:
            self._owners.setdefault(account, set()).add(name)
