"""`/api/v1/{service}/{action}`, and below it `/{task_id}` and `/{task_id}/cancel` (contract §2).

The catalog decides which of these paths are served: a `GatewayModel` that is applied is served at
once. They stand first in the table, since polls are most of what the gateway is asked.
"""

from collections.abc import Iterable, Mapping

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from gateway_apiserver.endpoints import Call, CallRoute, Docs, Handler
from gateway_apiserver.surfaces.models import Request
from gateway_apiserver.surfaces.validation import read_idempotency_key, validate
from gateway_core.accounts.authentication import Authenticator
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Admission, Payer
from gateway_core.api.errors import (
    KeyReused,
    NotFound,
    OutcomeUnknown,
    Unauthenticated,
)
from gateway_core.api.model import RESERVED_SERVICES
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.tasks.cancellation import TaskCancellation
from gateway_core.tasks.creation import Acceptance, PreparedTask, TaskService
from gateway_core.tasks.drafts import draft_task
from gateway_core.tasks.finder import TaskFinder, unknown_task
from gateway_core.tasks.operations import MAX_BODY_BYTES, OPERATIONS, Operation
from gateway_core.tasks.rendering import render_processing
from gateway_core.tasks.schemas import describe_body, example_body
from gateway_core.tasks.validation import parse_body
from gateway_web.middleware.bodies import read_json_body, read_optional_json_body
from gateway_web.responses import JSON, NO_STORE, Response

CREATE_PATH = "/api/v1/{service}/{action}"
READ_PATH = CREATE_PATH + "/{task_id}"
CANCEL_PATH = READ_PATH + "/cancel"


class NoFields(Request):
    """A body that says nothing: an empty object, or none."""


class _TaskRoute(CallRoute):
    """A path that exists while some model of the catalog serves it.

    Tasks of a model that has left the catalog can still be read by their account.
    """

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        label: str,
        catalog: CatalogView,
        *,
        permits_loopback: bool = False,
        paid: bool = False,
    ) -> None:
        super().__init__(method, path, handler, label, paid=paid)
        self._catalog = catalog
        self._permits_loopback = permits_loopback

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the path is served."""
        match, child = super().matches(scope)
        if match is Match.NONE:
            return match, child
        params: dict[str, str] = child["path_params"]
        if params["service"] in RESERVED_SERVICES:
            return Match.NONE, {}
        child["operation"] = self._catalog.current.find_task_operation(
            params["service"], params["action"]
        )
        if child["operation"] is None and (self.path == CREATE_PATH or match is Match.PARTIAL):
            return Match.NONE, {}
        return match, child

    def describe(self, catalog: Catalog) -> Iterable[tuple[str, Docs]]:
        """Return the path of each operation that some model serves."""
        for (service, action), models in sorted(catalog.models.items()):
            if OPERATIONS[action].makes_tasks:
                path = self.path.replace("{service}", service).replace("{action}", action)
                yield path, self._describe(OPERATIONS[action], service, models)

    def _describe(self, operation: Operation, service: str, models: Mapping[str, Model]) -> Docs:
        suffix = f"{service}_{operation.action}"
        forms = {"oneOf": ["TaskProcessing", "TaskCompleted", "TaskFailed"]}
        if self.path == READ_PATH:
            return Docs(f"show_{suffix}", "Show the state and result of a task", forms)
        if self.path == CANCEL_PATH:
            name, summary = f"cancel_{suffix}", "End a task early"
            return Docs(name, summary, forms, also=(400, 409, 413, 415, 504))
        read = {"operationId": f"show_{suffix}", "parameters": {"task_id": "$response.body#/id"}}
        return Docs(
            f"create_{suffix}",
            operation.summary,
            {"oneOf": ["TaskAccepted"]},
            status=202,
            body=describe_body(operation, models, loopback_callbacks=self._permits_loopback),
            makes="task",
            also=(402,),
            example=example_body(operation, models),
            responses={"202": {"links": {"task": read}}},
        )


class TaskRoutes:
    """Creates and polls."""

    def __init__(
        self,
        catalog: CatalogView,
        admission: Admission,
        tasks: TaskService,
        authenticator: Authenticator,
        finder: TaskFinder,
        addresses: AddressPolicy,
        cancellation: TaskCancellation,
        task_id_header: str,
    ) -> None:
        self._cancellation = cancellation
        self._catalog = catalog
        self._admission = admission
        self._tasks = tasks
        self._authenticator = authenticator
        self._finder = finder
        self._addresses = addresses
        self._task_id_header = task_id_header.lower().encode()

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        catalog, loopback = self._catalog, self._addresses.permits("127.0.0.1")
        routes.append(_TaskRoute("GET", READ_PATH, self.show, "task_read", catalog))
        routes.append(_TaskRoute("POST", CANCEL_PATH, self.cancel, "task_cancel", catalog))
        routes.append(
            _TaskRoute(
                "POST",
                CREATE_PATH,
                self.create,
                "task_create",
                catalog,
                permits_loopback=loopback,
                paid=True,
            )
        )

    async def create(self, call: Call) -> Response:
        """Make a task, or find the one of an earlier call with the Idempotency-Key."""
        context = call.context
        payer = await self._admission.authenticate(call.headers, context)
        try:
            made = await self._tasks.create(payer, context, self._prepare(call, payer))
        except (KeyReused, OutcomeUnknown):
            if context.task is not None:
                context.headers.append((self._task_id_header, context.task.encode()))
            raise
        context.outcome = "replayed" if made.replayed else "created"
        service, operation = call.scope["path_params"]["service"], call.scope["operation"]
        return _accept(service, operation.action, made)

    async def _prepare(self, call: Call, payer: Payer) -> PreparedTask:
        service: str = call.scope["path_params"]["service"]
        operation: Operation = call.scope["operation"]
        raw = await read_json_body(call.headers, call.receive, MAX_BODY_BYTES)
        draft = draft_task(self._catalog.current, operation, service, raw, self._addresses)
        key = read_idempotency_key(call.headers)
        return await self._tasks.prepare(payer, call.context, service, draft, key)

    async def show(self, call: Call) -> Response:
        """Return a task as it is."""
        params = call.scope["path_params"]
        account = await self._identify(call)
        task = await self._finder.find(account, params["task_id"])
        if task.service != params["service"] or task.action != params["action"]:
            raise unknown_task()
        call.context.task = params["task_id"]
        return Response(200, task.terminal or render_processing(params["task_id"]))

    async def cancel(self, call: Call) -> Response:
        """Cancel a task; processing until the provider has stopped its job. Idempotent."""
        account = await self._identify(call, Act.CREATE)
        if call.has_body:
            raw = await read_optional_json_body(call.headers, call.receive, MAX_BODY_BYTES)
            validate(NoFields, parse_body(raw) if raw.strip() else {})
        params = call.scope["path_params"]
        task_id = params["task_id"]
        task = await self._cancellation.cancel(
            account, task_id, params["service"], params["action"]
        )
        call.context.task = task_id
        return Response(200, task.terminal or render_processing(task_id))

    async def _identify(self, call: Call, act: Act = Act.READ) -> str:
        """Return the caller's account.

        Without a credential a path that is not served is no route.
        """
        try:
            caller = await self._authenticator.authenticate(call.headers, act)
        except Unauthenticated:
            if call.scope["operation"] is not None:
                raise
            raise NotFound("Not found.") from None
        call.context.account = caller.account.name
        return caller.account.name


def _accept(service: str, action: str, made: Acceptance) -> Response:
    flag = b',"task_replayed":true' if made.replayed else b""
    body = b'{"id":"%b","status":"processing"%b}' % (made.task_id.encode(), flag)
    location = f"/api/v1/{service}/{action}/{made.task_id}".encode()
    return Response(202, body, (JSON, NO_STORE, (b"location", location)))
