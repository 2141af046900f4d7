"""Everything that `status` and `doctor` read of a gateway, each part on its own."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError, NotThere
from gateway_cli.inspection.definitions import check_definitions
from gateway_cli.inspection.findings import Check, Finding, bound, error, note, warning
from gateway_cli.inspection.metrics import SKEW_SECONDS, Samples, check_metrics, check_shards
from gateway_cli.inspection.processes import (
    ClusterProcesses,
    LocalProcesses,
    Process,
)
from gateway_cli.inspection.rules import (
    check_accounts,
    check_catalog,
    check_guardrails,
    check_health,
    check_keys,
    check_ready,
    check_tasks,
)
from gateway_core.api.account import GatewayAccount
from gateway_core.api.crd import KINDS
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import GROUP
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import GatewayTask
from gateway_core.kube.clock import CLOCK

BETWEEN_SECONDS = 2.0
"""Between two looks at counters."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MOST_RESTARTS = 3

Processes = ClusterProcesses | LocalProcesses
Kind = type[Resource]
Look = Callable[[], Awaitable[Check]]


async def check_control_plane(cluster: Cluster) -> Check:
    """Whether the Kubernetes API answers, and its clock. Raises ClusterError if it does not."""
    version = await cluster.call("GET", "/version")
    skew = CLOCK.skew
    found = []
    if abs(skew) > SKEW_SECONDS:
        text = f"this machine's clock differs from the cluster's by {skew:.0f} s"
        found.append(warning("clock", text, "synchronise the clocks (NTP)"))
    server = f"{cluster.server} answers ({version.get('gitVersion')})"
    return Check("control plane", f"{server}, namespace {cluster.namespace}", found)


async def look_at_definitions(cluster: Cluster) -> Check:
    """The CRDs."""
    installed: dict[str, Object] = {}
    for kind in KINDS:
        name = f"{kind.plural}.{GROUP}"
        with contextlib.suppress(NotThere):
            installed[name] = await cluster.call("GET", f"{CRDS}/{name}")
    found = bound(check_definitions(installed), "`kubectl get crd`")
    return Check("definitions", f"{len(installed)} of {len(KINDS)} CRDs are installed", found)


async def look_at_objects(
    cluster: Cluster,
    name: str,
    kind: Kind,
    check: Callable[[list[Object]], Iterable[Finding]],
    **fields: str,
) -> Check:
    """Objects of one kind."""
    objects = await cluster.list_all(kind, **fields)
    where = f"`kubectl get {kind.plural}`"
    return Check(name, f"{len(objects)} {name}", bound(check(objects), where))


def list_object_checks(cluster: Cluster, now: datetime) -> dict[str, Look]:
    """The checks of objects, by name."""

    def both(word: str) -> Callable[[list[Object]], Iterable[Finding]]:
        return lambda objects: [*check_ready(objects, word, now), *check_health(objects, word)]

    def look(name: str, kind: Kind, check: Any, **fields: str) -> Look:
        return lambda: look_at_objects(cluster, name, kind, check, **fields)

    return {
        "providers": look("providers", GatewayProvider, both("provider")),
        "models": look("models", GatewayModel, both("model")),
        "accounts": look(
            "accounts",
            GatewayAccount,
            lambda objects: [*check_ready(objects, "account", now), *check_accounts(objects)],
        ),
        "keys": look(
            "keys",
            GatewayKey,
            lambda objects: [*check_ready(objects, "key", now), *check_keys(objects, now)],
        ),
        "guardrails": look(
            "guardrails",
            GatewayGuardrail,
            lambda objects: [
                *check_ready(objects, "guardrail", now),
                *check_guardrails(objects),
            ],
        ),
        "open tasks": look(
            "open tasks",
            GatewayTask,
            lambda objects: check_tasks(objects, now),
            **{"status.work": ""},
        ),
        "first steps": lambda: _look_at_catalog(cluster),
    }


async def _look_at_catalog(cluster: Cluster) -> Check:
    kinds: tuple[Kind, ...] = (GatewayProvider, GatewayModel, GatewayAccount)
    found = [await cluster.list_all(kind) for kind in kinds]
    return Check("first steps", "providers, models and accounts exist", [*check_catalog(*found)])


def check_processes(processes: list[Process], place: str) -> Check:
    """Whether every process is there and ready."""
    found = []
    for process in processes:
        subject = f"{process.component} {process.instance}"
        if not process.ready:
            found.append(error(subject, process.problem or "not ready", "see its log and events"))
        elif process.restarts > MOST_RESTARTS:
            text = f"ready, but restarted {process.restarts} times"
            found.append(note(subject, text, "`kubectl logs --previous` has the reason"))
    if not processes:
        text = f"there are no {place} of the gateway"
        found.append(error("gateway", text, "install the chart (docs/install.md), or `make up`"))
    ready = sum(process.ready for process in processes)
    return Check("processes", f"{ready} of {len(processes)} are ready", found)


async def look_inside(source: Processes, processes: list[Process]) -> Check:
    """The processes' own metrics, looked at twice. ClusterError where no metrics can be read."""
    ready = [each for each in processes if each.ready and each.serves_metrics]
    earlier = await _read_all(source, ready)
    await asyncio.sleep(BETWEEN_SECONDS)
    later = await _read_all(source, ready)
    found: list[Finding] = []
    operators: list[Samples] = []
    for process, before, after in zip(ready, earlier, later, strict=True):
        subject = f"{process.component} {process.instance}"
        if isinstance(after, ClusterError) or isinstance(before, ClusterError):
            text = f"its metrics cannot be read: {after}"
            found.append(note(subject, text, "allow it in networkPolicies.metricsFrom"))
            continue
        found += check_metrics(subject, after, before)
        if process.component == "operator":
            operators.append(after)
    if len(operators) == sum(process.component == "operator" for process in processes) > 0:
        found += check_shards(operators)
    read = sum(not isinstance(each, ClusterError) for each in later)
    where = "the processes' /metrics"
    return Check("inside", f"metrics of {read} of {len(ready)} processes", bound(found, where))


async def _read_all(
    source: Processes, processes: Iterable[Process]
) -> list[Samples | ClusterError]:
    async def read(process: Process) -> Samples | ClusterError:
        try:
            return await source.read_metrics(process)
        except ClusterError as error:
            return error

    return list(await asyncio.gather(*map(read, processes)))
