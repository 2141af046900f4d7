"""JSON bodies of tasks: responses of GET, and callbacks.

One source for both (contract §2.3, §11.1): exactly these properties, compact, in this order. They
depend only on fields that never change once a task has ended, so that every response and every
attempt has the same bytes.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway_core.api.money import to_decimal_text

_NO_CODE = "generation_failed"
_NO_MESSAGE = "The task failed."


def render_processing(task_id: str) -> bytes:
    """Return the Processing representation; `task_id` is the public id (`task_…`)."""
    return b'{"id":"%b","status":"processing"}' % task_id.encode()


def render_terminal(task_id: str, status: Mapping[str, Any]) -> bytes:
    """Return the Completed or Failed representation for polling, of a terminal status."""
    if status["phase"] == "Completed":
        return _render_completed(task_id, status)
    return _render_failed(task_id, read_failure(status)["message"])


def render_callback(task_id: str, status: Mapping[str, Any]) -> bytes:
    """Return the callback's body: Completed as in polling, Failed with an object as `error`."""
    if status["phase"] == "Completed":
        return _render_completed(task_id, status)
    failure = read_failure(status)
    error = {"code": failure["code"], "message": failure["message"]}
    limit = failure.get("limit")
    if limit:
        error |= {
            "limit_cents": limit["limitCents"],
            "used_cents": limit["usedCents"],
            "reset_at": limit.get("resetTime"),
            "window": limit["window"],
        }
    return _render_failed(task_id, error)


def _render_completed(task_id: str, status: Mapping[str, Any]) -> bytes:
    cost = orjson.Fragment(to_decimal_text(status.get("chargedMicros") or 0))
    videos = [{"url": video["url"]} for video in status["result"]["videos"]]
    body = {"id": task_id, "status": "completed", "videos": videos, "usage": {"cost": cost}}
    return orjson.dumps(body)


def _render_failed(task_id: str, error: Any) -> bytes:
    return orjson.dumps({"id": task_id, "status": "failed", "error": error})


def read_failure(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the failure with a code and a message, even if an admin has removed one by hand."""
    failure = dict(status.get("failure") or {})
    failure["code"] = failure.get("code") or _NO_CODE
    failure["message"] = failure.get("message") or _NO_MESSAGE
    return failure
