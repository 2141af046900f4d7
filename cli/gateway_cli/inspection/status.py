"""`gatewayctl status`: a gateway at a glance."""

import asyncio
from collections import Counter
from dataclasses import asdict
from typing import Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_state, dollars
from gateway_cli.admin.usage import group_rows, list_rows
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import ClusterError, Forbidden
from gateway_cli.cluster.gateways import require_gateway
from gateway_cli.inspection.processes import ClusterProcesses, find_local_run
from gateway_cli.output import Column, Document, Output, count, print_list, print_note, print_one
from gateway_core.api.account import GatewayAccount
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import GatewayTask, name_phase
from gateway_core.api.usage import GatewayUsage
from gateway_core.kube.clock import CLOCK

KINDS: dict[str, type[Resource]] = {
    "providers": GatewayProvider,
    "models": GatewayModel,
    "accounts": GatewayAccount,
    "keys": GatewayKey,
}
LINES = (
    Column("Kubernetes API", "server"),
    Column("Namespace", "namespace"),
    *(
        Column(name.capitalize(), lambda status, name=name: _show_ready(status[name]))  # type: ignore[misc]
        for name in KINDS
    ),
    Column("Open tasks", lambda status: status["open_tasks"] or "none"),
    Column("Today (UTC)", lambda status: _show_today(status["today"])),
)
PROCESS_COLUMNS = (
    Column("COMPONENT", "component"),
    Column("INSTANCE", "instance"),
    Column("READY", "ready"),
    Column("RESTARTS", "restarts", right=True),
    Column("VERSION", "version"),
    Column("PROBLEM", "problem"),
)

app = typer.Typer(add_completion=False)


@app.command()
def status(namespace: opt.Namespace = None, output: Output = "table") -> None:
    """Show processes, objects, open tasks and today's calls; `doctor` says what is wrong."""
    document = on_cluster(namespace, _read)
    print_one(document, LINES, output)
    if output != "table":
        return
    print_list(document["processes"], PROCESS_COLUMNS, output, noun="processes")
    if not all(process["ready"] for process in document["processes"]):
        print_note("! not all processes are ready: `gatewayctl doctor` says more")


async def _read(cluster: Cluster) -> Document:
    """Return the document; counts are null where the right to read them is missing."""
    await require_gateway(cluster)
    counts = await asyncio.gather(*(_count(cluster, kind) for kind in KINDS.values()))
    source = find_local_run() or ClusterProcesses(cluster)
    try:
        processes = [asdict(process) for process in await source.read()]
    except ClusterError as error:
        print_note(f"! {error}")
        processes = []
    tasks = await _try_list(cluster, GatewayTask, **{"status.work": ""})
    day = CLOCK.now().date().isoformat()
    usage = await _try_list(cluster, GatewayUsage, **{"spec.day": day})
    return {
        "server": cluster.server,
        "namespace": cluster.namespace,
        **dict(zip(KINDS, counts, strict=True)),
        "open_tasks": None if tasks is None else count_phases(tasks),
        "today": None if usage is None else sum_day(usage),
        "processes": processes,
    }


def count_phases(tasks: list[Object]) -> dict[str, int]:
    """Return unsettled tasks by phase; without one they are Pending."""
    phases = Counter(name_phase(task.get("status") or {}) for task in tasks)
    return dict(sorted(phases.items()))


def sum_day(usage: list[Object]) -> Document:
    """Return all accounts' calls of the day."""
    rows = [row for obj in usage for row in list_rows(obj)]
    if not rows:
        return {"requests": 0, "failed": 0, "cost": dollars(0), "cost_micros": 0}
    [total] = group_rows(rows, [])
    return total


def count_ready(objects: list[Object]) -> dict[str, int]:
    """Return the number of all objects and of the Ready ones."""
    ready = sum(describe_state(obj)["ready"] == "True" for obj in objects)
    return {"total": len(objects), "ready": ready}


async def _count(cluster: Cluster, kind: type[Resource]) -> dict[str, int] | None:
    objects = await _try_list(cluster, kind)
    return None if objects is None else count_ready(objects)


async def _try_list(cluster: Cluster, kind: type[Resource], **fields: str) -> list[Object] | None:
    try:
        return await cluster.list_all(kind, **fields)
    except Forbidden:
        return None


def _show_ready(count: dict[str, int] | None) -> str | None:
    return None if count is None else f"{count['ready']} of {count['total']} ready"


def _show_today(today: Any) -> str | None:
    if today is None:
        return None
    return f"{count(today['requests'], 'call')}, {today['failed']} failed, {today['cost']} USD"
