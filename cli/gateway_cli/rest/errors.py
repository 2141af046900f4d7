"""What the REST API refuses, as errors that say what to do, and the exit codes of `tasks`."""

from collections.abc import Mapping
from typing import Any

EXIT_TASK_FAILED = 1
EXIT_STILL_PROCESSING = 3
EXIT_REFUSED = 4
EXIT_UNAVAILABLE = 5

_ADVICE = {
    401: "the key is unknown, expired, disabled or revoked, or its maker is no member any more:"
    " check GATEWAY_API_KEY",
    402: "the account has too little money: an admin adds some with `gatewayctl fund`",
    403: "this key may not do that. A management key makes no tasks, a viewer creates nothing, and"
    " models and providers may be restricted: `gatewayctl keys describe` tells an admin which",
    404: "the id is of another account, service or action, or its results were removed after 30"
    " days",
    409: "an Idempotency-Key belongs to the input it was first used with, and a model may support"
    " less than its operation",
}
_OVER_BUDGET = (
    "a limit of this key or of its guardrails is used up, and waiting a minute does not help:"
    " `gatewayctl keys describe` tells an admin the limit and when it resets, and `gatewayctl keys"
    " limit set` raises it"
)
_TOO_FAST = "too many calls in a minute: it may be repeated after {:.0f} s"


class RestError(Exception):
    """The REST API refused or could not be reached; the text is for the user.

    Attributes:
        status: of the answer; None where there was none.
        retry_after: seconds after which to repeat it; None where that is of no use.
    """

    def __init__(
        self, text: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after

    @property
    def exit_code(self) -> int:
        """5 where the same command may succeed later, else 4."""
        return EXIT_REFUSED if self.retry_after is None else EXIT_UNAVAILABLE


def read_refusal(status: int, headers: Mapping[str, str], body: Any) -> RestError:
    """The error for an answer that is none of success."""
    text = _read_text(body) or "no text"
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
    advice = _ADVICE.get(status)
    return RestError(f"{told}\n  {advice}" if advice else told, status=status)


def _read_text(body: Any) -> str:
    """The error's summary, and a line for each field that is wrong."""
    if not isinstance(body, dict):
        return ""
    fields = body.get("errors") or {}
    lines = [f"  {name}: {text}" for name, texts in fields.items() for text in texts]
    return "\n".join([str(body.get("error", "")), *lines])


def _read_wait(headers: Mapping[str, str], default: float) -> float:
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        return default
