"""The bodies of GET and of callbacks, byte for byte (contract §2.3, §11.1, B.6)."""

import pytest

from gateway_core.tasks.rendering import (
    render_callback,
    render_processing,
    render_terminal,
)

COMPLETED = {
    "phase": "Completed",
    "chargedMicros": 300_000,
    "result": {
        "videos": [
            {"url": "https://media.example/a?s=1&t=ü", "key": "k", "bytes": 1, "sha256": "0" * 64},
            {"url": "https://media.example/b", "key": "l", "bytes": 1, "sha256": "0" * 64},
        ]
    },
}
FAILED = {
    "phase": "Failed",
    "failure": {"code": "generation_failed", "message": 'The provider said "no" → twice.'},
}


def test_live_task_is_processing():
    assert render_processing("task_a") == b'{"id":"task_a","status":"processing"}'


@pytest.mark.parametrize("render", [render_terminal, render_callback])
def test_completed_task_is_rendered_alike_in_polls_and_callbacks(render):
    assert (
        render("task_a", COMPLETED)
        == (
            '{"id":"task_a","status":"completed","videos":[{"url":"https://media.example/a?s=1&t=ü"},'
            '{"url":"https://media.example/b"}],"usage":{"cost":0.30}}'
        ).encode()
    )


def test_failure_is_a_text_in_a_poll():
    assert (
        render_terminal("task_a", FAILED)
        == (
            '{"id":"task_a","status":"failed","error":"The provider said \\"no\\" → twice."}'
        ).encode()
    )


def test_failure_is_an_object_in_a_callback():
    assert (
        render_callback("task_a", FAILED)
        == (
            '{"id":"task_a","status":"failed","error":{"code":"generation_failed",'
            '"message":"The provider said \\"no\\" → twice."}}'
        ).encode()
    )


@pytest.mark.parametrize("reset", ["2026-11-23T00:00:00Z", None])
def test_reached_limit_is_named(reset):
    limit = {"limitCents": 500, "usedCents": 500, "resetTime": reset, "window": "weekly"}
    failure = {"code": "credit_limit_exceeded", "message": "Spent.", "limit": limit}
    shown = f'"{reset}"' if reset else "null"
    assert (
        render_callback("task_a", {"phase": "Failed", "failure": failure})
        == (
            '{"id":"task_a","status":"failed","error":{"code":"credit_limit_exceeded",'
            '"message":"Spent.","limit_cents":500,"used_cents":500,'
            f'"reset_at":{shown},"window":"weekly"}}}}'
        ).encode()
    )


@pytest.mark.parametrize("failure", [None, {"code": "generation_failed", "message": ""}])
def test_failure_without_a_message_has_a_default_one(failure):
    status = {"phase": "Failed", "failure": failure}
    assert b'"error":"The task failed."' in render_terminal("task_a", status)
    assert render_callback("task_a", status) == (
        b'{"id":"task_a","status":"failed","error":{"code":"generation_failed",'
        b'"message":"The task failed."}}'
    )


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00"),
        (500_000, "0.50"),
        (1, "0.000001"),
        (12_345_678, "12.345678"),
        (10**15, "1000000000.00"),
    ],
)
def test_cost_is_a_number_with_two_to_six_decimals(micros, text):
    body = render_terminal("task_a", {**COMPLETED, "chargedMicros": micros})
    assert f'"usage":{{"cost":{text}}}'.encode() in body
