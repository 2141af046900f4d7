"""The console's pages, put together."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from fastapi import FastAPI

from gateway_apiserver.endpoints import Call
from gateway_apiserver.parts import ApiParts
from gateway_apiserver.surfaces.console.audit import AuditPage
from gateway_apiserver.surfaces.console.guardrails import GuardrailPages
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.keys import KeyPages
from gateway_apiserver.surfaces.console.live import AccountEvents, LiveRoutes
from gateway_apiserver.surfaces.console.management_keys import ManagementKeyPages
from gateway_apiserver.surfaces.console.members import MemberPages
from gateway_apiserver.surfaces.console.overview import OverviewPage, SeatUsage
from gateway_apiserver.surfaces.console.playground import PlaygroundPages
from gateway_apiserver.surfaces.console.seats import CONSOLE_ALLOWANCES, Console, Seat
from gateway_apiserver.surfaces.console.storage import BatchPages, FilePages
from gateway_apiserver.surfaces.console.tasks import TaskPages
from gateway_apiserver.surfaces.console.usage import UsagePages
from gateway_apiserver.surfaces.console.webhooks import WebhookPage
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.management.members import MemberService
from gateway_apiserver.surfaces.management.usage import UsageReports
from gateway_apiserver.surfaces.pages.html import Pages
from gateway_apiserver.surfaces.pages.sign_in import SignInRoutes
from gateway_core.accounts.invitations import INVITATION_ALLOWANCES, Invitations
from gateway_core.accounts.records import AccountIndex
from gateway_core.accounts.throttle import Throttle
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.account import GatewayAccount
from gateway_core.api.errors import NotFound
from gateway_core.failpoints import Failpoints
from gateway_core.kube.read_through import ReadThrough
from gateway_core.kube.repository import Repository
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.providers.offers import Offers
from gateway_core.tasks.cancellation import TaskCancellation
from gateway_core.tasks.finder import TaskFinder
from gateway_core.tasks.history import TaskHistory


def add_console(
    app: FastAPI,
    parts: ApiParts,
    pages: Pages,
    sign_in: SignInRoutes,
    repository: Repository,
    tasks: tuple[TaskFinder, TaskHistory, TaskCancellation],
    files: FileFinder,
    usage: UsageReports,
    limiter: RateLimiter,
    offers: Offers,
    is_ready: Callable[[], bool],
    failpoints: Failpoints,
) -> None:
    """Add all pages, last in the list: no call of the API is compared to their paths."""
    console = Console(
        app.router.routes,
        pages,
        sign_in,
        ReadThrough(parts.tables.accounts, parts.kube, GatewayAccount.plural),
        Throttle(parts.transient, CONSOLE_ALLOWANCES, parts.id_key),
        media_url=parts.settings.media_url,
    )
    api = InnerApi(app.router)
    task_rows, batch_rows = parts.tables.task_rows, parts.tables.batch_rows
    seat_usage = SeatUsage(usage, task_rows, batch_rows, parts.tables.day_rows)
    keys = AccountIndex(parts.tables.keys, "Keys")
    guardrails = AccountIndex(parts.tables.guardrails, "Guardrails")
    OverviewPage(console, keys, guardrails, task_rows, seat_usage, limiter)
    base_url = parts.settings.base_url
    catalog = CatalogView(parts.tables.models)
    TaskPages(console, *tasks, repository, parts.store, catalog, keys, base_url)
    PlaygroundPages(console, api, catalog, base_url)
    BatchPages(console, api, batch_rows)
    FilePages(console, api, files)
    KeyPages(console, api, limiter, offers, keys, guardrails, parts.tables.users, parts.key_use)
    ManagementKeyPages(console, repository, keys, parts.tables.users, parts.key_use)
    GuardrailPages(console, api, limiter, offers, guardrails, keys)
    UsagePages(console, keys, parts.tables.users, usage, seat_usage, limiter)
    MemberPages(
        console,
        api,
        app.state.services[MemberService],
        _make_invitations(parts, failpoints),
        parts.tables.users,
        parts.mailer,
        base_url,
    )
    WebhookPage(console, api)
    tables = parts.tables
    AuditPage(console, parts.store, keys, guardrails, tables.users, tables.grants)
    task_events = AccountEvents(
        tables.open_tasks,
        lambda task: task.account,
        lambda account: task_rows.is_new(account) or seat_usage.is_new(account),
    )
    batches = AccountEvents(tables.open_batches, lambda account: account, batch_rows.is_new)
    task_rows.subscribe(task_events.wake)
    batch_rows.subscribe(batches.wake)
    events: Mapping[str, AccountEvents[Any]] = {"tasks": task_events, "batches": batches}
    LiveRoutes(console, events, lambda: not is_ready()).add_to(app.router.routes)
    # a page like the others for an address that was mistyped or has changed
    console.add_page("/{page:path}", _show_nothing, "unknown")


def _make_invitations(parts: ApiParts, failpoints: Failpoints) -> Invitations | None:
    """Return the service of invitations; None where the deployment wants none."""
    if not parts.settings.invitations:
        return None
    throttle = Throttle(parts.transient, INVITATION_ALLOWANCES, parts.id_key, "An invitation")
    return Invitations(parts.kube, parts.tables.users, throttle, failpoints)


async def _show_nothing(_: Call, __: Seat) -> NoReturn:
    raise NotFound("There is no such page.")
