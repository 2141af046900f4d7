"""The MCP process as a FastAPI application, and what it is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import orjson
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_core.accounts.authentication import Authenticator, PolicyView
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.records import AccountRecord
from gateway_core.admission.admission import Admission
from gateway_core.admission.intake import Intake
from gateway_core.admission.rates import FreeRateLimiter, RateLimiter
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.errors import NotFound
from gateway_core.api.ids import IdMint
from gateway_core.api.key import GatewayKey
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.api.task import GatewayTask
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.redis_counters import Counters
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.kube.api_health import ApiHealth
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.informer import Cache
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth.discovery import (
    CACHE_CONTROL,
    ENDPOINT_PATHS,
    SERVER_PATHS,
    describe_resources,
    describe_server,
)
from gateway_core.oauth.tokens import TokenMint
from gateway_core.oauth.verification import TokenVerifier
from gateway_core.observability.tracing import NO_TRACER, Tracer
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.storage.objects import ObjectStore
from gateway_core.tasks.cancellation import TaskCancellation
from gateway_core.tasks.creation import TaskRecorder, TaskService
from gateway_core.tasks.finder import TaskFinder
from gateway_core.tasks.history import TaskHistory
from gateway_mcpserver.authentication import McpAuthenticator
from gateway_mcpserver.cancellations import Cancellations
from gateway_mcpserver.endpoint import McpEndpoint
from gateway_mcpserver.failpoints import Failpoints
from gateway_mcpserver.metrics import McpMetrics
from gateway_mcpserver.protocol.addresses import AddressRules
from gateway_mcpserver.protocol.messages import RpcError, to_response
from gateway_mcpserver.protocol.subscriptions import Subscriptions
from gateway_mcpserver.refusals import RefusalRenderer
from gateway_mcpserver.settings import McpSettings
from gateway_mcpserver.tables import Tables
from gateway_mcpserver.tools.account import CheckBalance
from gateway_mcpserver.tools.creation import CreateTask
from gateway_mcpserver.tools.models import (
    AllowedModels,
    CheckPricing,
    GetModelInfo,
    ListActions,
    ListModels,
)
from gateway_mcpserver.tools.prompts import SearchPrompts
from gateway_mcpserver.tools.task_waits import TaskWaiter
from gateway_mcpserver.tools.tasks import CancelTask, GetTask, ListTasks
from gateway_mcpserver.tools.toolbox import Toolbox
from gateway_mcpserver.waiting import Waits
from gateway_web.application import EndpointRoute, create_application
from gateway_web.context import Drain, get_context
from gateway_web.errors import Dialect, choose_dialect
from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.middleware.bodies import BodyMemory
from gateway_web.middleware.observers import AccessLog, RequestSpans
from gateway_web.middleware.requests import Observers
from gateway_web.responses import JSON, Response, send_empty, send_response
from gateway_web.server import HealthApp, expose

_BODY_BYTES = 96 * 1024 * 1024
_ACCOUNT_BODY_BYTES = 48 * 1024 * 1024
_READS_PER_MINUTE = 6000
"""Calls of tools that read, by account: as many as 500 clients that poll every 5 s make."""
_ANY_METHOD = (b"access-control-allow-methods", b"GET, HEAD, OPTIONS")
_ALLOWED_HEADERS = (
    b"access-control-allow-headers",
    b"Authorization, Content-Type, MCP-Protocol-Version",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpParts:
    """Dependencies of the MCP process, which `compose` opens and tests replace by fakes."""

    settings: McpSettings
    kube: KubernetesClient
    counters: Counters
    store: ObjectStore
    tables: Tables
    rebuilder: Rebuilder
    key_use: KeyUse
    id_key: bytes
    peppers: Mapping[int, bytes]
    intake: Intake
    cancellations: Cancellations
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    access: AccessLog = field(default_factory=AccessLog)
    tracer: Tracer = NO_TRACER
    connections: ConnectionTable = field(
        default_factory=lambda: ConnectionTable(ConnectionBounds())
    )
    is_prepared: Callable[[], bool] = lambda: True


def create_app(parts: McpParts, drain: Drain) -> FastAPI:
    """Return the application; its waits end when `drain` begins."""
    settings = parts.settings
    metrics = McpMetrics(parts.registry, partial(_classify, parts.tables.accounts))
    rules = AddressRules(
        settings.mcp_url,
        settings.base_url,
        settings.mcp_allowed_origins,
        settings.mcp_allowed_hosts,
    )
    endpoint = _build_endpoint(parts, rules, metrics, drain)
    spans = RequestSpans(parts.tracer, settings.client_traces)
    app = create_application(
        RefusalRenderer(settings.mcp_url).render,
        [Middleware(HostCheck, rules=rules)],
        observers=Observers(parts.access, metrics, spans),
        bounds=settings.connection_bounds,
        drain=drain,
        memory=BodyMemory(_BODY_BYTES, _ACCOUNT_BODY_BYTES, most_counted=_ACCOUNT_BODY_BYTES),
    )
    app.router.routes += [EndpointRoute(None, path, endpoint) for path in ENDPOINT_PATHS]
    app.router.routes += _list_discovery(settings)
    app.router.default = _refuse_path
    return app


def create_health_app(parts: McpParts, drain: Drain) -> ASGIApp:
    """Probes and metrics, for a port that clients do not reach."""
    return HealthApp(
        lambda: not drain.begun and parts.tables.synced and parts.is_prepared(),
        partial(expose, parts.registry) if parts.settings.metrics_enabled else None,
    )


def _build_endpoint(
    parts: McpParts, rules: AddressRules, metrics: McpMetrics, drain: Drain
) -> McpEndpoint:
    settings, kube, tables = parts.settings, parts.kube, parts.tables
    mint, catalog = IdMint(parts.id_key), CatalogView(tables.models)
    failpoints = Failpoints(settings.failpoints)
    accounts = ReadThrough(tables.accounts, kube, GatewayAccount.plural)
    users = ReadThrough(tables.users, kube, GatewayUser.plural)
    keys = ReadThrough(tables.keys, kube, GatewayKey.plural)
    note_use = parts.key_use.note
    authenticator = Authenticator(keys, accounts, users, parts.peppers, note_use=note_use)
    verifier = TokenVerifier(
        ReadThrough(tables.grants, kube, GatewayGrant.plural),
        ReadThrough(tables.clients, kube, GatewayOAuthClient.plural),
        accounts,
        users,
        TokenMint(parts.id_key),
        parts.peppers,
        note_use=note_use,
    )
    limiter = RateLimiter(parts.counters, parts.rebuilder.rebuild, replicas=settings.replicas)
    policies = PolicyView(tables.keys, tables.guardrails, kube)
    admission = Admission(authenticator, policies, limiter, failpoints, parts.intake)
    fresh = ReadThrough(tables.tasks, kube, GatewayTask.plural)
    health = ApiHealth(kube)
    finder = TaskFinder(tables.tasks, fresh, kube, parts.store, mint, health)
    tasks = TaskService(
        admission=admission,
        finder=finder,
        recorder=TaskRecorder(kube, health),
        tasks=tables.tasks,
        store=parts.store,
        mint=mint,
        failpoints=failpoints,
    )
    addresses = AddressPolicy(settings.callback_allowed_cidrs, settings.denied_cidrs)
    models = AllowedModels(catalog, policies)
    tools = Toolbox(
        (
            ListModels(models),
            GetModelInfo(models),
            ListActions(models),
            CheckPricing(models),
            SearchPrompts(tables.prompts),
            CreateTask(
                catalog,
                admission,
                tasks,
                finder,
                addresses,
                most_seconds=settings.mcp_wait_seconds,
            ),
            GetTask(finder),
            ListTasks(TaskHistory(tables.task_rows, tables.open_tasks, kube, parts.store), finder),
            CancelTask(TaskCancellation(finder, kube)),
            CheckBalance(limiter),
        ),
        FreeRateLimiter(parts.counters, {"tools": _READS_PER_MINUTE}, replicas=settings.replicas),
        metrics,
    )
    waits = Waits(
        tables.tasks,
        most=settings.mcp_max_concurrent_waits,
        per_account=settings.mcp_max_account_waits,
    )
    metrics.follow(lambda: len(waits))
    parts.cancellations.subscribe(waits.cancel)
    subscriptions = Subscriptions()
    drain.subscribe(waits.end_all)
    drain.subscribe(subscriptions.end_all)
    waiter = TaskWaiter(waits, finder, tables.tasks, metrics)
    identity = McpAuthenticator(authenticator, verifier, settings.mcp_url)
    return McpEndpoint(rules, identity, tools, waiter, parts.cancellations, subscriptions, metrics)


async def _refuse_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a path that is not served: clients are often given the address without `/mcp`."""
    is_document = choose_dialect(scope) is Dialect.OAUTH
    hint = "." if is_document else f": the endpoint for MCP clients is {ENDPOINT_PATHS[0]}."
    raise NotFound(f"Not found{hint}")


class HostCheck:
    """Middleware that refuses requests for another host, whatever their path (§10.1)."""

    def __init__(self, app: ASGIApp, rules: AddressRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request for this host."""
        try:
            self._rules.check_host(scope["headers"])
        except RpcError as error:
            await send_response(get_context(scope).sender, to_response(None, error))
        else:
            await self._app(scope, receive, send)


def _list_discovery(settings: McpSettings) -> list[BaseRoute]:
    """Routes of the discovery documents (contract §10.4)."""
    base_url, mcp_url = settings.base_url, settings.mcp_url
    registration, documents = settings.oauth_registration, settings.oauth_documents
    server = describe_server(base_url, registration=registration, documents=documents)
    shown = (
        *describe_resources(base_url, mcp_url),
        *((path, server) for path in SERVER_PATHS),
    )
    return [
        EndpointRoute(method, path, partial(show, path, _cacheable(document)))
        for path, document in shown
        for method, show in (("GET", _show_document), ("OPTIONS", _allow_any))
    ]


async def _show_document(
    path: str, document: Response, scope: Scope, receive: Receive, send: Send
) -> None:
    context = get_context(scope)
    context.route, context.template = "oauth_discovery", path
    await send_response(send, document)


async def _allow_any(
    path: str, document: Response, scope: Scope, receive: Receive, send: Send
) -> None:
    context = get_context(scope)
    context.route, context.template = "oauth_discovery", path
    await send_empty(send, 204, (_ANY_METHOD, _ALLOWED_HEADERS))


def _cacheable(document: object) -> Response:
    headers = (JSON, (b"cache-control", CACHE_CONTROL.encode()))
    return Response(200, orjson.dumps(document), headers)


def _classify(accounts: Cache[AccountRecord], name: str) -> str:
    """Return the class of an account for metrics, which may not have its name."""
    account = accounts.get(name)
    return "unlimited" if account is not None and account.unlimited else "funded"
