"""Keys declared with `spec.secretName`: minted here, and written into that Secret.

The Secret is written first, then the status: after a kill between the two the key is found in the
Secret and used. The plaintext exists in the Secret alone and, for a moment, in this process.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from gateway_core.accounts.declared_keys import (
    describe_secret,
    is_ahead,
    is_current,
    is_writable,
    plan_status,
    read_plaintext,
)
from gateway_core.api.conditions import Reason
from gateway_core.api.key import GatewayKey, Secret, mint_key
from gateway_core.api.times import parse_time
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    ObjectNotFound,
    RequestForbidden,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.secrets import SecretClient
from gateway_core.providers.catalog import Problem
from gateway_operator.accounts.readiness import Finding
from gateway_operator.context import Failpoints

LOOK_SECONDS = 30.0
"""Between two checks of a Secret: it may have been deleted or damaged."""
MOST_LOOKS_A_SECOND = 10.0
"""With very many keys each is checked less often."""
PENDING_SECONDS = 5.0
MOST_ATTEMPTS = 3

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class DeclaredKeys:
    """Mints and rotates keys, and finds what their status should contain."""

    secrets: SecretClient
    peppers: Mapping[int, bytes]
    failpoints: Failpoints
    now: Callable[[], datetime]
    _due: dict[str, float] = field(default_factory=dict, init=False)

    async def follow(self, key: GatewayKey) -> Finding:
        """Make the Secret hold the key that the spec asks for."""
        name = key.metadata.name
        if key.spec.revoked:
            self._due.pop(name, None)
            return Finding(status={"tokens": None} if key.status.tokens else {})
        if is_current(key, self.now()):
            # a process that starts has checked none: it spreads the checks
            due = self._due.setdefault(name, time.monotonic() + random.random() * self._pause)  # noqa: S311
            if time.monotonic() < due:
                return Finding(again_in=self._find_wait(key, due))
        try:
            status = await self._settle(key)
        except RequestForbidden as error:
            text = (
                f"RBAC lacks get, create or patch of Secret {key.spec.secret_name}: name it in the"
                f" chart's value operator.keySecretNames, or set operator.writeAnySecret ({error})"
            )
            return self._fail(key, Reason.SECRET_FORBIDDEN, text, LOOK_SECONDS)
        except RequestRejected:
            text = f"Secret {key.spec.secret_name} is immutable; delete it"
            return self._fail(key, Reason.SECRET_NOT_WRITABLE, text, LOOK_SECONDS)
        except (KubernetesUnavailable, WriteOutcomeUnknown):
            if key.status.tokens:
                return Finding(again_in=PENDING_SECONDS)
            text = f"Secret {key.spec.secret_name} could not be written yet; it is tried again"
            return self._fail(key, Reason.KEY_PENDING, text, PENDING_SECONDS)
        if status is None:
            text = (
                f"Secret {key.spec.secret_name} is there and was not made for this key; delete it,"
                " or choose another secretName"
            )
            return self._fail(key, Reason.SECRET_NOT_WRITABLE, text, LOOK_SECONDS)
        due = self._due[name] = time.monotonic() + self._pause
        return Finding(status=status, again_in=self._find_wait(key, due))

    def forget(self, name: str) -> None:
        """Drop what is remembered of a key that is gone."""
        self._due.pop(name, None)

    @property
    def _pause(self) -> float:
        return max(LOOK_SECONDS, len(self._due) / MOST_LOOKS_A_SECOND)

    def _fail(self, key: GatewayKey, reason: Reason, text: str, seconds: float) -> Finding:
        self._due.pop(key.metadata.name, None)
        return Finding(Problem(reason, text), again_in=seconds)

    def _find_wait(self, key: GatewayKey, due: float) -> float:
        """Return seconds until the next check of the Secret, or the expiry of a token."""
        ends = [
            (parse_time(token.expiration_time) - self.now()).total_seconds()
            for token in key.status.tokens or ()
            if token.expiration_time is not None
        ]
        return max(0.1, min((due - time.monotonic(), *ends)))

    async def _settle(self, key: GatewayKey) -> dict[str, object] | None:
        """Return the change of the status; None where the Secret is not this key's."""
        for _ in range(MOST_ATTEMPTS):
            try:
                secret = await self.secrets.find(key.spec.secret_name or "")
                if secret is not None and not is_writable(secret, key):
                    return None
                if secret is not None and is_ahead(secret, key):
                    raise KubernetesUnavailable("the key is known in an older version")
                plaintext = read_plaintext(secret, key) if secret is not None else None
                if plaintext is None:
                    plaintext = await self._write(key, secret)
            except (AlreadyExists, WriteConflict, ObjectNotFound):
                # another replica, or an admin, was faster: read what is there now
                continue
            return plan_status(key, plaintext, self.peppers, self.now())
        raise KubernetesUnavailable("the Secret changes faster than it is read")

    async def _write(self, key: GatewayKey, secret: Secret | None) -> str:
        plaintext = await self._find_moved(key) or mint_key(key.spec.class_).plaintext
        await self.secrets.write(describe_secret(key, plaintext, secret))
        self.failpoints.reach("after-key-secret")
        _log.info("key written", key=key.metadata.name, secret=key.spec.secret_name)
        return plaintext

    async def _find_moved(self, key: GatewayKey) -> str | None:
        """Return the key of the Secret that the status names, if `spec.secretName` was changed."""
        before = key.status.secret_name
        if before is None or before == key.spec.secret_name or not key.status.tokens:
            return None
        secret = await self.secrets.find(before)
        if secret is None or not is_writable(secret, key):
            return None
        return read_plaintext(secret, key)
