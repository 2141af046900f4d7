"""The operator's composition root: the only module that chooses adapters."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway_core.admission.intake import IntakeStop
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import IdMint
from gateway_core.api.provider import ProviderSpec
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload
from gateway_core.billing.journal import name_process
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.redis_counters import Counters
from gateway_core.callbacks.client import CallbackSender
from gateway_core.concurrency import Supervisor
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.files.addresses import MediaSigner
from gateway_core.files.files import FileRecorder
from gateway_core.files.quota_counters import StorageLedger
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.connection import Connection
from gateway_core.kube.informer import Informer
from gateway_core.kube.kubeconfig import find_connection
from gateway_core.kube.lineage import LINEAGE_LEASE, Lineage
from gateway_core.kube.secrets import SecretClient, load_key, load_peppers
from gateway_core.llm.upstream import LlmUpstream
from gateway_core.observability.metrics import ProcessMetrics
from gateway_core.observability.tracing import open_tracer
from gateway_core.providers.health import HealthReporter, HealthReports, HealthTally
from gateway_core.providers.notices import NoticeSigner
from gateway_core.providers.offers import Offers
from gateway_core.providers.registry import Providers, build_moderation, build_upstream
from gateway_core.redis.eviction import EvictionWatch
from gateway_core.storage.choice import open_store
from gateway_operator.accounts.balances import COPY_SECONDS, Balances, LastUse, follow_usage
from gateway_operator.accounts.credentials import Credentials
from gateway_operator.accounts.declaredkeys import DeclaredKeys
from gateway_operator.accounts.health import SHOW_SECONDS, HealthStatus
from gateway_operator.accounts.histories import Histories, follow_histories
from gateway_operator.accounts.kinds import (
    Accounts,
    Guardrails,
    Keys,
    Users,
)
from gateway_operator.accounts.memberships import Memberships
from gateway_operator.accounts.models import Models, ProviderKind, ProvidersInUse, follow_catalog
from gateway_operator.accounts.readiness import ReadinessController
from gateway_operator.accounts.removal import RemainsRemoval
from gateway_operator.batches.controller import BatchController
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.billing.journalreader import JournalReader
from gateway_operator.billing.reservations import Reservations
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.callbacks.orders import WebhookOrders
from gateway_operator.callbacks.signing import Keyring
from gateway_operator.context import Context, Failpoints, Shards
from gateway_operator.events import Events, KopfPoster
from gateway_operator.files.audit import OrphanRemoval, QuotaCheck
from gateway_operator.files.controller import FileController, Removal
from gateway_operator.files.intake import Intake
from gateway_operator.files.storage import FileStorage
from gateway_operator.gauges import Gauges
from gateway_operator.health import Heartbeat, Renew, start_health
from gateway_operator.lineage import LineageHeartbeat, RedisLineage
from gateway_operator.metrics import Metrics
from gateway_operator.retention.oauth import plan_oauth
from gateway_operator.retention.sweeps import plan_sweeps
from gateway_operator.schedule import Schedule, Sweep
from gateway_operator.settings import Settings
from gateway_operator.tables import build_tables, wait_for_tables
from gateway_operator.tasks.calls import Inputs, Outputs, ProviderCalls, TaskTraces
from gateway_operator.tasks.controller import TaskController
from gateway_operator.tasks.delivery import REDELIVERY_SELECTOR, read_wanted
from gateway_operator.tasks.resync import Resync
from gateway_operator.uploads.controller import Settlement, UploadController

FILE_SECONDS = 1.0
"""For steps of files and uploads in progress, as the process shuts down: all can be repeated."""


class Observer(Protocol):
    """A controller, as kopf's handlers know it."""

    def observe(self, kind: str | None, obj: Object) -> None:
        """Handle an event: None for what the first list shows, ADDED, MODIFIED or DELETED.

        The object is the callee's own.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The running operator, as kopf's handlers use it."""

    connection: Connection
    supervisor: Supervisor
    controllers: Mapping[str, Observer]
    """By the plural of the kind whose events they take."""
    events: Events
    """What posts Events within their bounds, for handlers without a controller too."""
    heartbeat: Heartbeat
    hear: Callable[[], None]
    """Note that the watch has shown the heartbeat; from the first one on the process is ready."""
    drain: Callable[[], Awaitable[None]]
    stack: AsyncExitStack

    async def stop(self) -> None:
        """Complete what may have started a job, and close everything."""
        async with self.stack:
            await self.drain()


async def start_operator(settings: Settings) -> Operator:
    """Start every part; raises what keeps the operator from starting. Can be cancelled."""
    connection = await asyncio.to_thread(find_connection)
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        kube = await stack.enter_async_context(
            KubernetesClient(connection, settings.namespace, note_full=metrics.record_refusals.inc)
        )
        process = ProcessMetrics(metrics.registry, "operator")
        supervisor = Supervisor(process.count_failure)
        supervisor.watch_event_loop()
        note, namespace = process.note_round_trip, settings.namespace
        counters = Counters(settings.redis, namespace=namespace, note=note)
        stack.push_async_callback(counters.close)
        ledger = StorageLedger(settings.redis, namespace=namespace, note=note)
        stack.push_async_callback(ledger.close)
        intake_stop = IntakeStop(settings.redis, namespace=namespace)
        stack.push_async_callback(intake_stop.close)
        eviction = EvictionWatch(settings.redis, namespace=namespace, max_connections=1)
        stack.push_async_callback(eviction.close)
        tally = HealthTally()
        reports = HealthReports(settings.redis, namespace=namespace, max_connections=1)
        stack.push_async_callback(reports.close)
        reporter = HealthReporter(tally, reports, name_process("operator", socket.gethostname()))
        store = await stack.enter_async_context(open_store(settings, supervisor))
        id_key = load_key(settings.secrets_dir, "id-key")
        poster = KopfPoster()
        context = Context(
            kube=kube,
            store=store,
            shards=settings.shards,
            mint=IdMint(id_key),
            failpoints=Failpoints(settings.failpoints),
            metrics=metrics,
            now=CLOCK.now,
            post=poster,
        )
        tables = build_tables(kube)
        catalog = follow_catalog(tables.models)
        scale = partial(_scale, shards=settings.shards)
        fetches = AddressPolicy(settings.fetch_allowed_cidrs, settings.denied_cidrs)
        providers = Providers(
            tables.providers,
            kube,
            lambda spec, credential: build_upstream(scale(spec), credential, fetches),
        )
        stack.push_async_callback(providers.close)
        moderations = Providers(
            tables.providers,
            kube,
            lambda spec, credential: build_moderation(scale(spec), credential),
        )
        stack.push_async_callback(moderations.close)
        llm_providers = Providers(tables.providers, kube, LlmUpstream)
        stack.push_async_callback(llm_providers.close)
        receivers = AddressPolicy(settings.callback_allowed_cidrs, settings.denied_cidrs)
        sender = CallbackSender(receivers, timeout=settings.callback_timeout_seconds)
        stack.push_async_callback(sender.close)
        tracer = await stack.enter_async_context(open_tracer("operator"))
        notices = NoticeSigner(id_key)
        reservations = Reservations(
            counters,
            Rebuilder(kube, JournalStore(store), counters),
            settings.account_defaults,
            CLOCK.now,
        )
        credentials = Credentials(
            tables.accounts, tables.users, tables.keys, tables.guardrails, CLOCK.now
        )
        calls = ProviderCalls(
            providers,
            metrics,
            TaskTraces(tracer, sends_traceparent=settings.trace_providers),
            partial(notices.locate, settings.notify_url),
            tally,
        )
        media_signer = MediaSigner(load_key(settings.secrets_dir, "media-key"))
        outputs = Outputs(store, media_signer, settings.media_url)
        aggregator = UsageAggregator(
            kube,
            metrics,
            CLOCK.now,
            pause_seconds=settings.fold_seconds,
            most=settings.fold_most,
        )
        keyring = Keyring(tables.accounts, kube, CLOCK.now)
        callbacks = CallbackClient(sender, keyring, CLOCK.now, settings.callback_schedule)
        tasks = TaskController(
            context,
            reservations=reservations,
            credentials=credentials,
            calls=calls,
            inputs=Inputs(store, catalog),
            outputs=outputs,
            aggregator=aggregator,
            callbacks=callbacks,
        )
        recorder = FileRecorder(kube, ledger)
        batches = BatchController(
            context,
            reservations=reservations,
            credentials=credentials,
            calls=calls,
            catalog=catalog,
            providers=moderations,
            ledger=ledger,
            files=recorder,
            aggregator=aggregator,
        )
        storage = FileStorage(context, ledger)
        settlement = Settlement(storage, recorder)
        intake = Intake(storage, tables.accounts)
        files = FileController(storage, intake, Removal(storage, settlement, tables.accounts))
        uploads = UploadController(storage, settlement)

        # kopf watches tasks with another selector, and can watch a kind only once
        wanted = Informer(
            kube,
            GatewayTask.plural,
            partial(read_wanted, shards=settings.shards),
            field_selector=REDELIVERY_SELECTOR,
        )
        tasks.follow_redeliveries(wanted)
        renew: Renew = partial(kube.renew_lease, settings.lease, socket.gethostname())
        lineage = Lineage(kube)
        if settings.lease == LINEAGE_LEASE:
            trail = RedisLineage(settings.redis, namespace=namespace, max_connections=1)
            stack.push_async_callback(trail.close)
            renew = LineageHeartbeat(lineage, trail, counters, socket.gethostname()).renew
        heartbeat = Heartbeat(renew, settings.heartbeat_seconds)
        gauges = Gauges(tasks, batches, aggregator, outputs, callbacks, heartbeat, CLOCK.now)
        metrics.registry.register(gauges)
        process.follow({table.plural: table for table in tables.all})
        following = asyncio.Event()
        health_server = await start_health(
            settings.health_host,
            settings.health_port,
            ready=lambda: None if following.is_set() else "the watch of tasks is not up",
            metrics=metrics,
            signer=notices,
            take_notice=tasks.take_notice,
            take_order=WebhookOrders(kube, SecretClient(kube), callbacks, id_key, CLOCK.now).take,
        )
        stack.push_async_callback(health_server.cleanup)

        def note_sweep(name: str) -> None:
            metrics.note_sweep(name, CLOCK.now())

        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "tasks": tasks.queue.run,
            "records_of_tasks": tasks.recording.queue.run,
            "batches": batches.queue.run,
            "files": files.queue.run,
            "uploads": uploads.queue.run,
            "redeliveries": wanted.run,
            "heartbeat": heartbeat.run,
            "provider_health": reporter.run,
            "termination": context.termination.run,
            "eviction": partial(eviction.run, process.note_eviction),
        }
        if settings.lease != LINEAGE_LEASE:
            loops["lineage"] = lineage.run
        context.termination.subscribe(tasks, batches, files, uploads)
        sweeps = Resync(context, tasks, counters).plan(settings.sweep_seconds)
        if settings.shards.owns_rest:
            last_use = LastUse(kube, counters, tables.keys)
            health = HealthStatus(kube, context.events, reports, tables.providers, tables.models)
            orphans = OrphanRemoval(storage, intake, tables.accounts, settings.orphan_seconds)
            quota = QuotaCheck(
                storage,
                tables.accounts,
                files.recheck,
                uploads.queue.add,
                claim_seconds=settings.claim_seconds,
            )
            sweeps += (
                Sweep("last use of keys", last_use.sweep, COPY_SECONDS),
                Sweep("health of providers", health.sweep, SHOW_SECONDS),
                plan_oauth(context, counters, tables.accounts, tables.users),
                Sweep("stored bytes", orphans.sweep, settings.reconcile_seconds),
                Sweep("storage ledger", quota.sweep, settings.proof_seconds),
                *plan_sweeps(
                    context, settings, tables.keys, tables.guardrails, uploads, intake_stop
                ),
            )
            peppers = load_peppers(settings.secrets_dir)
            offers = Offers(tables.models)
            declared = DeclaredKeys(SecretClient(kube), peppers, context.failpoints, CLOCK.now)
            accounts, users, keys = tables.accounts, tables.users, tables.keys
            removal = RemainsRemoval(context, counters, users, keys)
            due = follow_histories(kube)
            histories = Histories(context, counters, users, accounts, {**due})
            context.termination.subscribe(histories)
            in_use = ProvidersInUse(providers, moderations, llm_providers)
            # in the order of their references, so that a start checks each object once
            kinds = (
                Accounts(accounts, settings.account_defaults, removal),
                Users(users, accounts, removal, Memberships(context, accounts)),
                Keys(keys, accounts, users, declared, CLOCK.now, offers),
                Guardrails(tables.guardrails, accounts, keys, offers),
                ProviderKind(tables.providers, in_use),
                Models(tables.models, in_use),
            )
            readiness = ReadinessController(kube, kinds, context.events, CLOCK.now)
            usage, note_pass = follow_usage(kube), partial(note_sweep, "balances")
            shown = (accounts, keys, tables.guardrails)
            balances = Balances(kube, usage, *shown, CLOCK.now, note_pass, supervisor)
            journal = JournalReader(context, settings.fold_seconds, supervisor=supervisor)
            loops |= {f"metadata_of_{plural}": table.run for plural, table in due.items()}
            loops |= {
                "histories": histories.queue.run,
                "configuration": readiness.run,
                "usage": usage.run,
                "balances": balances.run,
                "journal": journal.run,
            }
        loops["sweeps"] = Schedule(note_sweep, *sweeps, supervisor=supervisor).run

        running = list[asyncio.Task[None]]()

        async def end_loops() -> None:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        def begin(name: str, run: Callable[[], Awaitable[None]]) -> None:
            running.append(asyncio.create_task(supervisor.keep(name, run), name=name))

        stack.push_async_callback(end_loops)
        for table in tables.all:
            begin(f"watch_of_{table.plural}", table.run)
        begin("event_loop_lag", process.watch_loop)
        # every decision needs them complete
        await wait_for_tables(tables)
        for name, run in loops.items():
            begin(name, run)

        def hear() -> None:
            heartbeat.hear()
            poster.bind()
            if not following.is_set():
                following.set()
                metrics.show_shards(settings.shards.numbers)

        async def drain() -> None:
            following.clear()
            metrics.show_shards(())
            await asyncio.gather(
                tasks.end(),
                batches.end(),
                files.queue.drain(FILE_SECONDS),
                uploads.queue.drain(FILE_SECONDS),
            )

        return Operator(
            connection=connection,
            supervisor=supervisor,
            controllers={
                GatewayTask.plural: tasks,
                GatewayBatch.plural: batches,
                GatewayFile.plural: files,
                GatewayUpload.plural: uploads,
            },
            events=context.events,
            heartbeat=heartbeat,
            hear=hear,
            drain=drain,
            stack=stack.pop_all(),
        )


def _scale(spec: ProviderSpec, shards: Shards) -> ProviderSpec:
    """Return the provider with this replica's share of the gateway's concurrent requests."""
    limit = shards.scale(spec.max_concurrent_requests)
    return spec.model_copy(update={"max_concurrent_requests": limit})
