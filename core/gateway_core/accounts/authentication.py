"""Who calls, by the rules of contract §0.10 and §9.2, and what restricts the key.

Keys, accounts and users come from watch-fed tables. While a watch is silent they are read by name,
and when that fails what is cached goes on for five minutes.
"""

import asyncio
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gateway_core.accounts.guardrails import (
    Guardrail,
    Policies,
    Policy,
    build_policy,
    read_guardrail,
    select_guardrails,
)
from gateway_core.accounts.records import AccountRecord, KeyRecord, TokenRecord, UserRecord
from gateway_core.accounts.roles import Act, act_as, is_confined, refuse_key
from gateway_core.api.account import Role
from gateway_core.api.errors import Forbidden, MissingKey, Unauthenticated, Unavailable
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import digest, parse_key
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import list_all
from gateway_core.kube.read_through import QUIET_SECONDS, ReadThrough, SharedReads

T = TypeVar("T")
Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, and values, as ASGI has them."""

MOST_SILENCE_SECONDS = 300.0
MOST_KNOWN = 10_000
"""Credentials whose principal is kept; each takes some 200 bytes."""
_DUMMY_DIGEST = "0" * 64
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: the account that pays, the key, and the role it acts with now.

    `creator` is the user who created the key; None for a declared one.
    """

    account: AccountRecord
    key: KeyRecord
    role: Role
    creator: UserRecord | None

    @property
    def confined_to(self) -> str | None:
        """The user whose own keys alone the caller governs; None where it governs all or none."""
        return self.creator.name if self.creator and is_confined(self.role) else None


_Found = tuple[KeyRecord | None, AccountRecord | None, UserRecord | None]
_Known = tuple[Principal, int, float, float]
"""A principal; the count of changes before it was looked up; the monotonic time until which the
tables are current; the Unix time at which its key or token expires."""


class Changes:
    """Invalidation counter of tables: a memo is valid while the count is unchanged."""

    __slots__ = ("count",)

    def __init__(self, *tables: Cache[Any]) -> None:
        self.count = 0
        for table in tables:
            table.subscribe(self._note)

    def _note(self, _name: str) -> None:
        self.count += 1


class KeyIndex:
    """Keys by the ids of their tokens; follows the table of keys."""

    def __init__(self, table: Cache[KeyRecord]) -> None:
        self._table = table
        self._by_token: dict[str, dict[str, TokenRecord]] = {}
        self._tokens_of: dict[str, tuple[str, ...]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def find(self, token_id: str) -> Iterable[tuple[str, TokenRecord]]:
        """Return names of the keys with a token of this id, and the token. Mostly one or none."""
        return self._by_token.get(token_id, {}).items()

    def _follow(self, name: str) -> None:
        for token_id in self._tokens_of.pop(name, ()):
            names = self._by_token[token_id]
            del names[name]
            if not names:
                del self._by_token[token_id]
        record = self._table.get(name)
        if record is not None:
            self._tokens_of[name] = tuple(token.id for token in record.tokens)
            for token in record.tokens:
                self._by_token.setdefault(token.id, {})[name] = token


class Authenticator:
    """Resolves a request's credentials to a principal."""

    def __init__(
        self,
        keys: ReadThrough[KeyRecord],
        accounts: ReadThrough[AccountRecord],
        users: ReadThrough[UserRecord],
        peppers: Mapping[int, bytes],
        *,
        note_use: Callable[[str, str], None] = lambda _account, _key: None,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        """`note_use` is called with account and key of each authenticated request."""
        self._note_use = note_use
        self._keys = keys
        self._accounts = accounts
        self._users = users
        self._index = KeyIndex(keys.table)
        self._peppers = peppers
        self._dummy_pepper = peppers[max(peppers)]
        self._clock = clock
        self._changes = Changes(keys.table, accounts.table, users.table)
        self._known: dict[tuple[Act, bytes], _Known] = {}
        """By act and keyed digest of the credential: plaintexts are not kept."""
        self._digest_key = os.urandom(32)

    async def authenticate(self, headers: Headers, act: Act = Act.READ) -> Principal:
        """Return the caller, if the credential is good and allows `act`.

        Raises:
            Unauthenticated: none, malformed, unknown, disabled, revoked, expired, or suspended; or
                its creator is suspended, removed, or no member any more.
            Forbidden: a good credential of the other class, or of too low a role.
            Unavailable: keys cannot be read, and the known ones are too old.
        """
        credential = read_bearer(headers)
        memo = act, hashlib.blake2b(credential, key=self._digest_key, digest_size=16).digest()
        known = self._known.get(memo)
        if known is not None:
            caller, count, until, expires_at = known
            if (
                count == self._changes.count
                and time.monotonic() < until
                and self._clock() < expires_at
            ):
                self._note_use(caller.key.account, caller.key.name)
                return caller
            del self._known[memo]
        plaintext = credential.decode("latin-1")
        parsed = parse_key(plaintext)
        if parsed is None:
            raise _invalid()
        keys, accounts, users = self._keys, self._accounts, self._users
        if not (keys.table.synced and accounts.table.synced and users.table.synced):
            raise Unavailable("The gateway is starting.", retry_after=1)
        count = self._changes.count
        name = self._match(parsed.id, plaintext)
        if keys.is_quiet or accounts.is_quiet or users.is_quiet:
            key, account, user = await self._read_through(name)
            if self._match(parsed.id, plaintext) != name:
                raise _invalid()
        else:
            key, account, user = self._look_up(name)
        if key is None or not self._is_open(key, parsed.id):
            raise _invalid()
        if account is None or account.suspended:
            raise _invalid()
        role = _find_role(key, user)
        if role is None:
            raise _invalid()
        self._note_use(key.account, key.name)
        caller = Principal(account, key, role, user)
        check_act(act, caller)
        expires_at = min(token.expires_at for token in key.tokens if token.id == parsed.id)
        silence = max(each.table.staleness for each in (keys, accounts, users))
        if silence < QUIET_SECONDS:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            until = time.monotonic() + QUIET_SECONDS - silence
            expires_at = min(key.expires_at, expires_at)
            self._known[memo] = caller, count, until, expires_at
        return caller

    def check_same(self, account: AccountRecord) -> None:
        """Raise Unauthenticated where another account has the name of an authenticated one by now.

        For calls whose body may take longer than the removal of their account.
        """
        current = self._accounts.table.get(account.name)
        if current is not None and current.id != account.id:
            raise _invalid()

    def _look_up(self, name: str | None) -> _Found:
        """Return the key of this name, its account and its creator, as the tables have them."""
        key = None if name is None else self._keys.table.get(name)
        if key is None:
            return None, None, None
        creator = None if key.creator is None else self._users.table.get(key.creator)
        return key, self._accounts.table.get(key.account), creator

    async def _read_through(self, name: str | None) -> _Found:
        """Return the same, read by name where a watch is silent."""
        known, _, _ = self._look_up(name)
        payer, creator = (known.account, known.creator) if known else (None, None)
        finding_key = find_current(self._keys, name)
        finding_account = find_current(self._accounts, payer)
        key, account = await asyncio.gather(finding_key, finding_account)
        user: UserRecord | None = None
        if creator is not None:
            user = await find_current(self._users, creator)
        if key is not None and (key.account, key.creator) != (payer, creator):
            raise Unavailable("Credentials cannot be checked now.", retry_after=1)
        return key, account, user

    def _match(self, token_id: str, plaintext: str) -> str | None:
        """Return the name of the key of `plaintext`; the same work if there is none."""
        found = None
        tried = False
        for name, token in self._index.find(token_id):
            tried = True
            if self._is_match(token, plaintext):
                found = name
        if not tried:
            hmac.compare_digest(digest(plaintext, self._dummy_pepper), _DUMMY_DIGEST)
        return found

    def _is_match(self, token: TokenRecord, plaintext: str) -> bool:
        pepper = self._peppers.get(token.pepper_version)
        if pepper is None:
            _log.warning("a key needs a pepper that is not mounted", version=token.pepper_version)
        computed = digest(plaintext, pepper or self._dummy_pepper)
        return hmac.compare_digest(computed, token.digest) and pepper is not None

    def _is_open(self, key: KeyRecord, token_id: str) -> bool:
        """Return whether the key is usable with this token now."""
        now = self._clock()
        return (
            key.usable
            and key.expires_at > now
            and any(token.id == token_id and token.expires_at > now for token in key.tokens)
        )


class PolicyView:
    """Policies of keys: from informers, or read while the watch of guardrails is silent.

    Which guardrails are assigned to a key is in the guardrails, so those of the caller's account
    are listed. If that fails, the known ones hold for five minutes, as keys do.
    """

    def __init__(
        self,
        keys: Cache[KeyRecord],
        guardrails: Cache[Guardrail],
        kube: KubernetesClient,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = guardrails
        self._policies = Policies(keys, guardrails, lambda guardrail: guardrail)
        # after its own subscriptions, so that what it finds is as new as the count
        self._changes = Changes(keys, guardrails)
        self._known: dict[str, tuple[KeyRecord, Policy, int]] = {}
        self._kube = kube
        self._lists = SharedReads(self._list, clock=clock)

    async def find(self, key: KeyRecord) -> Policy:
        """Return the policy of a key that was found just now.

        Raises Unavailable if guardrails cannot be read and the known ones are too old.
        """
        is_quiet = self._table.staleness > QUIET_SECONDS
        known = self._known.get(key.name)
        if known is not None and not is_quiet:
            known_key, policy, count = known
            if known_key is key and count == self._changes.count:
                return policy
        if not self._table.synced:
            raise Unavailable("The gateway is starting.", retry_after=1)
        if is_quiet:
            listing = self._lists.find(key.account)
            listed = None if listing is None else await asyncio.shield(listing)
            if listed is not None:
                chosen = select_guardrails(listed, account=key.account, key_name=key.name)
                return build_policy(key.name, key.rules, chosen)
            if self._table.staleness > MOST_SILENCE_SECONDS:
                raise Unavailable("Guardrails cannot be checked now.")
        policy = self._policies.find(key.name, key.account, key.rules)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key.name] = key, policy, self._changes.count
        return policy

    async def _list(self, account: str) -> tuple[Guardrail, ...]:
        found, _ = await list_all(
            self._kube, GatewayGuardrail.plural, field_selector=f"spec.accountName={account}"
        )
        # a finalizer keeps deleted ones until the audit has their rows
        current = (obj for obj in found if "deletionTimestamp" not in obj["metadata"])
        return tuple(map(read_guardrail, current))


def _find_role(key: KeyRecord, creator: UserRecord | None) -> Role | None:
    """Return the role that the key acts with; None if its creator has none."""
    if key.creator is None:
        return act_as(key.key_class, None)
    role = None
    if creator is not None and not creator.suspended:
        role = creator.find_role(key.account)
    return None if role is None else act_as(key.key_class, role)


def check_act(act: Act, caller: Principal) -> None:
    """Raise Forbidden unless the caller's class and role allow `act`."""
    key, role = caller.key, caller.role
    refusal = refuse_key(act, key.key_class, role)
    if refusal == "wrong_credential_class":
        here, needed = "a standard key (sk-…)", "a management key (mk-…)"
        if key.key_class == "Management":
            here, needed = needed, here
        raise Forbidden(f"This operation needs {needed}; the call has {here}.", code=refusal)
    if refusal is not None:
        raise Forbidden(f"The role of this key, {role}, does not allow this.", code=refusal)


async def find_current(fresh: ReadThrough[T], name: str | None) -> T | None:
    """Return the table's entry, read by name while the watch is silent.

    Raises Unavailable where it cannot be read and the table is too old.
    """
    table = fresh.table
    if not fresh.is_quiet:
        return None if name is None else table.get(name)
    if name is not None:
        try:
            return await fresh.read(name)
        except KubernetesUnavailable:
            pass
    if table.staleness > MOST_SILENCE_SECONDS:
        raise Unavailable("Credentials cannot be checked now.")
    return None if name is None else table.get(name)


async def find_confirmed(
    fresh: ReadThrough[T], name: str, is_good: Callable[[T], bool] = lambda _: True
) -> T | None:
    """Return the entry, if it is there and `is_good`; else read it: the table may be behind.

    For names that a verified credential holds: a stranger's must not cause a read each. Raises
    Unavailable where it cannot be read.
    """
    entry = await find_current(fresh, name)
    if entry is not None and is_good(entry):
        return entry
    try:
        entry = await fresh.read(name)
    except KubernetesUnavailable as error:
        raise Unavailable("Credentials cannot be checked now.", retry_after=1) from error
    return entry if entry is not None and is_good(entry) else None


_OTHER_HEADERS = (b"x-goog-api-key", b"x-api-key", b"api-key")
"""Headers in which clients of other services send their key."""


def read_bearer(headers: Headers) -> bytes:
    """Return the key in the one `Authorization` header: scheme in any case, exactly one space."""
    given = [value for name, value in headers if name == b"authorization"]
    if not given:
        names = {name for name, _ in headers}
        raise MissingKey(next((name.decode() for name in _OTHER_HEADERS if name in names), ""))
    if len(given) > 1:
        raise _invalid()
    if given[0][:7].lower() != b"bearer ":
        raise Unauthenticated("Authorization must be: Bearer <key>.")
    return given[0][7:]


def _invalid() -> Unauthenticated:
    """Return the refusal, the same for all: strangers must not learn what is wrong."""
    return Unauthenticated("The API key is not valid.")
