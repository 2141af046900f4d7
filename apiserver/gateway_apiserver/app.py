"""The API as one ASGI application: what is on the way to each route, and nothing of the routes.

Made by `__main__` of what `compose` puts together, and by tests of fakes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_apiserver.admission.admission import Admission
from gateway_apiserver.admission.authentication import Authenticator
from gateway_apiserver.admission.free_rates import FreeRateLimiter
from gateway_apiserver.admission.intake import Intake
from gateway_apiserver.admission.key_use import KeyUse
from gateway_apiserver.admission.live_calls import LiveCalls
from gateway_apiserver.admission.policies import PolicyView
from gateway_apiserver.admission.projections import (
    AccountRecord,
    KeyRecord,
    OwnerIndex,
    TaskRecord,
    UserRecord,
)
from gateway_apiserver.admission.rates import RateLimiter
from gateway_apiserver.admission.read_through import ReadThrough
from gateway_apiserver.catalog import CatalogView
from gateway_apiserver.concurrency import ListLimiter
from gateway_apiserver.context import get_context
from gateway_apiserver.errors import choose_dialect, render_error, to_gateway_error
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.health import HealthApp
from gateway_apiserver.middleware.access_log import AccessLog
from gateway_apiserver.middleware.clients import ConnectionBounds
from gateway_apiserver.middleware.connections import ConnectionTable
from gateway_apiserver.middleware.downloads import DownloadBounds, Downloads
from gateway_apiserver.middleware.drain import Drain
from gateway_apiserver.middleware.metrics import ApiMetrics, ConnectionMetrics
from gateway_apiserver.middleware.requests import Observers, RequestMiddleware
from gateway_apiserver.middleware.tracing import RequestSpans
from gateway_apiserver.openapi.document import build_document
from gateway_apiserver.repository import Repository
from gateway_apiserver.settings import ApiSettings
from gateway_apiserver.surfaces.account import AccountRoutes
from gateway_apiserver.surfaces.batches.creation import BatchCreation
from gateway_apiserver.surfaces.batches.routes import BatchRoutes
from gateway_apiserver.surfaces.calls import Authorizer, CompatRoutes
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.management.assignments import AssignmentRoutes
from gateway_apiserver.surfaces.management.budgets import BudgetReader
from gateway_apiserver.surfaces.management.guardrails import GuardrailRoutes
from gateway_apiserver.surfaces.management.keys import KeyRoutes
from gateway_apiserver.surfaces.management.members import MemberRoutes
from gateway_apiserver.surfaces.management.quotas import KeyQuota
from gateway_apiserver.surfaces.management.routes import ManagementRoutes
from gateway_apiserver.surfaces.management.tombstones import RemovedObjects
from gateway_apiserver.surfaces.management.usage import UsageRoutes
from gateway_apiserver.surfaces.moderations import ModerationAdmission, ModerationRoutes
from gateway_apiserver.surfaces.notices import NoticeReceiver
from gateway_apiserver.surfaces.operations import build_operations_router
from gateway_apiserver.surfaces.pricing.routes import PricingRoutes
from gateway_apiserver.surfaces.storage import StoringRoutes
from gateway_apiserver.surfaces.tasks import TaskRoutes
from gateway_apiserver.tasks.api_health import ApiHealth
from gateway_apiserver.tasks.creation import TaskAdmission
from gateway_apiserver.tasks.finder import TaskFinder
from gateway_apiserver.tasks.recording import TaskRecorder
from gateway_core.accounts.guardrails import Guardrail
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.errors import GatewayError
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import IdMint
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import RESERVED_SERVICES, GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.task import GatewayTask
from gateway_core.billing.counters import Counters
from gateway_core.billing.ledger import Rebuilder
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.files.addresses import Sealer
from gateway_core.files.fetching import Fetcher
from gateway_core.files.files import FileRecord
from gateway_core.files.parts import PartLedger
from gateway_core.files.quota_counters import StorageLedger
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.records import FollowedTable, Records, Table
from gateway_core.observability.tracing import NO_TRACER, Tracer
from gateway_core.providers.moderators import Moderators
from gateway_core.providers.notices import NoticeSigner, NoticeSink
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import ModerationUpstream
from gateway_core.storage.objects import ObjectStore

PUBLIC_BOUNDS = DownloadBounds(downloads=256, per_address=128, per_link=256)
"""Of what is read without a key: such readers take no places of accounts."""
_TASKS = "/api/v1/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParts:
    """What the API is made of, apart from its own code. Tables are kept up by whoever made them.

    `notices` is None where providers are not to push, `intake` where only maintenance can stop
    creates; `usable_providers` are those the API calls.
    """

    settings: ApiSettings
    records: Records
    counters: Counters
    storage: StorageLedger
    parts: PartLedger
    store: ObjectStore
    fetcher: Fetcher
    sealer: Sealer
    keys: Table[KeyRecord]
    guardrails: Table[Guardrail]
    accounts: Table[AccountRecord]
    users: Table[UserRecord]
    models: Table[GatewayModel]
    providers: Table[GatewayProvider]
    tasks: Table[TaskRecord]
    files: FollowedTable[FileRecord]
    moderations: Providers[ModerationUpstream]
    rebuilder: Rebuilder
    calls: LiveCalls
    key_use: KeyUse
    id_key: bytes
    peppers: Mapping[int, bytes]
    notices: NoticeSink | None = None
    intake: Intake | None = None
    usable_providers: Callable[[], Mapping[str, bool]] = dict
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    access: AccessLog = field(default_factory=AccessLog)
    tracer: Tracer = NO_TRACER
    clock: Callable[[], float] = CLOCK.time
    """Unix seconds, by which the lives of files and uploads end."""
    connections: ConnectionTable = field(
        default_factory=lambda: ConnectionTable(ConnectionBounds())
    )
    """Client connections of the port that the API is served on."""
    is_prepared: Callable[[], bool] = lambda: True
    """Whether what only the first calls need has been got, or waited for long enough."""


def create_app(parts: ApiParts, departure: Drain | None = None) -> ASGIApp:
    """The whole API on these parts; it is not ready any more once `departure` has begun."""
    leaving = departure or Drain()
    intake = parts.intake or Intake(maintenance=parts.settings.maintenance)
    settings, records = parts.settings, parts.records
    mint, catalog = IdMint(parts.id_key), CatalogView(parts.models)
    metrics = ApiMetrics(
        parts.registry,
        partial(_classify, parts.accounts),
        lambda: parts.calls.unstored,
        parts.usable_providers,
        lambda: intake.stops,
    )
    authenticator = Authenticator(
        ReadThrough(parts.keys, records, GatewayKey.plural),
        ReadThrough(parts.accounts, records, GatewayAccount.plural),
        ReadThrough(parts.users, records, GatewayUser.plural),
        parts.peppers,
        note_use=parts.key_use.note,
    )
    addresses = AddressPolicy(settings.callback_allowed_cidrs, settings.denied_cidrs)
    rebuild = partial(parts.calls.rebuild, rebuild=parts.rebuilder.rebuild)
    gate = RateLimiter(parts.counters, rebuild, replicas=settings.replicas)
    pulse = ApiHealth(records)
    finder = TaskFinder(
        parts.tasks,
        ReadThrough(parts.tasks, records, GatewayTask.plural),
        records,
        parts.store,
        mint,
        pulse,
    )
    failpoints = Failpoints(settings.failpoints)
    entrance = Admission(
        authenticator,
        PolicyView(parts.keys, parts.guardrails, records),
        gate,
        failpoints,
        metrics,
        intake,
    )
    admission = TaskAdmission(
        entrance=entrance,
        catalog=catalog,
        finder=finder,
        recorder=TaskRecorder(records, pulse),
        tasks=parts.tasks,
        store=parts.store,
        mint=mint,
        addresses=addresses,
        task_id_header=settings.task_id_header,
        failpoints=failpoints,
    )
    others = _build_others()
    owners = OwnerIndex(parts.users)
    others.include_router(AccountRoutes(authenticator, owners, parts.counters, gate).router)
    public = Downloads(PUBLIC_BOUNDS)
    pricing = PricingRoutes(
        authenticator, catalog, addresses, public, anonymous=settings.pricing_anonymous
    )
    others.include_router(pricing.router)
    rates = FreeRateLimiter(
        parts.counters,
        {
            "management": settings.management_calls_per_minute,
            "storage": settings.file_creates_per_minute,
        },
        replicas=settings.replicas,
    )
    door = Authorizer(authenticator, rates, intake)
    downloads = Downloads(settings.download_bounds)
    storing = StoringRoutes(parts, door, mint, metrics, failpoints, downloads)
    others.include_router(storing.build_temporary().router)
    others.include_router(
        build_operations_router(
            lambda: not leaving.begun and _is_ready(parts),
            catalog,
            partial(
                build_document,
                base_url=settings.base_url,
                task_id_header=settings.task_id_header,
                loopback_callbacks=addresses.permits("127.0.0.1"),
                anonymous_prices=settings.pricing_anonymous,
                default_moderation=bool(settings.moderation_default_model),
            ),
            public,
        )
    )
    tasks = TaskRoutes(catalog, admission, authenticator, finder)
    notices = NoticeReceiver(NoticeSigner(parts.id_key), parts.notices)
    management = _build_management(parts, authenticator, rates, intake, gate, mint)
    spans = RequestSpans(parts.tracer, settings.client_traces)
    moderators = Moderators(lambda: catalog.current, parts.moderations)
    judges = ModerationAdmission(
        entrance,
        moderators,
        parts.calls,
        default_model=settings.moderation_default_model,
    )
    found = FileFinder(parts.records, parts.files, parts.storage, mint)
    files, uploads = storing.build_files(found), storing.build_uploads()
    judging = ModerationRoutes(judges)
    batches = _build_batches(parts, door, found, mint, entrance)
    compat = CompatRoutes(files.endpoints, uploads.endpoints, judging.endpoints, batches.endpoints)
    fork = _Fork(tasks, management, compat, notices, others)
    parts.registry.register(ConnectionMetrics(parts.connections, downloads))
    return RequestMiddleware(
        fork, Observers(parts.access, metrics, spans), settings.connection_bounds
    )


def create_health_app(parts: ApiParts, departure: Drain) -> ASGIApp:
    """Probes and metrics of the API process, for a port that clients do not reach."""
    return HealthApp(
        lambda: not departure.begun and _is_ready(parts),
        parts.registry if parts.settings.metrics_enabled else None,
    )


def _build_batches(
    parts: ApiParts, door: Authorizer, files: FileFinder, mint: IdMint, entrance: Admission
) -> BatchRoutes:
    holdings = Repository(parts.records, mint, {}, ListLimiter())
    creation = BatchCreation(
        entrance, holdings, files.find, mint, most_open=parts.settings.open_batches_per_account
    )
    return BatchRoutes(door, creation, holdings)


def _build_management(
    parts: ApiParts,
    authenticator: Authenticator,
    rates: FreeRateLimiter,
    intake: Intake,
    gate: RateLimiter,
    mint: IdMint,
) -> ManagementRoutes:
    tables = {GatewayKey.plural: parts.keys, GatewayGuardrail.plural: parts.guardrails}
    turns = ListLimiter()
    holdings = Repository(parts.records, mint, tables, turns)
    budgets = BudgetReader(parts.counters, gate)
    quota = KeyQuota(parts.keys, parts.settings.keys_per_account)
    most = parts.settings.guardrails_per_account
    tombstones = RemovedObjects(parts.store)
    return ManagementRoutes(
        authenticator,
        rates,
        KeyRoutes(
            holdings, tombstones, parts.users, parts.key_use, budgets, quota, mint, parts.peppers
        ),
        GuardrailRoutes(holdings, tombstones, budgets, mint, most),
        AssignmentRoutes(holdings),
        MemberRoutes(parts.users),
        UsageRoutes(parts.records, parts.store, turns),
        intake,
    )


def _classify(accounts: Table[AccountRecord], name: str) -> str:
    """The class of an account for metrics, which may not have its name."""
    account = accounts.get(name)
    return "unlimited" if account is not None and account.unlimited else "funded"


def _is_ready(parts: ApiParts) -> bool:
    """Whether every table has been read once. What is away later on makes no process dead."""
    tables = (
        parts.keys,
        parts.guardrails,
        parts.accounts,
        parts.users,
        parts.models,
        parts.providers,
        parts.tasks,
    )
    return all(table.synced for table in tables) and parts.is_prepared()


class _Fork:
    """Tasks, Platform Management, what is below `/v1`, notices and all else: a way for each."""

    def __init__(
        self,
        tasks: ASGIApp,
        management: ManagementRoutes,
        compat: CompatRoutes,
        notices: NoticeReceiver,
        others: ASGIApp,
    ) -> None:
        self._tasks = tasks
        self._management = management
        self._compat = compat
        self._notices = notices
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if self._notices.takes(path):
            await self._notices(scope, receive, send)
            return
        if self._management.takes(path):
            await self._management(scope, receive, send)
            return
        if self._compat.takes(path):
            await self._compat(scope, receive, send)
            return
        # of what is below /api/v1, only the gateway's own segments are no provider's
        is_task = path.startswith(_TASKS) and path.split("/", 4)[3] not in RESERVED_SERVICES
        await (self._tasks if is_task else self._others)(scope, receive, send)


def _build_others() -> FastAPI:
    """A FastAPI application whose errors all take the one way to their dialect."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for kind in (GatewayError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _render)
    return app


def _render(request: Request, error: Exception) -> Response:
    known = to_gateway_error(error, get_context(request.scope).request_id)
    answer = render_error(known, choose_dialect(request.scope))
    response = Response(answer.body, answer.status)
    response.raw_headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    return response
