"""Checks of the caller before the body is read, in the order of contract §0.9.

Route and method, maintenance, credential, class and role, free rate; only then a body is read. An
endpoint declares what it requires by `requires`, and `routes.GatewayRoute` checks it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from starlette.types import Scope

from gateway_apiserver.surfaces.validation import read_idempotency_key
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access, Authorizer
from gateway_web.context import RequestContext, get_context

T = TypeVar("T")
_REPLAYED = "idempotent-replayed"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_PAID = Access(Act.CREATE)
"""The requirements of operations that pass `admission`, which checks the rest."""


def requires(access: Access | None, label: str) -> Callable[[Endpoint], Endpoint]:
    """Declare what an endpoint requires of its caller; stands below the router's decorator.

    `label` names the operation in metrics, its surface first: `files_list`. Without `access`
    anybody may call it.
    """

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.access, endpoint.label = access, label  # type: ignore[attr-defined]
        return endpoint

    return mark


async def authorize(scope: Scope, access: Access | None) -> Principal | None:
    """Return the caller, None where a call without a credential passes.

    A page of the console calls for its signed-in user. Raises as `Authorizer`.
    """
    context, authorizer = get_context(scope), _find_authorizer(scope)
    if context.caller is not None:
        counts = scope["method"] != "GET"
        await authorizer.authorize_session(context.caller, context, access or _PAID, counts=counts)
        return context.caller
    if access is None:
        return None
    return await authorizer.authorize(scope["headers"], context, access)


def _find_authorizer(scope: Scope) -> Authorizer:
    authorizer: Authorizer = scope["app"].state.authorizer
    return authorizer


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an operation, and the context of the request."""

    principal: Principal
    context: RequestContext

    @property
    def account(self) -> str:
        """Name of the caller's account."""
        return self.principal.account.name

    @property
    def path(self) -> str:
        """The path of the operation, with its parameters named."""
        return self.context.template or ""


async def get_caller(request: Request) -> Caller:
    """Return the caller of the operation."""
    principal: Principal | None = request.state.caller
    assert principal is not None, "the operation requires a credential"
    return Caller(principal, get_context(request.scope))


async def get_idempotency_key(request: Request) -> str | None:
    """Return the Idempotency-Key (§2.2). InvalidRequest."""
    return read_idempotency_key(request.scope["headers"])


def provided(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return a dependency: the service of this class, which `create_app` has made."""

    async def find(request: Request) -> T:
        service: T = request.app.state.services[kind]
        return service

    return find


ByCaller = Annotated[Caller, Depends(get_caller)]
IdempotencyKey = Annotated[str | None, Depends(get_idempotency_key)]


def warn(response: Response, text: str) -> None:
    """Add a warning to a response that is none the less a success, as the Kubernetes API does."""
    if text:
        # an entry is printable ASCII, and may hold what ends a quoted string
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers["Warning"] = f'299 - "{quoted}"'


def mark_replayed(response: Response, *, is_replayed: bool) -> None:
    """Say that an earlier call with the same Idempotency-Key did this (§2.2)."""
    if is_replayed:
        response.headers[_REPLAYED] = "true"
