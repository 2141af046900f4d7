"""The API as a FastAPI application: its routes, and what is on the way to each.

Made by `__main__` of what `compose` puts together, and by tests of fakes.
"""

from collections.abc import Callable, Sequence
from functools import partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from gateway_apiserver.documents import ApiDocument
from gateway_apiserver.errors import hide_response, refuse_invalid
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.metrics import ApiMetrics
from gateway_apiserver.missing_paths import MissingPaths
from gateway_apiserver.parts import ApiParts
from gateway_apiserver.routers import (
    account,
    batches,
    files,
    guardrails,
    keys,
    members,
    temporary_files,
    uploads,
    usage,
    webhooks,
)
from gateway_apiserver.routers import prices as prices_router
from gateway_apiserver.routers import tasks as tasks_router
from gateway_apiserver.surfaces.batches.creation import BatchCreation
from gateway_apiserver.surfaces.batches.service import BatchService
from gateway_apiserver.surfaces.console.surface import add_console
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.files.surface import add_storage
from gateway_apiserver.surfaces.llm.cached import CachedCalls
from gateway_apiserver.surfaces.llm.call_headers import describe_headers, make_call_headers
from gateway_apiserver.surfaces.llm.calls import LlmCalls
from gateway_apiserver.surfaces.llm.linked_media import LinkedMedia
from gateway_apiserver.surfaces.llm.models import ModelLists
from gateway_apiserver.surfaces.llm.prompt_files import PromptFiles
from gateway_apiserver.surfaces.llm.routes import LlmRoutes
from gateway_apiserver.surfaces.management.services import make_services
from gateway_apiserver.surfaces.management.usage import UsageReports
from gateway_apiserver.surfaces.moderations import ModerationRoutes
from gateway_apiserver.surfaces.notices import NoticeReceiver
from gateway_apiserver.surfaces.operations import (
    PublicSender,
    list_document_pages,
    list_operational_routes,
)
from gateway_apiserver.surfaces.pages.surface import add_sign_in
from gateway_apiserver.surfaces.pricing import Prices
from gateway_apiserver.surfaces.tasks import TaskRoutes
from gateway_core.accounts.authentication import Authenticator, PolicyView
from gateway_core.accounts.records import AccountRecord, OwnerIndex
from gateway_core.admission.admission import Admission, Authorizer
from gateway_core.admission.intake import Intake
from gateway_core.admission.rates import FreeRateLimiter, RateLimiter
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import IdMint
from gateway_core.api.key import GatewayKey
from gateway_core.api.task import GatewayTask
from gateway_core.billing.counters import FreeRate
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.kube.api_health import ApiHealth
from gateway_core.kube.informer import Cache
from gateway_core.kube.read_through import ReadThrough
from gateway_core.kube.repository import ListLimiter, Repository
from gateway_core.llm.metrics import LlmMetrics
from gateway_core.llm.service import LlmService
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.providers.moderators import Moderators
from gateway_core.providers.notices import NoticeSigner
from gateway_core.providers.offers import Offers
from gateway_core.storage.limits import DownloadBounds, Downloads
from gateway_core.tasks.cancellation import TaskCancellation
from gateway_core.tasks.creation import TaskRecorder, TaskService
from gateway_core.tasks.finder import TaskFinder
from gateway_core.tasks.history import TaskHistory
from gateway_web.application import add_error_handler, create_application
from gateway_web.context import Drain
from gateway_web.middleware.cors import CrossOriginMiddleware
from gateway_web.middleware.metrics import ConnectionMetrics
from gateway_web.middleware.observers import RequestSpans
from gateway_web.middleware.requests import Observers
from gateway_web.server import HealthApp, expose

PUBLIC_BOUNDS = DownloadBounds(downloads=256, per_address=128, per_link=256)
"""Of what is read without a key: such readers take no places of accounts."""
CROSS_ORIGIN = ("/v1/", "/v1beta/", "/api/v1/")
"""Paths that pages of allowed origins may call."""


def create_app(parts: ApiParts, drain: Drain | None = None) -> FastAPI:
    """Return the whole API on these parts; it is not ready any more once `drain` has begun."""
    draining = drain or Drain()
    intake = parts.intake or Intake(maintenance=parts.settings.maintenance)
    metrics = ApiMetrics(
        parts.registry,
        partial(_classify, parts.tables.accounts),
        lambda: parts.calls.unstored,
        parts.usable_providers,
        lambda: intake.stops,
    )
    spans = RequestSpans(parts.tracer, parts.settings.client_traces)
    app = create_application(
        observers=Observers(parts.access, metrics, spans),
        bounds=parts.settings.connection_bounds,
        drain=draining,
        inner=_list_middlewares(parts.settings.cors_allowed_origins),
    )
    add_error_handler(app, RequestValidationError, refuse_invalid)
    add_error_handler(app, ResponseValidationError, hide_response)
    app.state.metrics = metrics
    _add_routes(app, parts, intake, metrics, build_readiness(parts, draining))
    return app


def _list_middlewares(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware between the outermost one and the routes."""
    if not origins:
        return []
    return [Middleware(CrossOriginMiddleware, origins=origins, prefixes=CROSS_ORIGIN)]


def _add_routes(
    app: FastAPI,
    parts: ApiParts,
    intake: Intake,
    metrics: ApiMetrics,
    is_ready: Callable[[], bool],
) -> None:
    """Add all routes, in the order in which paths are compared."""
    settings, kube = parts.settings, parts.kube
    mint, catalog = IdMint(parts.id_key), CatalogView(parts.tables.models)
    downloads = Downloads(settings.download_bounds)
    parts.registry.register(ConnectionMetrics(parts.connections, downloads))
    failpoints = Failpoints(settings.failpoints)
    authenticator = Authenticator(
        ReadThrough(parts.tables.keys, kube, GatewayKey.plural),
        ReadThrough(parts.tables.accounts, kube, GatewayAccount.plural),
        ReadThrough(parts.tables.users, kube, GatewayUser.plural),
        parts.peppers,
        note_use=parts.key_use.note,
    )
    limiter = RateLimiter(
        parts.counters,
        partial(parts.calls.rebuild, rebuild=parts.rebuilder.rebuild),
        leases=parts.calls.leases,
        replicas=settings.counting_processes,
    )
    policies = PolicyView(parts.tables.keys, parts.tables.guardrails, kube)
    admission = Admission(
        authenticator,
        policies,
        limiter,
        failpoints,
        intake,
    )
    free_rates: dict[FreeRate, int] = {
        "management": settings.management_calls_per_minute,
        "storage": settings.file_creates_per_minute,
    }
    app.state.authorizer = authorizer = Authorizer(
        authenticator,
        FreeRateLimiter(parts.counters, free_rates, replicas=settings.replicas),
        intake,
        permits_anonymous=settings.pricing_anonymous,
    )
    MissingPaths(app, lambda: catalog.current).install()
    routes = app.router.routes
    addresses = AddressPolicy(settings.callback_allowed_cidrs, settings.denied_cidrs)
    finder = TaskFinder(
        parts.tables.tasks,
        ReadThrough(parts.tables.tasks, kube, GatewayTask.plural),
        kube,
        parts.store,
        mint,
        health := ApiHealth(kube),
    )
    tasks = TaskService(
        admission=admission,
        finder=finder,
        recorder=TaskRecorder(kube, health),
        tasks=parts.tables.tasks,
        store=parts.store,
        mint=mint,
        failpoints=failpoints,
    )
    # polls are most of the requests, so their path is compared first
    TaskRoutes(
        catalog,
        admission,
        tasks,
        authenticator,
        finder,
        addresses,
        cancellation := TaskCancellation(finder, kube),
        settings.task_id_header,
    ).add_to(routes)
    ModerationRoutes(
        admission,
        Moderators(lambda: catalog.current, parts.moderations),
        parts.calls,
        parts.health,
        default_model=settings.moderation_default_model,
    ).add_to(routes)
    file_finder = FileFinder(kube, parts.tables.files, parts.storage, mint)
    llm = LlmService(
        lambda: catalog.current,
        parts.llm_providers,
        parts.calls,
        LlmMetrics(parts.registry, parts.health),
        LinkedMedia(parts.fetcher).inline,
    )
    LlmRoutes(
        LlmCalls(
            admission,
            llm,
            PromptFiles(file_finder, parts.store),
            headers := make_call_headers(settings.llm_headers),
            None if parts.answers is None else CachedCalls(parts.answers, llm, headers),
        ),
        ModelLists(lambda: catalog.current),
        authorizer,
        policies,
        describe_headers(settings.llm_headers, has_cache=parts.answers is not None),
    ).add_to(routes)
    repository = Repository(parts.kube, mint, {GatewayKey.plural: parts.tables.keys}, ListLimiter())
    same = authenticator.check_same
    services = add_storage(
        routes, parts, repository, file_finder, mint, metrics, failpoints, downloads, same
    )
    most_open = settings.open_batches_per_account
    BatchCreation(admission, repository, file_finder, mint, most_open=most_open).add_to(routes)
    public = PublicSender(Downloads(PUBLIC_BOUNDS))
    prices = Prices(catalog, addresses, public)
    routes += prices.list_routes()
    tables = parts.tables
    history = TaskHistory(tables.task_rows, tables.open_tasks, kube, parts.store)
    services |= {
        BatchService: BatchService(repository),
        OwnerIndex: OwnerIndex(parts.tables.users),
        RateLimiter: limiter,
        Prices: prices,
        TaskFinder: finder,
        TaskHistory: history,
        Offers: (offers := Offers(parts.tables.models)),
    }
    app.state.services = services
    services |= make_services(parts, limiter, mint, addresses)
    for router in (
        account.router,
        batches.router,
        files.router,
        guardrails.router,
        keys.router,
        members.router,
        prices_router.router,
        tasks_router.router,
        temporary_files.router,
        uploads.creation,
        uploads.router,
        usage.router,
        webhooks.router,
    ):
        app.include_router(router)
    pages = add_sign_in(routes, parts, mint, intake, failpoints)
    NoticeReceiver(NoticeSigner(parts.id_key), parts.notices).add_to(routes)
    document = ApiDocument(
        app,
        catalog,
        settings.base_url,
        task_id_header=settings.task_id_header,
        permits_anonymous=settings.pricing_anonymous,
        bodies={"quotePrice": prices.describe_quote},
    )
    routes += list_operational_routes(is_ready, document, public)
    if settings.docs_enabled:
        routes += list_document_pages(public)
    app.openapi = lambda: document.build(catalog.current)  # type: ignore[method-assign]
    reports = services[UsageReports]
    task_services = finder, history, cancellation
    add_console(
        app,
        parts,
        *pages,
        repository,
        task_services,
        file_finder,
        reports,
        limiter,
        offers,
        is_ready,
        failpoints,
    )


def build_readiness(parts: ApiParts, drain: Drain) -> Callable[[], bool]:
    """Return whether the process can serve. A dependency's later failure does not count."""
    return lambda: not drain.begun and parts.tables.synced and parts.is_prepared()


def create_health_app(parts: ApiParts, drain: Drain) -> ASGIApp:
    """Probes and metrics of the API process, for a port that clients do not reach."""
    return HealthApp(
        build_readiness(parts, drain),
        partial(expose, parts.registry) if parts.settings.metrics_enabled else None,
    )


def _classify(accounts: Cache[AccountRecord], name: str) -> str:
    """Return the class of an account for metrics, which may not have its name."""
    account = accounts.get(name)
    return "unlimited" if account is not None and account.unlimited else "funded"
