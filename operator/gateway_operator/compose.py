"""The operator's composition root: the only module that names adapters."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway_core.admission.intake import IntakeStop
from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import IdMint
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider, ProviderSpec
from gateway_core.api.task import GatewayTask
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.redis_counters import RedisCounters
from gateway_core.callbacks.client import CallbackSender
from gateway_core.concurrency import Supervisor
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.files.addresses import MediaSigner
from gateway_core.files.files import FileRecorder
from gateway_core.files.redis_counters import RedisStorage
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.connection import Connection, find_connection
from gateway_core.kube.informer import Informer
from gateway_core.kube.secrets import SecretClient, load_key, load_peppers
from gateway_core.observability.logs import configure_logging as configure_logging
from gateway_core.observability.metrics import ProcessMetrics
from gateway_core.observability.tracing import open_tracer
from gateway_core.providers.notices import NoticeSigner
from gateway_core.providers.registry import Providers, build_moderation, build_upstream
from gateway_core.providers.upstream import ModerationUpstream, Upstream
from gateway_core.storage.choice import open_store
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.accounts.accounts import Accounts, Users
from gateway_operator.accounts.balances import Balances
from gateway_operator.accounts.declaredkeys import DeclaredKeys
from gateway_operator.accounts.guardrails import Guardrails, project_guardrail
from gateway_operator.accounts.keys import Keys, project_key
from gateway_operator.accounts.models import (
    Models,
    ProviderKind,
    ProvidersInUse,
    follow_catalog,
)
from gateway_operator.accounts.readiness import ReadinessController
from gateway_operator.batches.assembly import assemble_batches
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.billing.journalreader import JournalReader
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.callbacks.signing import Keyring
from gateway_operator.events import AdminEvents
from gateway_operator.failpoints import Failpoints
from gateway_operator.files.assembly import Keepers
from gateway_operator.files.storage import FileStorage
from gateway_operator.gauges import Counted, Gauges
from gateway_operator.handlers import (
    LONGEST_RESTART_SECONDS,
    Followed,
    build_registry,
    build_settings,
    kopf,
    run_feed,
)
from gateway_operator.health import start_health
from gateway_operator.heartbeat import Heartbeat
from gateway_operator.metrics import Metrics
from gateway_operator.retention.databasesize import plan_samples
from gateway_operator.retention.schedule import Schedule, plan_sweeps
from gateway_operator.settings import Settings
from gateway_operator.shards import Shards
from gateway_operator.tasks.cache import TaskCache
from gateway_operator.tasks.calls import TaskTraces
from gateway_operator.tasks.controller import TaskController
from gateway_operator.tasks.credentials import follow_policies
from gateway_operator.tasks.delivery import (
    SELECTOR,
    Redeliveries,
    project_wanted,
)
from gateway_operator.tasks.outputs import Outputs
from gateway_operator.tasks.resync import Resync
from gateway_operator.tasks.statuswriter import StatusWriter
from gateway_operator.tasks.tools import Tools
from gateway_operator.workqueue import WorkQueue


@dataclass(frozen=True, slots=True)
class Tables:
    """The standing kinds as this process knows them."""

    accounts: Informer[GatewayAccount]
    users: Informer[GatewayUser]
    keys: Informer[GatewayKey]
    guardrails: Informer[GatewayGuardrail]
    models: Informer[GatewayModel]
    providers: Informer[GatewayProvider]

    @property
    def all(self) -> tuple[Informer[Any], ...]:
        """Every table."""
        people = (self.accounts, self.users, self.keys, self.guardrails)
        return (*people, self.models, self.providers)


async def run_operator(
    settings: Settings, stop: asyncio.Event, claim_signals: Callable[[], None]
) -> None:
    """Runs every part until `stop` is set; raises what keeps the operator from starting.

    `claim_signals` has the process's signals set `stop`; called again once kopf, which takes them
    for itself at its start, is up.
    """
    connection = await asyncio.to_thread(find_connection)
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        kube = await stack.enter_async_context(
            KubernetesClient(connection, settings.namespace, note_full=metrics.record_refusals.inc)
        )
        process = ProcessMetrics(metrics.registry, "operator")
        supervisor = Supervisor(process.count_failure)
        supervisor.watch_event_loop()
        tracer = await stack.enter_async_context(open_tracer("operator"))
        counters = RedisCounters(
            settings.redis_url, namespace=settings.namespace, note=process.note_round_trip
        )
        stack.push_async_callback(counters.close)
        store = await stack.enter_async_context(open_store(settings, supervisor))
        ledger = RedisStorage(
            settings.redis_url, namespace=settings.namespace, note=process.note_round_trip
        )
        stack.push_async_callback(ledger.close)
        intake_stop = IntakeStop(settings.redis_url, namespace=settings.namespace)
        stack.push_async_callback(intake_stop.close)
        tables = _build_tables(kube)
        outputs = AddressPolicy(settings.fetch_allowed_cidrs, settings.denied_cidrs)
        build = partial(_build_provider, policy=outputs, shards=settings.shards)
        providers = Providers(tables.providers, kube, build)
        stack.push_async_callback(providers.close)
        scaled = partial(_build_moderation, shards=settings.shards)
        moderations = Providers(tables.providers, kube, scaled)
        stack.push_async_callback(moderations.close)
        live = TaskCache()
        queue = WorkQueue(lambda name: controller.reconcile(name), metrics.work_failures.inc)
        receivers = AddressPolicy(settings.callback_allowed_cidrs, settings.denied_cidrs)
        sender = CallbackSender(receivers, timeout=settings.callback_timeout_seconds)
        stack.push_async_callback(sender.close)
        signer = MediaSigner(load_key(settings.secrets_dir, "media-key"))
        id_key = load_key(settings.secrets_dir, "id-key")
        notice_signer = NoticeSigner(id_key)
        tools = Tools(
            shards=settings.shards,
            kube=kube,
            store=store,
            counters=counters,
            rebuilder=Rebuilder(kube, JournalStore(store), counters),
            accounts=tables.accounts,
            defaults=settings.account_defaults,
            users=tables.users,
            keys=tables.keys,
            policies=follow_policies(tables.keys, tables.guardrails),
            catalog=follow_catalog(tables.models),
            providers=providers,
            outputs=Outputs(store, signer, settings.media_url),
            journal=StatusWriter(kube, live),
            folding=UsageAggregator(
                kube,
                metrics,
                CLOCK.now,
                pause_seconds=settings.fold_seconds,
                most=settings.fold_most,
            ),
            live=live,
            queue=queue,
            alarms=AdminEvents(kube),
            courier=CallbackClient(sender, Keyring(tables.accounts, kube, CLOCK.now), CLOCK.now),
            callback_schedule=settings.callback_schedule,
            mint=IdMint(id_key),
            failpoints=Failpoints(settings.failpoints),
            metrics=metrics,
            now=CLOCK.now,
            traces=TaskTraces(tracer, tells_providers=settings.trace_providers),
            notify_address=partial(notice_signer.locate, settings.notify_url),
        )
        controller = TaskController(tools)
        keeping = FileStorage(
            kube=kube,
            store=store,
            ledger=ledger,
            files=FileRecorder(kube, ledger),
            accounts=tables.accounts,
            mint=tools.mint,
            failpoints=tools.failpoints,
            metrics=metrics,
            now=CLOCK.now,
        )
        keepers = Keepers(keeping)
        batches = assemble_batches(tools, moderations, ledger, keeping.files)
        followed = (
            Followed(GatewayTask, controller.observe, OPEN_SELECTOR),
            Followed(GatewayBatch, batches.observe, OPEN_SELECTOR),
            *keepers.followed,
        )
        peppers = load_peppers(settings.secrets_dir)
        declared = DeclaredKeys(SecretClient(kube), peppers, tools.failpoints, CLOCK.now)
        in_use = ProvidersInUse(providers, moderations)
        standing = _build_standing(kube, tables, in_use, declared, tools.defaults)
        wanted = Informer(
            kube,
            GatewayTask.plural,
            partial(project_wanted, shards=settings.shards),
            field_selector=SELECTOR,
        )
        Redeliveries(wanted, live, queue)
        lease = f"model-gateway-operator-{settings.ordinal}"
        heartbeat = Heartbeat(
            partial(kube.renew_lease, lease, socket.gethostname()), settings.heartbeat_seconds
        )
        counted = Counted(
            live,
            queue,
            tools.folding,
            tools.outputs.places,
            tools.courier.lanes,
            heartbeat,
            batches,
        )
        metrics.registry.register(Gauges(counted, CLOCK.now))
        process.follow({table.plural: table for table in tables.all})
        following = asyncio.Event()
        health = await start_health(
            settings.health_host,
            settings.health_port,
            ready=lambda: None if following.is_set() else "the watch of tasks is not up",
            metrics=metrics,
            signer=notice_signer,
            take_notice=controller.take_notice,
        )
        stack.push_async_callback(health.cleanup)

        async with asyncio.TaskGroup() as group:
            running = list[asyncio.Task[None]]()

            def begin(**loops: Callable[[], Awaitable[None]]) -> None:
                for name, run in loops.items():
                    running.append(group.create_task(supervisor.keep(name, run)))

            begin(**{f"watch_of_{table.plural}": table.run for table in tables.all})
            begin(event_loop_lag=process.watch_loop)
            await _wait_for_tables(tables, stop)
            begin(
                tasks=queue.run,
                batches=batches.queue.run,
                heartbeat=heartbeat.run,
                janitor=Resync(tools, settings.sweep_seconds, supervisor).run,
                redeliveries=wanted.run,
                files_and_uploads=keepers.run,
            )
            if settings.shards.owns_rest:

                def note_sweep(name: str) -> None:
                    metrics.note_sweep(name, CLOCK.now())

                sweeps = plan_sweeps(
                    tools, tables.guardrails, settings.rules, settings.sweep_seconds
                )
                sweeps += keepers.plan_sweeps(settings)
                sweeps += plan_samples(kube, intake_stop, metrics, settings)
                schedule = Schedule(note_sweep, *sweeps, supervisor=supervisor)
                bookkeeping = JournalReader(tools, settings.fold_seconds, supervisor=supervisor)
                balances = Balances(
                    kube,
                    tables.accounts,
                    tables.keys,
                    tables.guardrails,
                    CLOCK.now,
                    partial(note_sweep, "balances"),
                    supervisor,
                )
                begin(
                    configuration=standing.run,
                    sweeps=schedule.run,
                    journal=bookkeeping.run,
                    balances=balances.run,
                )

            async def mark_ready() -> None:
                claim_signals()
                # kopf says that it is ready before it has asked for anything
                await heartbeat.wait_heard()
                following.set()
                metrics.show_shards(settings.shards.numbers)

            async def follow() -> None:
                try:
                    await run_feed(
                        build_registry(
                            followed, heartbeat.hear, partial(login_to, connection), supervisor
                        ),
                        build_settings(followed, settings.shards, lease),
                        namespace=settings.namespace,
                        ready=mark_ready,
                        stop=stop,
                    )
                finally:
                    following.clear()
                    # kopf leaves its handlers behind, which nobody hears any more
                    claim_signals()

            if not stop.is_set():
                # between its start and `mark_ready` kopf takes the signals, and returns at one
                await supervisor.keep("feed", follow, longest=LONGEST_RESTART_SECONDS, may_end=True)
            metrics.show_shards(())
            await asyncio.gather(controller.end(), batches.end(), keepers.end())
            for task in running:
                task.cancel()


async def _wait_for_tables(tables: Tables, stop: asyncio.Event) -> None:
    """Returns once all tables are read, or `stop` is set."""
    synced = asyncio.gather(*(table.wait_synced() for table in tables.all))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((synced, stopped), return_when=asyncio.FIRST_COMPLETED)
    for waiter in (synced, stopped):
        waiter.cancel()


def _build_tables(kube: KubernetesClient) -> Tables:
    return Tables(
        accounts=Informer(kube, GatewayAccount.plural, GatewayAccount.model_validate),
        users=Informer(kube, GatewayUser.plural, GatewayUser.model_validate),
        keys=Informer(kube, GatewayKey.plural, project_key),
        guardrails=Informer(kube, GatewayGuardrail.plural, project_guardrail),
        models=Informer(kube, GatewayModel.plural, GatewayModel.model_validate),
        providers=Informer(kube, GatewayProvider.plural, GatewayProvider.model_validate),
    )


def _build_standing(
    kube: KubernetesClient,
    tables: Tables,
    providers: ProvidersInUse,
    declared: DeclaredKeys,
    defaults: AccountDefaults,
) -> ReadinessController:
    """The kinds in the order of what they refer to, so that a start looks at each object once."""
    accounts, users, keys = tables.accounts, tables.users, tables.keys
    kinds = (
        Accounts(accounts, defaults),
        Users(users, accounts),
        Keys(keys, accounts, users, declared, CLOCK.now),
        Guardrails(tables.guardrails, accounts, keys),
        ProviderKind(tables.providers, providers),
        Models(tables.models, providers),
    )
    return ReadinessController(kube, kinds, CLOCK.now)


def _build_provider(
    spec: ProviderSpec, credential: str | None, *, policy: AddressPolicy, shards: Shards
) -> Upstream:
    """The provider with this replica's part of what its owner allows the gateway."""
    return build_upstream(_scale(spec, shards), credential, policy)


def _build_moderation(
    spec: ProviderSpec, credential: str | None, *, shards: Shards
) -> ModerationUpstream:
    return build_moderation(_scale(spec, shards), credential)


def _scale(spec: ProviderSpec, shards: Shards) -> ProviderSpec:
    limit = shards.scale(spec.max_concurrent_requests)
    return spec.model_copy(update={"max_concurrent_requests": limit})


def login_to(connection: Connection) -> kopf.ConnectionInfo:
    """What kopf needs to reach the same API server with the same credentials."""
    return kopf.ConnectionInfo(
        server=connection.server,
        ca_data=connection.ca_pem,
        insecure=connection.insecure,
        certificate_data=connection.certificate_pem,
        private_key_data=connection.private_key_pem,
        scheme="Bearer",
        token=connection.read_token(),
    )
