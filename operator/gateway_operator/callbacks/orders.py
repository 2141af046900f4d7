"""Orders of the API process: a new secret for an account's callbacks, and a callback as a test."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import orjson
import structlog

from gateway_core.accounts.changes import note_change
from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import ACCOUNT_LABEL, API_VERSION
from gateway_core.api.key import Secret
from gateway_core.api.resource import Object
from gateway_core.callbacks.orders import OrderRefused, OrderSigner
from gateway_core.callbacks.rotation import (
    ENTRY,
    RotationUnderWay,
    choose_name,
    derive_secret,
    name_secrets,
    plan_rotation,
    refuse_second,
)
from gateway_core.callbacks.schedule import Verdict, judge
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.client import KubernetesClient
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
from gateway_operator.callbacks.client import CallbackClient, Message
from gateway_operator.callbacks.signing import READ_SECONDS, NoKey

TURN_SECONDS = 5.0
"""How long a test waits behind the account's callbacks."""
MOST_ROTATIONS = 16
"""At a time; of one account one, as two would write the same Secret."""
_REFERENCES = ("webhookSecretRef", "previousWebhookSecretRef")
_TEST = orjson.dumps(
    {"id": f"task_{'0' * 26}", "status": "completed", "videos": [], "usage": {"cost": 0}}
)
"""The body of a test: a completed task that there is not."""

_log = structlog.get_logger(__name__)


def _refuse_rotation() -> OrderRefused:
    return OrderRefused(503, "Another new secret of the account is in turn.")


def _make_turns() -> FairSemaphore:
    return FairSemaphore(
        MOST_ROTATIONS,
        alone=MOST_ROTATIONS,
        per_holder=1,
        seconds=TURN_SECONDS,
        error=_refuse_rotation,
    )


@dataclass(frozen=True)
class WebhookOrders:
    """Carries orders out."""

    kube: KubernetesClient
    secrets: SecretClient
    client: CallbackClient
    id_key: bytes
    now: Callable[[], datetime]
    turns: FairSemaphore = field(default_factory=_make_turns)

    async def take(self, body: bytes, signature: str) -> Mapping[str, Any] | None:
        """Carry one out; None where it is forged. OrderRefused."""
        order = OrderSigner(self.id_key).read(body, signature)
        if order is None:
            return None
        try:
            if order.action == "test":
                return await self._test(order.account, order.values["url"])
            return await self._rotate(order.account, order.values["nonce"], order.values["by"])
        except ObjectNotFound:
            raise OrderRefused(404, "There is no such account.") from None
        except (AlreadyExists, KubernetesUnavailable, WriteConflict):
            raise OrderRefused(503, "This cannot be done now.") from None
        except WriteOutcomeUnknown:
            text = "It is not known whether this was done. Send the same again."
            raise OrderRefused(504, text) from None

    async def _test(self, account: str, url: str) -> Mapping[str, Any]:
        """Send one callback, in its turn among the account's own."""
        message = Message(account, url, f"msg_{secrets.token_hex(13)}", _TEST)
        try:
            await self.client.check_keys(account)
            turn = asyncio.timeout(TURN_SECONDS)
            async with turn, self.client.wait_turn(account, url) as receiver:
                turn.reschedule(None)
                began = time.monotonic()
                outcome = await self.client.send(message, receiver)
        except NoKey as problem:
            _log.info("callback not tested", account=account, problem=str(problem))
            text = "Callbacks cannot be signed: the account has no usable secret."
            raise OrderRefused(409, text) from None
        except TimeoutError:
            raise OrderRefused(503, "Other callbacks of the account are in turn.") from None
        return {
            "delivered": judge(outcome.status) is Verdict.DELIVERED,
            "status": outcome.status,
            "result": outcome.answer,
            "seconds": round(time.monotonic() - began, 1),
        }

    async def _rotate(self, account: str, nonce: str, by: str) -> Mapping[str, Any]:
        """Write the new secret into the Secret that does not sign, and refer to it.

        A repetition finds its own secret signing, and changes nothing.
        """
        value = derive_secret(self.id_key, account, nonce).encode()
        try:
            async with self.turns.take(account):
                spec = await self._replace(account, value, by)
        except RotationUnderWay as error:
            raise OrderRefused(
                409, f"The secret was changed already: the one before signs until {error.until}."
            ) from None
        except (RequestForbidden, RequestRejected) as error:
            _log.warning("webhook secret not rotated", account=account, problem=str(error))
            text = "The gateway may not write this account's secrets; ask its administrator."
            raise OrderRefused(403, text) from None
        previous = spec.get("previousWebhookSecretRef") or {}
        return {"previous_signs_until": previous.get("expirationTime")}

    async def _replace(self, account: str, value: bytes, by: str) -> Mapping[str, Any]:
        """Have the value sign for the account; its spec then. RotationUnderWay, OrderRefused."""
        # before the account: then no Secret that another replica refers to meanwhile is overwritten
        found = {name: await self.secrets.find(name) for name in name_secrets(account)}
        obj = await self.kube.get(GatewayAccount.plural, account)
        spec: Mapping[str, Any] = obj["spec"]
        if _has(found.get(_name_current(spec)), value):
            return spec
        # replicas may sign for a while with what they have read of this Secret
        refuse_second(spec, self.now() - timedelta(seconds=2 * READ_SECONDS))
        name = choose_name(account, spec)
        old = found[name]
        if old is not None and old.labels.get(ACCOUNT_LABEL) != account:
            raise OrderRefused(409, f"Secret {name} is not of this account.")
        await self.secrets.write(_describe(obj, old or Secret(name, {}), value))
        spec = await self._refer(account, name, spec, by)
        if not _has(await self.secrets.find(_name_current(spec)), value):
            raise _refuse_late()
        return spec

    async def _refer(
        self, account: str, name: str, old: Mapping[str, Any], by: str
    ) -> Mapping[str, Any]:
        """Refer to the Secret `name`, unless another has changed what the `old` spec refers to."""

        async def read() -> Object:
            return await self.kube.get(GatewayAccount.plural, account)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            plan = plan_rotation(obj["spec"], name, self.now())
            if plan is None:
                return None
            if any(obj["spec"].get(word) != old.get(word) for word in _REFERENCES):
                raise _refuse_late()
            changes = note_change(obj, by, "new webhook secret", self.now())
            return {"metadata": {"annotations": changes}, "spec": plan}

        changed = await self.kube.update(GatewayAccount.plural, read, decide)
        _log.info("webhook secret rotated", account=account, secret=name)
        spec: Mapping[str, Any] = changed["spec"]
        return spec


def _describe(obj: Object, old: Secret, value: bytes) -> Secret:
    """Return the Secret to write. The account owns it, so that it is deleted with the account."""
    name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
    mine = {"apiVersion": API_VERSION, "kind": GatewayAccount.kind_name, "name": name, "uid": uid}
    # other owners are kept, except an account of the name that was deleted
    others = [owner for owner in old.owners if owner.get("kind") != GatewayAccount.kind_name]
    labels = {**old.labels, ACCOUNT_LABEL: name}
    return replace(old, data={ENTRY: value}, labels=labels, owners=(*others, mine))


def _name_current(spec: Mapping[str, Any]) -> str:
    return str((spec.get("webhookSecretRef") or {}).get("name", ""))


def _has(secret: Secret | None, value: bytes) -> bool:
    return secret is not None and secret.data.get(ENTRY) == value


def _refuse_late() -> OrderRefused:
    return OrderRefused(409, "Another has changed the secret at the same time; look at it anew.")
