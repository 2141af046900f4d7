"""What each route requires of its caller."""

import re
from dataclasses import replace

from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from tests.unit.apiserver.gateway import Gateway, call, list_operations

WITHOUT_ACCESS = {
    "task_read": "authenticates by itself: a path that left the catalog is 404 without a key",
    "task_cancel": "as task_read",
    "models_get": "authenticates by itself: Google's clients send the key elsewhere",
    "models_list": "as models_get",
    "notices": "the address is the permission",
    "operations_health": "for load balancers",
    "operations_docs": "for anybody",
    "operations_openapi": "for anybody",
    "oauth_discovery": "for anybody",
    "oauth_register": "for anybody, within the rate of an address",
    "oauth_token": "authenticates the client by itself",
    "oauth_revoke": "as oauth_token",
    "pages_sign_in": "for anybody, within the rate of an address",
    "pages_asset": "for anybody",
    "pages_sign_out": "by the session of a cookie",
    "pages_authorize": "as pages_sign_out",
    "pages_settings": "as pages_sign_out",
    "pages_revoke": "as pages_sign_out",
    "pages_password": "as pages_sign_out",
    "pages_choose_password": "by a link, within the rate of an address",
}


PRICES = Access(anonymous=True)
MAKE_FILE = Access(Act.CREATE, creates=True, rate="storage")
SEND_BYTES, REMOVE = Access(Act.CREATE, creates=True), Access(Act.CREATE)
OWN_KEYS = Access(Act.GOVERN, rate="management", confines=True)
GUARDRAILS = Access(Act.GOVERN, rate="management")
APPOINT = Access(Act.APPOINT, rate="management")
MANAGEMENT = "/api/v1/management"
ACCESS = {
    "GET /v1/files": Access(),
    "POST /v1/files": MAKE_FILE,
    "GET /v1/files/{file_id}": Access(),
    "DELETE /v1/files/{file_id}": REMOVE,
    "GET /v1/files/{file_id}/content": Access(),
    "POST /v1/uploads": MAKE_FILE,
    "POST /v1/uploads/{upload_id}/parts": SEND_BYTES,
    "POST /v1/uploads/{upload_id}/complete": SEND_BYTES,
    "POST /v1/uploads/{upload_id}/cancel": REMOVE,
    "POST /api/v1/files": MAKE_FILE,
    "POST /api/v1/files/prepare": MAKE_FILE,
    "POST /api/v1/files/confirm": SEND_BYTES,
    "GET /api/v1/tasks": Access(),
    "GET /v1/batches": Access(),
    "GET /v1/batches/{batch_id}": Access(),
    "POST /v1/batches/{batch_id}/cancel": REMOVE,
    "GET /api/v1/me": Access(),
    "GET /api/v1/me/balance": Access(),
    "GET /api/v1/price_schedules": PRICES,
    "POST /api/v1/price_quotes": PRICES,
    f"GET {MANAGEMENT}/keys": OWN_KEYS,
    f"POST {MANAGEMENT}/keys": replace(OWN_KEYS, creates=True),
    f"GET {MANAGEMENT}/keys/{{key_id}}": OWN_KEYS,
    f"PATCH {MANAGEMENT}/keys/{{key_id}}": OWN_KEYS,
    f"DELETE {MANAGEMENT}/keys/{{key_id}}": OWN_KEYS,
    f"POST {MANAGEMENT}/keys/{{key_id}}/rotate": OWN_KEYS,
    f"GET {MANAGEMENT}/guardrails": GUARDRAILS,
    f"POST {MANAGEMENT}/guardrails": replace(GUARDRAILS, creates=True),
    f"GET {MANAGEMENT}/guardrails/{{guardrail_id}}": GUARDRAILS,
    f"PATCH {MANAGEMENT}/guardrails/{{guardrail_id}}": GUARDRAILS,
    f"DELETE {MANAGEMENT}/guardrails/{{guardrail_id}}": GUARDRAILS,
    f"GET {MANAGEMENT}/guardrails/{{guardrail_id}}/assignments": GUARDRAILS,
    f"POST {MANAGEMENT}/guardrails/{{guardrail_id}}/assignments": GUARDRAILS,
    f"POST {MANAGEMENT}/guardrails/{{guardrail_id}}/assignments/remove": GUARDRAILS,
    f"GET {MANAGEMENT}/usage": OWN_KEYS,
    f"GET {MANAGEMENT}/members": Access(Act.READ_MEMBERS, rate="management"),
    f"PATCH {MANAGEMENT}/members/{{user_id}}": APPOINT,
    f"GET {MANAGEMENT}/webhook_secret": APPOINT,
    f"POST {MANAGEMENT}/webhook_secret/rotate": APPOINT,
    f"POST {MANAGEMENT}/webhook_secret/test": APPOINT,
}
"""What each operation that costs nothing requires of its caller."""


def test_every_operation_checks_its_caller_or_is_known_not_to(gateway: Gateway) -> None:
    unchecked = {
        operation.label
        for operation in list_operations(gateway.app)
        if operation.access is None and not operation.paid
        if not operation.label.startswith("console_")
    }
    assert unchecked == set(WITHOUT_ACCESS)


async def test_every_page_of_the_console_sends_strangers_to_the_sign_in(gateway: Gateway) -> None:
    form = [("Content-Type", "application/x-www-form-urlencoded")]
    seen = 0
    for operation in list_operations(gateway.app):
        if operation.label.startswith("console_"):
            method, path = operation.method, re.sub(r"\{\w+(:path)?\}", "demo", operation.path)
            answer = await call(gateway.app, method, path, headers=form, content=b"a=b")
            if operation.label == "console_events":
                # the page closes the stream
                assert answer.body == b"event: gone\ndata:\n\n"
            else:
                assert answer.status == 303, path
                assert answer.headers["location"].startswith("/sign-in?next=")
            seen += 1
    assert seen > 15


def test_every_operation_requires_its_act_and_rate(gateway: Gateway) -> None:
    required = {
        f"{operation.method} {operation.path}": operation.access
        for operation in list_operations(gateway.app)
        if operation.access is not None
    }
    assert required == ACCESS, "each operation that requires access has its row in ACCESS"


async def test_key_of_too_low_a_role_or_another_class_is_refused_by_each_operation() -> None:
    """Before its body is read, which is nonsense here."""
    gateway = Gateway(management_calls_per_minute=1000)
    gateway.put_user("vera", {"demo": "viewer"})
    viewer = gateway.put_key("demo", createdBy="vera")
    manager = gateway.put_key("demo", "Management")
    revoked = gateway.put_key("demo", revoked=True)
    for operation, access in ACCESS.items():
        method, _, path = operation.partition(" ")
        statuses = []
        for key in (gateway.key, viewer, manager, revoked):
            headers = [("Authorization", f"Bearer {key}")]
            answer = await call(gateway.app, method, path, headers=headers, content=b"nonsense")
            statuses.append(answer.status)
        acts = ((Act.READ, Act.CREATE), (Act.READ,), (Act.GOVERN, Act.READ_MEMBERS))
        refused = [access.act not in allowed for allowed in acts]
        assert [status == 403 for status in statuses] == [*refused, False], operation
        assert statuses[-1] == 401, operation


async def test_newline_after_a_path_is_another_path(gateway: Gateway) -> None:
    headers = [("Authorization", f"Bearer {gateway.key}")]
    for path in ("/api/v1/me\n", "/v1/files\n", "/healthz\n"):
        assert (await call(gateway.app, "GET", path, headers=headers)).status == 404
