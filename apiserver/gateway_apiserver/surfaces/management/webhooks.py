"""`/webhook_secret`: what the account's callbacks are signed with, and a test (contract §11.2).

As members are changed, only signed in and with no key. The operator carries both out: this process
may read no Secret, and no receiver is called by it.
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway_apiserver.surfaces.management.changes import name_caller
from gateway_apiserver.surfaces.management.responses import RotatedSecret, SecretState, TestResult
from gateway_apiserver.surfaces.models import Request
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.api.account import GatewayAccount
from gateway_core.api.errors import Conflict, Forbidden, GatewayError, OutcomeUnknown, Unavailable
from gateway_core.callbacks.orders import Order, OrderLink, OrderRefused
from gateway_core.callbacks.rotation import derive_secret
from gateway_core.egress.addresses import AddressPolicy, AddressRefused
from gateway_core.egress.connector import parse_url
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable

WEBHOOK_ALLOWANCES: Mapping[str, Allowance] = {"webhook-test": Allowance(10, 60)}
"""Tests of one account a minute. A task's callback tells as much of a receiver as a test does."""


class TestRequest(Request):
    """Where a callback is sent as a test."""

    url: Annotated[str, Field(min_length=1, max_length=2048)]


class WebhookService:
    """Shows, rotates and tests the secret of an account."""

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

    async def show(self, account: str) -> SecretState:
        """Return whether there is a secret, and until when the one before it signs. Unavailable."""
        try:
            spec = (await self._kube.get(GatewayAccount.plural, account))["spec"]
        except KubernetesUnavailable as error:
            raise Unavailable("The account cannot be read now.", retry_after=1) from error
        previous = spec.get("previousWebhookSecretRef") or {}
        return SecretState(
            is_set="webhookSecretRef" in spec, previous_signs_until=previous.get("expirationTime")
        )

    async def rotate(self, caller: Principal, key: str | None) -> RotatedSecret:
        """Make a secret. A repetition with the same Idempotency-Key is answered with the same."""
        account = caller.account.name
        nonce = key or secrets.token_urlsafe(24)
        values = {"nonce": nonce, "by": name_caller(caller)}
        done = await self._give(Order("rotate", account, values))
        secret = derive_secret(self._id_key, account, nonce)
        return RotatedSecret(secret=secret, **done)

    async def test(self, account: str, url: str) -> TestResult:
        """Send one callback, and say what has become of it. InvalidRequest."""
        if parse_url(url) is None:
            has_user = "@" in url.partition("://")[2].partition("/")[0]
            problem = "must not name a user" if has_user else "must be an http or https URL"
            raise refuse_fields({"url": [problem]})
        try:
            self._addresses.check_url_literal(url)
        except AddressRefused as refused:
            raise refuse_fields({"url": [refused.problem]}) from None
        await self._throttle.count("webhook-test", account)
        done = await self._give(Order("test", account, {"url": url}))
        return TestResult(**done)

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
