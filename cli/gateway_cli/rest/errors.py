"""Refusals of the REST API as errors that say what to do."""

from collections.abc import Mapping
from typing import Any

from gateway_cli.session import EXIT_REFUSED, EXIT_UNAVAILABLE, CommandError

_ADVICE = {
    401: "the key is unknown, expired, disabled or revoked, or its maker is no member any more:"
    " check GATEWAY_API_KEY",
    402: "the account has too little money: an admin adds some with `gatewayctl fund`",
    403: "this key may not do that. A management key makes no tasks, a viewer creates nothing, and"
    " models and providers may be restricted: `gatewayctl keys describe` tells an admin which",
    404: "the id is of another account, service or action, or its results were removed after 30"
    " days",
}
_ADVICE_BY_CODE = {
    "file_not_found": "the file is of another account, was deleted, or has expired",
    "upload_not_found": "the upload is of another account, or ended more than a day ago",
    "batch_not_found": "the batch is of another account, or ended more than 30 days ago",
    "storage_limit_exceeded": "the account's storage is full: `gatewayctl files delete` makes room",
    "upload_state_conflict": "the upload has ended otherwise, or its hour is over",
}
_OVER_BUDGET = (
    "a limit of this key or of its guardrails is used up, and waiting a minute does not help:"
    " `gatewayctl keys describe` tells an admin the limit and when it resets, and `gatewayctl keys"
    " limit set` raises it"
)
_KEY_REUSED = "an Idempotency-Key belongs to the input it was first used with"
_NO_TEXT = "no text"
_WRONG_PLACE = (
    "check GATEWAY_BASE_URL, the address without /v1 and /api, and a task's --service and --action"
)
_TOO_FAST = "too many calls in a minute: it may be repeated after {:.0f} s"


class RestError(CommandError):
    """The REST API refused or could not be reached.

    Attributes:
        status: of the answer; None where there was none.
        code: the error's word on `/v1`; empty where there is none.
        retry_after: seconds after which to repeat it; None where that is of no use.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        code: str = "",
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        # the same command may succeed later, or not
        self.exit_code = EXIT_REFUSED if retry_after is None else EXIT_UNAVAILABLE


def read_refusal(status: int, headers: Mapping[str, str], body: Any) -> RestError:
    """Return the error for an answer that is none of success."""
    text = _read_text(body) or _NO_TEXT
    told = f"{status}: {text}"
    request_id = headers.get("X-Request-Id")
    if status == 429:
        if headers.get("x-should-retry") == "false":
            return RestError(f"{told}\n  {_OVER_BUDGET}", status=status)
        wait = _read_wait(headers, 5.0)
        return RestError(f"{told}\n  {_TOO_FAST.format(wait)}", status=status, retry_after=wait)
    if status >= 500:
        reference = f" (request {request_id})" if request_id else ""
        wait = _read_wait(headers, 2.0)
        return RestError(f"{told}{reference}", status=status, retry_after=wait)
    code = _read_code(body)
    advice = _ADVICE_BY_CODE.get(code) if code else _ADVICE.get(status)
    if status == 404 and text.startswith(("Not found", _NO_TEXT)):
        # of a path, not of an id
        advice = _WRONG_PLACE
    if status == 409 and text.startswith("Idempotency-Key"):
        # other conflicts say themselves what excludes the request
        advice = _KEY_REUSED
    if status in (401, 402, 403):
        advice = _ADVICE[status]
    return RestError(f"{told}\n  {advice}" if advice else told, status=status, code=code)


def _read_text(body: Any) -> str:
    """Return the error's summary, and a line for each field that is wrong."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error", "")
    if isinstance(error, dict):
        return str(error.get("message", ""))
    fields = body.get("errors") or {}
    lines = [f"  {name}: {text}" for name, texts in fields.items() for text in texts]
    return "\n".join([str(error), *lines])


def _read_code(body: Any) -> str:
    """Return the code of an error in the dialect of `/v1`."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("code") or "") if isinstance(error, dict) else ""


def _read_wait(headers: Mapping[str, str], default: float) -> float:
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        return default
