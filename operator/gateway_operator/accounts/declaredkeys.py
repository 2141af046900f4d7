"""The keys that somebody declared with `spec.secretName`: made here, written into that Secret.

The Secret is written first, then the status: whoever is killed between the two finds the key in the
Secret and goes on with it. The plaintext is nowhere but in the Secret and, for a moment, here.
"""

import random
import time
from collections.abc import Callable, Mapping
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
from gateway_operator.failpoints import Failpoints

LOOK_SECONDS = 30.0
"""After how long a Secret is looked at again: it may have been deleted or damaged."""
MOST_LOOKS_A_SECOND = 10.0
"""With very many keys each is looked at less often."""
PENDING_SECONDS = 5.0
MOST_ATTEMPTS = 3

_log = structlog.get_logger(__name__)


class DeclaredKeys:
    """Makes and rotates keys, and tells what has to be in their status."""

    def __init__(
        self,
        secrets: SecretClient,
        peppers: Mapping[int, bytes],
        failpoints: Failpoints,
        now: Callable[[], datetime],
    ) -> None:
        self._secrets = secrets
        self._peppers = peppers
        self._failpoints = failpoints
        self._now = now
        self._due: dict[str, float] = {}

    async def follow(self, key: GatewayKey) -> Finding:
        """Has the Secret hold the key that the spec asks for."""
        name = key.metadata.name
        if key.spec.revoked:
            self._due.pop(name, None)
            return Finding(status={"tokens": None} if key.status.tokens else {})
        if is_current(key, self._now()):
            # a process that starts has looked at none, and looks at them in no hurry
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
        """Drops what is remembered of a key that is gone."""
        self._due.pop(name, None)

    @property
    def _pause(self) -> float:
        return max(LOOK_SECONDS, len(self._due) / MOST_LOOKS_A_SECOND)

    def _fail(self, key: GatewayKey, reason: Reason, text: str, seconds: float) -> Finding:
        self._due.pop(key.metadata.name, None)
        return Finding(Problem(reason, text), again_in=seconds)

    def _find_wait(self, key: GatewayKey, due: float) -> float:
        """Seconds until the next look at the Secret, or the end of a token's time."""
        ends = [
            (parse_time(token.expiration_time) - self._now()).total_seconds()
            for token in key.status.tokens or ()
            if token.expiration_time is not None
        ]
        return max(0.1, min((due - time.monotonic(), *ends)))

    async def _settle(self, key: GatewayKey) -> dict[str, object] | None:
        """What has to change in the status; None where the Secret is somebody else's."""
        for _ in range(MOST_ATTEMPTS):
            try:
                secret = await self._secrets.find(key.spec.secret_name or "")
                if secret is not None and not is_writable(secret, key):
                    return None
                if secret is not None and is_ahead(secret, key):
                    raise KubernetesUnavailable("the key is known in an older version")
                plaintext = read_plaintext(secret, key) if secret is not None else None
                if plaintext is None:
                    plaintext = await self._write(key, secret)
            except (AlreadyExists, WriteConflict, ObjectNotFound):
                # another replica, or an admin, was faster: what is there now counts
                continue
            return plan_status(key, plaintext, self._peppers, self._now())
        raise KubernetesUnavailable("the Secret changes faster than it is read")

    async def _write(self, key: GatewayKey, secret: Secret | None) -> str:
        plaintext = await self._find_moved(key) or mint_key(key.spec.class_).plaintext
        await self._secrets.write(describe_secret(key, plaintext, secret))
        self._failpoints.reach("after-key-secret")
        _log.info("key written", key=key.metadata.name, secret=key.spec.secret_name)
        return plaintext

    async def _find_moved(self, key: GatewayKey) -> str | None:
        """The key of the Secret that the status names, where `spec.secretName` was changed."""
        before = key.status.secret_name
        if before is None or before == key.spec.secret_name or not key.status.tokens:
            return None
        secret = await self._secrets.find(before)
        if secret is None or not is_writable(secret, key):
            return None
        return read_plaintext(secret, key)
