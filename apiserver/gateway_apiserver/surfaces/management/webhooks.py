"""`/webhook_secret`: what the account's callbacks are signed with, and a test (contract §11.2).

As members are changed, only signed in and with no key. The operator carries both out: this process
may read no Secret, and no receiver is called by it.
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway_apiserver.endpoints import Call, Docs, RouteTable
from gateway_apiserver.surfaces.management import LABEL, ROOT
from gateway_apiserver.surfaces.management.changes import name_caller
from gateway_apiserver.surfaces.management.responses import RotatedSecret, SecretState, TestResult
from gateway_apiserver.surfaces.models import Request
from gateway_apiserver.surfaces.validation import (
    read_body,
    read_idempotency_key,
    refuse_fields,
)
from gateway_core.accounts.roles import Act
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.admission.admission import Access
from gateway_core.api.account import GatewayAccount
from gateway_core.api.errors import Conflict, Forbidden, GatewayError, OutcomeUnknown, Unavailable
from gateway_core.callbacks.orders import Order, OrderLink, OrderRefused
from gateway_core.callbacks.rotation import derive_secret
from gateway_core.egress.addresses import AddressPolicy, AddressRefused
from gateway_core.egress.connector import parse_url
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_web.responses import Response, to_json

WEBHOOK_ALLOWANCES: Mapping[str, Allowance] = {"webhook-test": Allowance(10, 60)}
"""Tests of one account a minute. A task's callback tells as much of a receiver as a test does."""
_PATH = f"{ROOT}/webhook_secret"
_APPOINT = Access(Act.APPOINT, rate="management")


class Test(Request):
    """Where a callback is sent as a test."""

    url: Annotated[str, Field(min_length=1, max_length=2048)]


class WebhookRoutes:
    """Show the state, rotate, test."""

    def __init__(
        self,
        kube: KubernetesClient,
        orders: OrderLink | None,
        addresses: AddressPolicy,
        throttle: Throttle,
        id_key: bytes,
    ) -> None:
        self._kube = kube
        self._orders = orders
        self._addresses = addresses
        self._throttle = throttle
        self._id_key = id_key

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        docs = Docs("showWebhookSecret", "Whether callbacks can be signed", SecretState)
        table.add("GET", _PATH, self.show, LABEL, _APPOINT, docs)
        title = "A new secret; the previous one also signs for 24 hours"
        docs = Docs("rotateWebhookSecret", title, RotatedSecret, also=(409, 504))
        table.add("POST", f"{_PATH}/rotate", self.rotate, LABEL, _APPOINT, docs)
        title = "Send a signed callback to an address as a test"
        docs = Docs("testWebhook", title, TestResult, body=Test, also=(409,))
        table.add("POST", f"{_PATH}/test", self.test, LABEL, _APPOINT, docs)

    async def show(self, call: Call) -> Response:
        """Whether there is a secret, and until when the one before it signs."""
        try:
            spec = (await self._kube.get(GatewayAccount.plural, call.account))["spec"]
        except KubernetesUnavailable as error:
            raise Unavailable("The account cannot be read now.", retry_after=1) from error
        previous = spec.get("previousWebhookSecretRef") or {}
        state = SecretState(
            is_set="webhookSecretRef" in spec, previous_signs_until=previous.get("expirationTime")
        )
        return to_json(state.model_dump())

    async def rotate(self, call: Call) -> Response:
        """Make a secret. A repetition with the same Idempotency-Key is answered with the same."""
        account = call.account
        nonce = read_idempotency_key(call.headers) or secrets.token_urlsafe(24)
        values = {"nonce": nonce, "by": name_caller(call)}
        done = await self._give(Order("rotate", account, values))
        secret = derive_secret(self._id_key, account, nonce)
        return to_json(RotatedSecret(secret=secret, **done).model_dump())

    async def test(self, call: Call) -> Response:
        """Send one callback, and say what has become of it."""
        url = (await read_body(call, Test)).url
        if parse_url(url) is None:
            raise refuse_fields({"url": ["must be an http or https URL"]})
        try:
            self._addresses.check_url_literal(url)
        except AddressRefused as refused:
            raise refuse_fields({"url": [refused.problem]}) from None
        await self._throttle.count("webhook-test", call.account)
        done = await self._give(Order("test", call.account, {"url": url}))
        return to_json(TestResult(**done).model_dump())

    async def _give(self, order: Order) -> Mapping[str, Any]:
        if self._orders is None:
            raise Unavailable("This gateway's API does not know its operator.")
        try:
            return await self._orders.give(order)
        except OrderRefused as refusal:
            raise _to_error(refusal) from None


def _to_error(refusal: OrderRefused) -> GatewayError:
    text = str(refusal)
    match refusal.status:
        case 403:
            return Forbidden(text)
        case 409:
            return Conflict(text)
        case 504:
            return OutcomeUnknown(text)
        case _:
            return Unavailable(text, retry_after=5)
