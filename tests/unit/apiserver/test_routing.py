"""The table of routes: what each requires, and that it can be read."""

import re
from dataclasses import replace

from prometheus_client import CollectorRegistry

from gateway_apiserver.app import build_table
from gateway_apiserver.metrics import ApiMetrics
from gateway_apiserver.routing import RouteTable
from tests.unit.apiserver.gateway import Gateway, call

WITHOUT_ACCESS = {
    "task_read": "authenticates by itself: a path that left the catalog is 404 without a key",
    "models_get": "authenticates by itself: Google's clients send the key elsewhere",
    "models_list": "as models_get",
    "notices": "the address is the permission",
    "operations_health": "for load balancers",
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
}


def build(gateway: Gateway) -> RouteTable:
    parts = replace(gateway.api_parts, registry=CollectorRegistry())
    return build_table(parts, gateway.intake, ApiMetrics(), lambda: True)


def test_every_operation_checks_its_caller_or_is_known_not_to(gateway: Gateway) -> None:
    unchecked = {
        operation.label
        for route in build(gateway).routes
        for operation in route.operations.values()
        if operation.access is None and not operation.paid
        if not operation.label.startswith("console_")
    }
    assert unchecked == set(WITHOUT_ACCESS)


async def test_every_page_of_the_console_sends_strangers_to_the_sign_in(gateway: Gateway) -> None:
    form = [("Content-Type", "application/x-www-form-urlencoded")]
    seen = 0
    for route in build(gateway).routes:
        for method, operation in route.operations.items():
            if operation.label.startswith("console_"):
                path = re.sub(r"\{\w+(:path)?\}", "demo", route.path)
                answer = await call(gateway.app, method, path, headers=form, content=b"a=b")
                if operation.label == "console_events":
                    # the page closes the stream
                    assert answer.body == b"event: gone\ndata:\n\n"
                else:
                    assert answer.status == 303, path
                    assert answer.headers["location"].startswith("/sign-in?next=")
                seen += 1
    assert seen > 15


def test_every_operation_that_makes_something_stops_with_the_intake(gateway: Gateway) -> None:
    open_posts = {
        (route.path, operation.label)
        for route in build(gateway).routes
        for method, operation in route.operations.items()
        if method == "POST" and operation.access is not None and not operation.access.creates
    }
    assert open_posts == {
        ("/v1/uploads/{upload_id}/cancel", "uploads_cancel"),
        ("/v1/batches/{batch_id}/cancel", "batch_cancel"),
        ("/api/v1/price_quotes", "price_quotes"),
        ("/api/v1/management/keys/{key_id}/rotate", "management"),
        ("/api/v1/management/webhook_secret/rotate", "management"),
        ("/api/v1/management/webhook_secret/test", "management"),
        ("/api/v1/management/guardrails/{guardrail_id}/assignments", "management"),
        ("/api/v1/management/guardrails/{guardrail_id}/assignments/remove", "management"),
    }


def test_the_table_prints_a_line_for_each_operation(gateway: Gateway) -> None:
    lines = str(build(gateway)).splitlines()
    assert lines[0].split() == ["GET", "/api/v1/{service}/{action}/{task_id}", "task_read"]
    assert len(lines) == len(set(lines)) > 35


async def test_newline_after_a_path_is_another_path(gateway: Gateway) -> None:
    headers = [("Authorization", f"Bearer {gateway.key}")]
    for path in ("/api/v1/me\n", "/v1/files\n", "/healthz\n"):
        assert (await call(gateway.app, "GET", path, headers=headers)).status == 404
