"""`/api/v1/{service}/{action}` and `/api/v1/{service}/{action}/{task_id}` (contract §2.1, §2.3).

The routes are those of the catalog: a `GatewayModel` that is applied is served at once. Plain ASGI
and no framework between, since polls are most of what the gateway is asked.
"""

from starlette.types import Receive, Scope, Send

from gateway_apiserver.admission.authentication import Authenticator
from gateway_apiserver.catalog import CatalogView
from gateway_apiserver.context import RequestContext, get_context
from gateway_apiserver.responses import JSON, NO_STORE, Answer, send_answer
from gateway_apiserver.tasks.creation import TaskAdmission, TaskCall
from gateway_apiserver.tasks.finder import TaskFinder, unknown_task
from gateway_core.api.errors import MethodNotAllowed, NotFound, Unauthenticated
from gateway_core.tasks.rendering import render_processing

READ_METHODS = "GET, HEAD"
_CREATE = "/api/v1/{service}/{action}"
_READ = "/api/v1/{service}/{action}/{task_id}"


class TaskRoutes:
    """Both routes; the path has been found to start with `/api/v1/`."""

    def __init__(
        self,
        catalog: CatalogView,
        admission: TaskAdmission,
        authenticator: Authenticator,
        finder: TaskFinder,
    ) -> None:
        self._catalog = catalog
        self._admission = admission
        self._authenticator = authenticator
        self._finder = finder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        parts = scope["path"].split("/")
        if len(parts) == 6:
            await self._show(scope, send, parts[3], parts[4], parts[5])
        elif len(parts) == 5:
            await self._create(scope, receive, send, parts[3], parts[4])
        else:
            raise no_route()

    async def _create(
        self, scope: Scope, receive: Receive, send: Send, service: str, action: str
    ) -> None:
        operation = self._catalog.current.find_task_operation(service, action)
        if operation is None:
            raise no_route()
        if scope["method"] != "POST":
            raise MethodNotAllowed("POST")
        trace = get_context(scope)
        trace.route, trace.template = "task_create", _CREATE
        call = TaskCall(service, operation, scope["headers"], receive, trace)
        accepted = await self._admission.admit(call)
        task_id = accepted.task_id.encode()
        flag = b',"task_replayed":true' if accepted.replayed else b""
        body = b'{"id":"%b","status":"processing"%b}' % (task_id, flag)
        location = f"/api/v1/{service}/{action}/{accepted.task_id}".encode()
        await send_answer(send, Answer(202, body, (JSON, NO_STORE, (b"location", location))))

    async def _show(
        self, scope: Scope, send: Send, service: str, action: str, wire_id: str
    ) -> None:
        served = self._catalog.current.find_task_operation(service, action) is not None
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed(READ_METHODS) if served and wire_id else no_route()
        if not wire_id:
            raise no_route()
        trace = get_context(scope)
        trace.route, trace.template = "task_read", _READ
        account = await self._identify(scope, trace, served)
        task = await self._finder.find(account, wire_id)
        if task.service != service or task.action != action:
            raise unknown_task()
        trace.task = wire_id
        body = task.terminal
        if body is None:
            body = render_processing(wire_id)
        await send_answer(send, Answer(200, body), with_body=scope["method"] == "GET")

    async def _identify(self, scope: Scope, trace: RequestContext, served: bool) -> str:
        """The caller's account.

        Tasks of a model that has left the catalog can still be read; to anybody else its path
        is no route.
        """
        try:
            caller = await self._authenticator.authenticate(scope["headers"])
        except Unauthenticated:
            if served:
                raise
            raise no_route() from None
        trace.account = caller.account.name
        return caller.account.name


def no_route() -> NotFound:
    """The one 404 for paths that are not served."""
    return NotFound("Not found.")
