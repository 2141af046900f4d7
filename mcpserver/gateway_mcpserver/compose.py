"""The composition root of the MCP process: the only module that names adapters."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from gateway_core.accounts.key_use import KeyUse
from gateway_core.admission.intake import Intake, IntakeStop
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.redis_counters import Counters
from gateway_core.concurrency import Supervisor
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.informer import Informer
from gateway_core.kube.kubeconfig import find_connection
from gateway_core.kube.lineage import Lineage
from gateway_core.kube.secrets import load_key, load_peppers
from gateway_core.observability.metrics import ProcessMetrics
from gateway_core.observability.tracing import open_tracer
from gateway_core.redis.eviction import EvictionWatch
from gateway_core.storage.choice import open_store
from gateway_mcpserver.app import McpParts
from gateway_mcpserver.cancellations import Cancellations
from gateway_mcpserver.settings import McpSettings
from gateway_mcpserver.tables import Tables
from gateway_web.http1.connections import ConnectionTable
from gateway_web.middleware.observers import open_access_log

PREPARE_SECONDS = 10.0
"""How long a new process waits for Redis: reads do not need it."""


@asynccontextmanager
async def open_mcp(settings: McpSettings) -> AsyncIterator[McpParts]:
    """Yield the parts, the tables following the Kubernetes API in the background.

    Raises:
        NoCluster: no configuration names a cluster.
        SecretsUnusable: a secret key is missing or malformed.
    """
    id_key = load_key(settings.secrets_dir, "id-key")
    peppers = load_peppers(settings.secrets_dir)
    connection = await asyncio.to_thread(find_connection)
    async with AsyncExitStack() as stack:
        intake = Intake(maintenance=settings.maintenance)
        kube = await stack.enter_async_context(
            KubernetesClient(connection, settings.namespace, note_full=intake.note_full)
        )
        registry = CollectorRegistry()
        process = ProcessMetrics(registry, "mcp")
        supervisor = Supervisor(process.count_failure)
        supervisor.watch_event_loop()
        tracer = await stack.enter_async_context(open_tracer("mcp"))
        redis: dict[str, Any] = {"namespace": settings.namespace, "note": process.note_round_trip}
        counters = Counters(settings.redis, **redis)
        intake_stop = IntakeStop(settings.redis, **redis)
        cancellations = Cancellations(settings.redis, **redis)
        eviction = EvictionWatch(settings.redis, max_connections=1, **redis)
        for client in (counters, intake_stop, cancellations, eviction):
            stack.push_async_callback(client.close)
        preparing = asyncio.create_task(counters.prepare(PREPARE_SECONDS))
        store = await stack.enter_async_context(open_store(settings, supervisor))
        tables = Tables(partial(Informer, kube), settings.account_defaults)
        process.follow({table.plural: table for table in tables.informers})
        key_use = KeyUse(counters)
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            **{f"watch_of_{table.plural}": table.run for table in tables.informers},
            "rows_of_tasks": tables.task_rows.run,
            "lineage": Lineage(kube).run,
            "key_use": key_use.run,
            "event_loop_lag": process.watch_loop,
            "intake_stop": partial(intake.follow, intake_stop),
            "eviction": partial(eviction.run, process.note_eviction),
            "cancellations": cancellations.follow,
        }
        runs = [asyncio.create_task(supervisor.keep(*loop)) for loop in loops.items()]
        try:
            yield McpParts(
                settings=settings,
                kube=kube,
                counters=counters,
                store=store,
                tables=tables,
                rebuilder=Rebuilder(kube, JournalStore(store), counters),
                key_use=key_use,
                id_key=id_key,
                peppers=peppers,
                intake=intake,
                cancellations=cancellations,
                registry=registry,
                access=stack.enter_context(open_access_log(settings)),
                tracer=tracer,
                connections=ConnectionTable(settings.connection_bounds),
                is_prepared=preparing.done,
            )
        finally:
            await key_use.report()
            # nothing after this must be completed, so SIGTERM may end the process
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            started: list[asyncio.Task[Any]] = [*runs, preparing]
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)
