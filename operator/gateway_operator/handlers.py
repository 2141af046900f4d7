"""kopf's handlers: the operator as `kopf run -m gateway_operator.handlers -n NAMESPACE` runs it.

| kopf | here |
|---|---|
| startup | the controllers, which `memo.operator` holds, and kopf's settings |
| login | the process's connection to the Kubernetes API, with the same credentials |
| event | tasks, batches, files, uploads: to the controller of each kind; the heartbeat's Lease |
| probe | fails once the watch is dead |
| cleanup | completes what may have started a job, within the grace period |

Only `on.event` is used for objects: kopf's change handlers would write an annotation to every
object and run a coroutine for each. Server-side selectors leave out ended work and the shards of
other replicas, so a restart loads live work only. Configuration kinds are followed by informers.
"""

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any

import aiohttp
import kopf
from pydantic import ValidationError

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import GROUP, VERSION
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload
from gateway_core.concurrency import Supervisor
from gateway_core.egress.connector import send_through
from gateway_core.kube.connection import Connection, Credentials
from gateway_core.observability.logs import configure_logging
from gateway_core.settings import list_problems
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.compose import Operator, start_operator
from gateway_operator.context import Shards
from gateway_operator.settings import Settings

TASKS = (GROUP, VERSION, GatewayTask.plural)
BATCHES = (GROUP, VERSION, GatewayBatch.plural)
FILES = (GROUP, VERSION, GatewayFile.plural)
UPLOADS = (GROUP, VERSION, GatewayUpload.plural)
LEASES = ("coordination.k8s.io", "v1", "leases")

# a failure is final: whatever runs the process starts it again
ONCE = kopf.ErrorsMode.PERMANENT


@kopf.on.startup(errors=ONCE)
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Start the controllers. Raises what keeps them from starting, which ends kopf."""
    if settings.peering.clusterwide:
        raise kopf.PermanentError("the operator works in one namespace: name it with -n")
    own = read_settings()
    configure_logging(own.log_level, own.log_format)
    configure(settings, own.shards, own.namespace, own.lease)
    # else each full collection visits the classes of `kubernetes`, which kopf imports
    gc.collect()
    gc.freeze()
    memo.operator = await start_operator(own)


def read_settings() -> Settings:
    """Return the settings. Raises PermanentError, which names the variables that are wrong."""
    try:
        return Settings()  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        raise kopf.PermanentError("; ".join(list_problems(error))) from None


@kopf.on.cleanup(errors=ONCE)
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Complete what may have started a job, and close all connections."""
    ignore_signals()
    operator: Operator = memo.operator
    await end_watches()
    await operator.stop()


def ignore_signals() -> None:
    """Ignore further signals: kopf's handlers set the result of a future, which fails again."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lambda: None)


async def end_watches() -> None:
    """Cancel kopf's watches and wait for their end.

    kopf leaves them running where one has failed. Five seconds later it cancels each together with
    its pause waiter, which the watch may take for a pause: it goes on, and kopf never returns.
    """
    watches = [task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")]
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)


@kopf.on.login(errors=ONCE)
async def log_in(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
    """Log in with credentials read anew; kopf repeats it after a 401."""
    operator: Operator = memo.operator
    return await login_to(operator.connection, operator.supervisor)


@kopf.on.probe(id="heartbeat", errors=ONCE)
async def probe(memo: kopf.Memo, **_: Any) -> str:
    """Fail the liveness probe while renewals of the heartbeat are not shown by the watch."""
    operator: Operator = memo.operator
    if operator.heartbeat.is_lost:
        raise kopf.PermanentError("the watch is dead")
    return "ok"


@kopf.on.event(*TASKS)
@kopf.on.event(*BATCHES)
@kopf.on.event(*FILES)
@kopf.on.event(*UPLOADS)
async def observe(event: kopf.RawEvent, resource: kopf.Resource, memo: kopf.Memo, **_: Any) -> None:
    """Show the controller of the kind an event; it keeps the object and returns at once.

    An object that is no longer selected is shown as DELETED, as it was before.
    """
    operator: Operator = memo.operator
    # counted; kopf only logs what a handler raises
    with operator.supervisor.guard("events", kind=resource.plural):
        operator.controllers[resource.plural].observe(event["type"], dict(event["object"]))


@kopf.on.event(*LEASES)
async def hear_heartbeat(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Note a renewal of the operator's own Lease."""
    operator: Operator = memo.operator
    if event["type"] != "DELETED":
        operator.hear()


def configure(settings: kopf.OperatorSettings, shards: Shards, namespace: str, lease: str) -> None:
    """Set what kopf watches and posts: no peering, few idle workers, quick and endless recovery."""
    settings.posting.reporting_component = "model-gateway"
    settings.posting.reporting_instance = socket.gethostname()
    settings.posting.event_name_prefix = "model-gateway-"
    settings.posting.default_backoffs = (1, 2, 5)
    settings.posting.idle_timeout = 0.1
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.peering.mandatory = False
    # the same for every kind, and a file may have 200 KB: 8 MB at most
    settings.watching.chunk_size = 40
    settings.watching.server_timeout = 300
    settings.watching.inactivity_timeout = 70
    settings.watching.reconnect_backoff = 0.1
    settings.queueing.idle_timeout = 0.2
    settings.networking.request_timeout = 20
    settings.networking.connect_timeout = 3
    settings.networking.error_backoffs = Backoffs()
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.diffbase_storage = NoDiffs()
    for resource in (TASKS, BATCHES, FILES, UPLOADS):
        if shards.selector:
            settings.watching.label_selectors[resource] = shards.selector
    # with another namespace in `-n` kopf sees nothing, not the objects of another gateway
    own = f"metadata.namespace={namespace}"
    settings.watching.field_selectors[FILES] = own
    for resource in (TASKS, BATCHES, UPLOADS):
        settings.watching.field_selectors[resource] = f"{own},{OPEN_SELECTOR}"
    settings.watching.field_selectors[LEASES] = f"{own},metadata.name={lease}"


class Backoffs:
    """Pauses before a request is repeated, without an end: kopf outlives any outage.

    The longest leaves several attempts before three heartbeats are missed.
    """

    def __iter__(self) -> Iterator[float]:
        """Begin anew for each request."""
        return chain((0.2, 0.5, 1.0, 2.0), repeat(3.0))


class NoDiffs(kopf.DiffBaseStorage):
    """Stores no last handled state, for which kopf copies each object: no handler uses it."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing of the object."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is stored."""


@dataclass(frozen=True, kw_only=True)
class Login(kopf.AiohttpSession):
    """A session for kopf: the same API server with the same identity, by the same proxy.

    kopf's own logins leave out a kubeconfig's impersonation, proxy and TLS server name.
    """

    aiohttp_session: aiohttp.ClientSession = field(repr=False, compare=False)
    connection: Connection = field(repr=False)
    credentials: Credentials = field(repr=False)


async def login_to(connection: Connection, supervisor: Supervisor) -> Login:
    """Open a session with credentials read anew.

    The login has no expiry of its own: kopf would interrupt all watches for it.
    """
    credentials = await asyncio.to_thread(connection.read_credentials)
    headers = list(connection.headers)
    if credentials.authorization is not None:
        headers.append(("Authorization", credentials.authorization))
    proxied = (partial(send_through, connection.proxy),) if connection.proxy else ()
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=connection.build_ssl(credentials) or True),
        headers=headers,
        middlewares=(partial(send_surely, supervisor), *proxied),
    )
    return Login(
        server=connection.server,
        aiohttp_session=session,
        connection=connection,
        credentials=credentials,
    )


async def send_surely(
    supervisor: Supervisor, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request of kopf; what would end a watch becomes an error that kopf repeats it after.

    One watch that fails ends the operator, and its work would wait for the pod's back-off. These
    failures pass: an exception that a reset of the TLS handshake causes in asyncio, a kind whose
    CRD is removed while the others are still completed, and a list that has expired between two
    of its pages.
    """
    try:
        response = await handler(request)
    except (aiohttp.ClientError, TimeoutError):
        raise
    except Exception as error:
        with supervisor.guard("feed"):
            raise
        raise aiohttp.ClientConnectionError(str(error)) from error
    if request.method == "GET" and "/namespaces/" in request.url.path:
        if response.status == 404:
            response.close()
            raise aiohttp.ClientConnectionError(f"{request.url.path} is not served")
        if response.status == 410:
            response.close()
            # this one leads to a new list, not to the same page again
            raise aiohttp.ClientPayloadError(f"the list of {request.url.path} has expired")
    return response
