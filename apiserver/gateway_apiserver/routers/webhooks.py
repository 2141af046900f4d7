"""`/webhook_secret`: what the account's callbacks are signed with, and a test (contract §11.2)."""

from typing import Annotated

from fastapi import APIRouter, Depends

from gateway_apiserver.access import ByCaller, IdempotencyKey, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.management import LABEL, ROOT
from gateway_apiserver.surfaces.management.responses import RotatedSecret, SecretState, TestResult
from gateway_apiserver.surfaces.management.webhooks import TestRequest, WebhookService
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access

router = APIRouter(prefix=f"{ROOT}/webhook_secret", route_class=GatewayRoute, tags=["Webhooks"])

Webhooks = Annotated[WebhookService, Depends(provided(WebhookService))]
_APPOINT = Access(Act.APPOINT, rate="management")


@router.get("", operation_id="showWebhookSecret", summary="Show the state of the webhook secret")
@requires(_APPOINT, LABEL)
async def show_secret(caller: ByCaller, webhooks: Webhooks) -> SecretState:
    """Show whether there is a secret, and until when the previous one signs."""
    return await webhooks.show(caller.account)


@router.post(
    "/rotate",
    operation_id="rotateWebhookSecret",
    summary="Rotate the webhook secret; the previous one also signs for 24 hours",
    responses={409: {}, 504: {}},
)
@requires(_APPOINT, LABEL)
async def rotate_secret(caller: ByCaller, key: IdempotencyKey, webhooks: Webhooks) -> RotatedSecret:
    """Make a new secret; a repeated call is answered with the same."""
    return await webhooks.rotate(caller.principal, key)


@router.post(
    "/test",
    operation_id="testWebhook",
    summary="Send a signed callback to an address as a test",
    responses={409: {}, 504: {}},
)
@requires(_APPOINT, LABEL)
async def test_webhook(body: TestRequest, caller: ByCaller, webhooks: Webhooks) -> TestResult:
    """Send one callback, and say what has become of it."""
    return await webhooks.test(caller.account, body.url)
