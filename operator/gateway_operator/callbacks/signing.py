"""The keys that sign each account's callbacks, read from its Secrets by reference.

Read anew every half minute, so that a rotation takes effect without a restart. A key is in memory
alone: no log, event, condition or error contains any part of it.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from gateway_core.api.account import AccountSpec, GatewayAccount, SecretKeyRef
from gateway_core.api.times import parse_time
from gateway_core.callbacks.signing import BadSecret, read_secret
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, ObjectNotFound, RequestForbidden
from gateway_core.kube.informer import Cache

READ_SECONDS = 30.0
MISSING_SECONDS = 2.0
"""How long a missing secret is not looked for again."""
UNUSED_SECONDS = 600.0
"""How long an unused key is kept: its account, or the reference, is gone."""


_Place = tuple[str, str]
"""Name of a Secret, and key in it."""


class NoKey(Exception):
    """Nothing can be signed for the account now; the text says what an admin must fix."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A Secret's entry as read at `at` (monotonic seconds): the key, or what is wrong with it."""

    key: bytes | None
    problem: str
    at: float


@dataclass(eq=False)
class Keyring:
    """Signing keys by account."""

    accounts: Cache[GatewayAccount]
    kube: KubernetesClient
    now: Callable[[], datetime]
    _known: dict[_Place, _Read] = field(default_factory=dict, init=False)
    _locks: dict[_Place, asyncio.Lock] = field(default_factory=dict, init=False)

    async def find(self, account: str) -> list[bytes]:
        """Return the account's keys, newest first: two while one is rotated out (contract §11.2).

        Raises:
            NoKey: there is no account, reference, Secret or usable secret.
            KubernetesUnavailable: the Secret was never read, and cannot be now.
        """
        entry = self.accounts.get(account)
        if entry is None:
            raise NoKey(f"GatewayAccount {account} does not exist")
        if entry.spec.webhook_secret_ref is None:
            raise NoKey(f"GatewayAccount {account} has no spec.webhookSecretRef")
        keys = [await self._read(entry.spec.webhook_secret_ref)]
        previous = self._previous(entry.spec)
        if previous is not None:
            # the previous secret may be deleted before its time is over
            with suppress(NoKey):
                keys.append(await self._read(previous))
        return keys

    def _previous(self, spec: AccountSpec) -> SecretKeyRef | None:
        previous = spec.previous_webhook_secret_ref
        if previous is None or parse_time(previous.expiration_time) <= self.now():
            return None
        return previous

    async def _read(self, ref: SecretKeyRef) -> bytes:
        place = ref.name, ref.key
        known = self._find_fresh(place)
        if known is None:
            # very many tasks may be due at once: one of them reads the Secret
            async with self._locks.setdefault(place, asyncio.Lock()):
                known = self._find_fresh(place) or await self._renew(place, ref)
        if known.key is None:
            raise NoKey(known.problem)
        return known.key

    def _find_fresh(self, place: _Place) -> _Read | None:
        known = self._known.get(place)
        if known is None:
            return None
        life = READ_SECONDS if known.key else MISSING_SECONDS
        return known if time.monotonic() - known.at < life else None

    async def _renew(self, place: _Place, ref: SecretKeyRef) -> _Read:
        known = self._known.get(place)
        try:
            key, problem = await self._ask(ref)
        except KubernetesUnavailable:
            if known is None or known.key is None:
                raise
            key, problem = known.key, ""
        self._tidy()
        renewed = self._known[place] = _Read(key, problem, time.monotonic())
        return renewed

    def _tidy(self) -> None:
        """Forget keys that were not used for a while."""
        since = time.monotonic() - UNUSED_SECONDS
        for place in [place for place, known in self._known.items() if known.at < since]:
            del self._known[place]
            self._locks.pop(place, None)

    async def _ask(self, ref: SecretKeyRef) -> tuple[bytes | None, str]:
        try:
            data = await self.kube.read_secret(ref.name)
        except ObjectNotFound:
            return None, f"there is no Secret {ref.name}"
        except RequestForbidden:
            return None, (
                f"RBAC lacks get of Secret {ref.name}: name it in the chart's value"
                " operator.secretNames, or set operator.readAnySecret"
            )
        value = data.get(ref.key)
        if not value:
            return None, f"Secret {ref.name} must hold a value for key {ref.key}"
        try:
            return read_secret(value.decode(errors="replace")), ""
        except BadSecret as error:
            return None, f"key {ref.key} of Secret {ref.name} {error}"


class AwaitingSecret:
    """Tasks that wait until their account has a secret, by account.

    A tenant without a secret can have very many of them. The first of each account looks for it,
    again when the account changes, and then all others of the account are woken by `wake`.
    """

    def __init__(self, accounts: Cache[GatewayAccount], wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._waiting: dict[str, dict[str, None]] = {}
        self._accounts: dict[str, str] = {}
        accounts.subscribe(self._notice)

    def join(self, name: str, account: str) -> bool:
        """Note that the task waits; whether it is the one to look."""
        names = self._waiting.setdefault(account, {})
        names[name] = None
        self._accounts[name] = account
        return next(iter(names)) == name

    def leave(self, name: str) -> None:
        """Note that the task no longer waits; another one looks in its place."""
        account = self._accounts.pop(name, None)
        if account is None:
            return
        names = self._waiting[account]
        looked = next(iter(names)) == name
        del names[name]
        if not names:
            del self._waiting[account]
        elif looked:
            self._wake(next(iter(names)))

    def release(self, account: str) -> None:
        """Wake all tasks of an account, since it has a secret."""
        for name in self._waiting.pop(account, ()):
            del self._accounts[name]
            self._wake(name)

    def _notice(self, account: str) -> None:
        names = self._waiting.get(account)
        if names:
            self._wake(next(iter(names)))
