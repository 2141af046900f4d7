"""The keys that each account's callbacks are signed with, read from its Secrets by reference.

Read anew every half minute, so that a rotation is taken up without a restart. A key is in memory
and nowhere else: no log, event, condition or error has any of it.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from gateway_core.api.account import AccountSpec, GatewayAccount, SecretKeyRef
from gateway_core.api.times import parse_time
from gateway_core.callbacks.signing import BadSecret, read_secret
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, ObjectNotFound, RequestForbidden
from gateway_core.kube.informer import Cache

READ_SECONDS = 30.0
MISSING_SECONDS = 2.0
"""How long a secret that is not there is taken to be absent still."""
UNUSED_SECONDS = 600.0
"""How long a key is kept that nobody asks for: its account, or the reference, is gone."""


_Place = tuple[str, str]
"""Name of a Secret, and key in it."""


class NoKey(Exception):
    """Nothing can be signed for the account now; the text says what an admin must mend."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A Secret's entry as read at `at` (monotonic seconds): the key, or what is wrong with it."""

    key: bytes | None
    problem: str
    at: float


class Keyring:
    """Signing keys by account."""

    def __init__(
        self, accounts: Cache[GatewayAccount], kube: KubernetesClient, now: Callable[[], datetime]
    ) -> None:
        self._accounts = accounts
        self._kube = kube
        self._now = now
        self._known: dict[_Place, _Read] = {}
        self._locks: dict[_Place, asyncio.Lock] = {}

    async def find(self, account: str) -> list[bytes]:
        """The account's keys, newest first: two while one is rotated out (contract §11.2).

        Raises:
            NoKey: there is no account, reference, Secret or usable secret.
            KubernetesUnavailable: the Secret was never read, and cannot be now.
        """
        entry = self._accounts.get(account)
        if entry is None:
            raise NoKey(f"GatewayAccount {account} does not exist")
        if entry.spec.webhook_secret_ref is None:
            raise NoKey(f"GatewayAccount {account} has no spec.webhookSecretRef")
        keys = [await self._read(entry.spec.webhook_secret_ref)]
        previous = self._previous(entry.spec)
        if previous is not None:
            # what is on its way out need not be there any more
            with suppress(NoKey):
                keys.append(await self._read(previous))
        return keys

    def _previous(self, spec: AccountSpec) -> SecretKeyRef | None:
        previous = spec.previous_webhook_secret_ref
        if previous is None or parse_time(previous.expiration_time) <= self._now():
            return None
        return previous

    async def _read(self, ref: SecretKeyRef) -> bytes:
        place = ref.name, ref.key
        known = self._find_fresh(place)
        if known is None:
            # very many may be due at once: one of them asks
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
        """Forgets what nobody has asked for in a while."""
        since = time.monotonic() - UNUSED_SECONDS
        for place in [place for place, known in self._known.items() if known.at < since]:
            del self._known[place]
            self._locks.pop(place, None)

    async def _ask(self, ref: SecretKeyRef) -> tuple[bytes | None, str]:
        try:
            data = await self._kube.read_secret(ref.name)
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
    """Names of waiting tasks by account, the first of which is to look; `wake` has one looked at.

    It is woken as well when its account changes.
    """

    def __init__(self, accounts: Cache[GatewayAccount], wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._waiting: dict[str, dict[str, None]] = {}
        self._accounts: dict[str, str] = {}
        accounts.subscribe(self._notice)

    def join(self, name: str, account: str) -> bool:
        """Takes in that the task waits; whether it is the one to look."""
        names = self._waiting.setdefault(account, {})
        names[name] = None
        self._accounts[name] = account
        return next(iter(names)) == name

    def leave(self, name: str) -> None:
        """Takes in that the task waits no longer; another looks in its place."""
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
        """Wakes all that wait, since the account has a secret."""
        for name in self._waiting.pop(account, ()):
            del self._accounts[name]
            self._wake(name)

    def _notice(self, account: str) -> None:
        names = self._waiting.get(account)
        if names:
            self._wake(next(iter(names)))
