"""Errors of clients' requests, one closed tree; each surface maps it to its own format.

Codes and HTTP statuses are those of contract §1.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass


class GatewayError(Exception):
    """Error for a client: `message` for people, `code` for programs. Never contains a secret."""

    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(GatewayError):
    """The request breaks a rule; `errors` maps a public field name to its texts (§1.1)."""

    status = 400
    code = "invalid_value"

    def __init__(
        self,
        message: str,
        *,
        errors: Mapping[str, list[str]] | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.errors = dict(errors) if errors else None


class Unauthenticated(GatewayError):
    """No credential, or an invalid one (§0.10)."""

    status = 401
    code = "invalid_api_key"


class MissingKey(Unauthenticated):
    """The request has no credential; `header` is one of another service that it has instead."""

    code = "missing_api_key"

    def __init__(self, header: str = "") -> None:
        where = f" instead of {header}" if header else ""
        if header == "x-goog-api-key":
            # Google's SDK also lists files and batches, at addresses that OpenAI's clients call
            where += ", which is for models, generateContent and streamGenerateContent"
        super().__init__(f"An API key is required: Authorization: Bearer <key>{where}.")
        self.header = header


class InsufficientBalance(GatewayError):
    """The account's balance does not cover the reservation (§2.1)."""

    status = 402
    code = "insufficient_balance"


class Forbidden(GatewayError):
    """A valid credential of the wrong class or role (§0.10)."""

    status = 403
    code = "wrong_credential_class"


class NotFound(GatewayError):
    """Unknown, or of another account, indistinguishably (§0.5)."""

    status = 404
    code = "not_found"


class MethodNotAllowed(GatewayError):
    """The path does not support the method; `allow` lists those it supports.

    `hint` says what does the work of the method.
    """

    status = 405
    code = "method_not_allowed"

    def __init__(self, allow: str, hint: str = "") -> None:
        text = f"Method not allowed: this path allows {allow}"
        super().__init__(f"{text}; {hint}." if hint else f"{text}.")
        self.allow = allow


class Conflict(GatewayError):
    """The state or the selected model excludes the request (§2.1, §2.2)."""

    status = 409
    code = "conflict"


class TooLarge(GatewayError):
    """The body exceeds the operation's limit."""

    status = 413
    code = "request_too_large"


class UnsupportedMediaType(GatewayError):
    """The body's media type, or its Content-Encoding, is not supported; `accept` names the type."""

    status = 415
    code = "unsupported_media_type"

    def __init__(self, accept: str, *, is_encoded: bool = False) -> None:
        super().__init__(
            "The body must have no Content-Encoding."
            if is_encoded
            else f"Content-Type must be {accept}."
        )
        self.accept = accept
        self.is_encoded = is_encoded


class RangeNotSatisfiable(GatewayError):
    """The range is beyond the end; `size` is the number of bytes (§3.5)."""

    status = 416
    code = "range_not_satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__("The requested range lies beyond the end of the file.")
        self.size = size


@dataclass(frozen=True, slots=True)
class RateState:
    """Values of the rate headers (§12.2): `reset` is Unix seconds, rounded up."""

    limit: int
    remaining: int
    reset: int


class RateLimited(GatewayError):
    """Too many paid calls; `retry_after` is whole seconds (§12.3)."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, state: RateState, retry_after: int) -> None:
        super().__init__(f"Rate limit of {state.limit} requests per minute reached.")
        self.state = state
        self.retry_after = retry_after


class TooManyCalls(GatewayError):
    """Too many free calls; `retry_after` is whole seconds (§12.1a)."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CreditLimitExceeded(GatewayError):
    """The budget of a key or guardrail is spent; a retry soon will not help (§1.2)."""

    status = 429
    code = "credit_limit_exceeded"


class UpstreamRateLimited(GatewayError):
    """The provider's rate limit; `retry_after` is seconds (§1.3)."""

    status = 429
    code = "upstream_rate_limited"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = min(120, max(1, retry_after))


class Internal(GatewayError):
    """A defect of the gateway. The message has no details."""


class UpstreamFailed(GatewayError):
    """The provider failed, or rejects the gateway's credentials (§1.3)."""

    status = 502
    code = "upstream_error"


class UpstreamTimeout(GatewayError):
    """The provider did not respond in time (§1.3)."""

    status = 504
    code = "upstream_timeout"


class Unavailable(GatewayError):
    """The gateway cannot serve this now; `retry_after` is seconds, at most 120 (§1.2)."""

    status = 503
    code = "service_unavailable"

    def __init__(self, message: str, *, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = min(120, max(1, retry_after))


class OutcomeUnknown(GatewayError):
    """The write was sent and not acknowledged in time; it may exist (§2.1, 504)."""

    status = 504
    code = "upstream_timeout"


class KeyReused(Conflict):
    """The Idempotency-Key stands for a request with different input."""

    code = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__("Idempotency-Key was already used with different input")


class WinnerUndecided(Unavailable):
    """Another call with the Idempotency-Key came first, and its outcome is not known yet."""

    def __init__(self) -> None:
        super().__init__(
            "Another request with this Idempotency-Key is being decided.", retry_after=1
        )


class OAuthError(GatewayError):
    """An error of the authorization server: `code` is the `error` of RFC 6749 and its kin (§10.7).

    `basic` asks for a `WWW-Authenticate: Basic` challenge.
    """

    def __init__(self, code: str, message: str, *, status: int = 400, basic: bool = False) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.basic = basic
