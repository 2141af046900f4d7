"""State of one call, from its authentication to its response, in any process."""

from gateway_core.accounts.authentication import Principal
from gateway_core.api.errors import RateState
from gateway_core.observability.tracing import NO_SPAN, Span


class CallContext:
    """What admission and the task service read and note of a call.

    `account` and `task` are set as soon as they are known; `task` is an id as clients have it.
    `rate` is the state of the account's window, for the rate headers (contract §12.2). `caller` is
    set where the process has authenticated by other means than an API key, and checked the role.
    """

    __slots__ = ("account", "caller", "rate", "request_id", "span", "task")

    def __init__(self, request_id: str, span: Span = NO_SPAN) -> None:
        self.request_id = request_id
        self.span = span
        self.account: str | None = None
        self.caller: Principal | None = None
        self.task: str | None = None
        self.rate: RateState | None = None
