"""The composition root of the API process: the only module of it that names adapters."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from gateway_apiserver.parts import ApiParts
from gateway_apiserver.settings import ApiSettings
from gateway_apiserver.surfaces.pages.sso import CALLBACK_PATH
from gateway_apiserver.tables import Tables
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.oidc import OidcClient
from gateway_core.admission.intake import Intake, IntakeStop
from gateway_core.admission.live_calls import LiveCalls
from gateway_core.api.ids import IdMint
from gateway_core.api.provider import ProviderSpec
from gateway_core.billing.journal import name_process
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.reservations import CallReservations
from gateway_core.callbacks.orders import OrderLink, OrderSigner
from gateway_core.concurrency import Supervisor
from gateway_core.egress.addresses import DECLARED, AddressPolicy
from gateway_core.egress.connector import GuardedSession, use_proxy
from gateway_core.files.addresses import Sealer
from gateway_core.files.fetching import Fetcher
from gateway_core.files.quota_counters import PartLedger, StorageLedger
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import NoCluster as NoCluster
from gateway_core.kube.informer import Informer
from gateway_core.kube.kubeconfig import find_connection
from gateway_core.kube.lineage import Lineage
from gateway_core.kube.secrets import SecretsUnusable as SecretsUnusable
from gateway_core.kube.secrets import load_key, load_peppers
from gateway_core.llm.answer_store import AnswerStore, CacheBounds
from gateway_core.llm.cache import AnswerCache
from gateway_core.llm.upstream import LlmUpstream
from gateway_core.mail import Mailer, MailServer
from gateway_core.oauth.clients import DOCUMENT_SECONDS
from gateway_core.observability.logs import configure_logging as configure_logging
from gateway_core.observability.metrics import ProcessMetrics
from gateway_core.observability.tracing import open_tracer
from gateway_core.providers.catalog_view import ProviderWatch
from gateway_core.providers.health import HealthReporter, HealthReports, HealthTally
from gateway_core.providers.notices import NoticeSigner, OperatorLink
from gateway_core.providers.registry import Providers, build_moderation
from gateway_core.redis.eviction import EvictionWatch
from gateway_core.redis.transient import TransientStore
from gateway_core.storage.choice import open_store
from gateway_web.http1.connections import ConnectionTable
from gateway_web.middleware.observers import open_access_log

PROVIDER_SECRETS = "the chart's value moderation.providerSecrets"
PREPARE_SECONDS = 10.0
"""How long a new process waits for Redis: polls do not need it."""


@asynccontextmanager
async def open_api(settings: ApiSettings) -> AsyncIterator[ApiParts]:
    """Yield the API's parts, its tables following the Kubernetes API in the background.

    Raises:
        NoCluster: no configuration names a cluster.
        SecretsUnusable: a secret key is missing or malformed.
    """
    id_key = load_key(settings.secrets_dir, "id-key")
    peppers = load_peppers(settings.secrets_dir)
    sealer = Sealer(load_key(settings.secrets_dir, "media-key"))
    connection = await asyncio.to_thread(find_connection)
    async with AsyncExitStack() as stack:
        intake = Intake(maintenance=settings.maintenance)
        kube = await stack.enter_async_context(
            KubernetesClient(connection, settings.namespace, note_full=intake.note_full)
        )
        registry = CollectorRegistry()
        process = ProcessMetrics(registry, "api")
        supervisor = Supervisor(process.count_failure)
        supervisor.watch_event_loop()
        tracer = await stack.enter_async_context(open_tracer("api"))
        redis: dict[str, Any] = {"namespace": settings.namespace, "note": process.note_round_trip}
        counters = Counters(settings.redis, **redis)
        storage = StorageLedger(settings.redis, **redis)
        parts = PartLedger(settings.redis, **redis)
        intake_stop = IntakeStop(settings.redis, **redis)
        reports = HealthReports(settings.redis, max_connections=1, **redis)
        transient = TransientStore(settings.redis, **redis)
        eviction = EvictionWatch(settings.redis, max_connections=1, **redis)
        for client in (counters, storage, parts, intake_stop, reports, transient, eviction):
            stack.push_async_callback(client.close)
        preparing = asyncio.create_task(counters.prepare(PREPARE_SECONDS))
        store = await stack.enter_async_context(open_store(settings, supervisor))
        fetcher = Fetcher(AddressPolicy(settings.fetch_allowed_cidrs, settings.denied_cidrs))
        stack.push_async_callback(fetcher.close)
        documents = Fetcher(
            AddressPolicy(settings.fetch_allowed_cidrs, settings.denied_cidrs),
            seconds=DOCUMENT_SECONDS,
            most_redirects=0,
        )
        stack.push_async_callback(documents.close)
        notices, orders = None, None
        if settings.operator_url:
            where = settings.operator_url, settings.operator_replicas
            notices = await stack.enter_async_context(OperatorLink(*where, NoticeSigner(id_key)))
            seconds = settings.callback_timeout_seconds
            link = OrderLink(*where, OrderSigner(id_key), seconds)
            orders = await stack.enter_async_context(link)
        tables = Tables(partial(Informer, kube), IdMint(id_key), settings.account_defaults)
        process.follow({table.plural: table for table in tables.informers})
        scale = partial(_scale, replicas=settings.replicas)
        moderations = Providers(
            tables.providers,
            kube,
            lambda spec, secret: build_moderation(scale(spec), secret),
            reading=PROVIDER_SECRETS,
        )
        stack.push_async_callback(moderations.close)
        llm_providers = Providers(
            tables.providers,
            kube,
            lambda spec, secret: LlmUpstream(scale(spec), secret),
            reading=PROVIDER_SECRETS,
        )
        stack.push_async_callback(llm_providers.close)
        watch = ProviderWatch(llm_providers, supervisor)
        rebuilder = Rebuilder(kube, JournalStore(store), counters)
        name = name_process("api", socket.gethostname())
        calls = LiveCalls(CallReservations(counters, rebuilder.rebuild, store, name, supervisor))
        key_use = KeyUse(counters)
        health = HealthTally()
        reporter = HealthReporter(health, reports, name, partial(_find_circuit, llm_providers))
        answers = None
        bounds = CacheBounds(settings.llm_cache_account_bytes, settings.llm_cache_bytes)
        if bounds.keeps_any:
            answers = AnswerCache(AnswerStore(settings.redis, bounds, **redis))
            stack.push_async_callback(answers.close)
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            **{f"watch_of_{table.plural}": table.run for table in tables.informers},
            **{f"rows_of_{rows.plural}": rows.run for rows in tables.rows},
            "lineage": Lineage(kube).run,
            "calls": calls.run,
            "key_use": key_use.run,
            "event_loop_lag": process.watch_loop,
            "providers": watch.run,
            "provider_health": reporter.run,
            "intake_stop": partial(intake.follow, intake_stop),
            "eviction": partial(eviction.run, process.note_eviction),
        }
        runs = [asyncio.create_task(supervisor.keep(*loop)) for loop in loops.items()]
        try:
            yield ApiParts(
                settings=settings,
                kube=kube,
                counters=counters,
                storage=storage,
                parts=parts,
                store=store,
                fetcher=fetcher,
                documents=documents,
                oidc=_open_sign_on(settings, stack),
                transient=transient,
                sealer=sealer,
                tables=tables,
                moderations=moderations,
                llm_providers=llm_providers,
                rebuilder=rebuilder,
                calls=calls,
                key_use=key_use,
                answers=answers,
                id_key=id_key,
                peppers=peppers,
                mailer=_open_mailer(settings),
                notices=notices,
                orders=orders,
                intake=intake,
                usable_providers=lambda: watch.states,
                health=health,
                registry=registry,
                connections=ConnectionTable(settings.connection_bounds),
                access=stack.enter_context(open_access_log(settings)),
                tracer=tracer,
                is_prepared=preparing.done,
            )
        finally:
            await asyncio.gather(calls.close(), key_use.report())
            # nothing after this must be completed, so SIGTERM may end the process
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            started: list[asyncio.Task[Any]] = [*runs, preparing]
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)


def _find_circuit(providers: Providers[LlmUpstream], name: str) -> bool | None:
    """Return whether this process sends a provider no LLM calls; None where it has sent it none."""
    upstream = providers.peek(name)
    return None if upstream is None else upstream.is_open


def _open_sign_on(settings: ApiSettings, stack: AsyncExitStack) -> OidcClient | None:
    """Return the client of the provider for single sign-on. SecretsUnusable."""
    if not settings.oidc_issuer:
        return None
    try:
        secret = (settings.secrets_dir / "oidc-client-secret").read_text().strip()
    except OSError as error:
        raise SecretsUnusable(f"no oidc-client-secret: {error}") from error
    session = GuardedSession(DECLARED, middlewares=[use_proxy])
    stack.push_async_callback(session.close)
    redirect_uri = settings.base_url + CALLBACK_PATH
    return OidcClient(
        session,
        settings.oidc_issuer,
        settings.oidc_client_id,
        secret,
        redirect_uri,
        trusted_domains=settings.oidc_trusted_domains,
    )


def _open_mailer(settings: ApiSettings) -> Mailer | None:
    """Return the mail server's client. SecretsUnusable."""
    if not settings.smtp_host:
        return None
    password = ""
    if settings.smtp_user:
        try:
            password = (settings.secrets_dir / "smtp-password").read_text().strip()
        except OSError as error:
            raise SecretsUnusable(f"no smtp-password: {error}") from error
    return Mailer(
        MailServer(
            host=settings.smtp_host,
            port=settings.smtp_port,
            security=settings.smtp_security,
            sender=settings.smtp_from,
            user=settings.smtp_user,
            password=password,
        )
    )


def _scale(spec: ProviderSpec, *, replicas: int) -> ProviderSpec:
    """Return the provider with this replica's part of what its owner allows the gateway."""
    limit = max(1, spec.max_concurrent_requests // replicas)
    rate = spec.requests_per_second
    part = None if rate is None else rate / replicas
    return spec.model_copy(update={"max_concurrent_requests": limit, "requests_per_second": part})
