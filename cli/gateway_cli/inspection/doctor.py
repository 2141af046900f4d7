"""`gatewayctl doctor`: what is wrong with a gateway, and what to do."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from gateway_cli import options as opt
from gateway_cli.cluster.client import Cluster, Kind, open_cluster
from gateway_cli.cluster.errors import ClusterError, NotThere
from gateway_cli.cluster.gateways import NoGateway, require_gateway
from gateway_cli.inspection.findings import Check, Finding, Level, bound, error, note, warning
from gateway_cli.inspection.metrics import SKEW_SECONDS, check_metrics, check_shards
from gateway_cli.inspection.processes import (
    ClusterProcesses,
    LocalProcesses,
    Process,
    find_local_run,
)
from gateway_cli.inspection.rules import OBJECT_RULES, Rule, check_definitions, check_ready
from gateway_cli.install.trial import check_calls, check_readiness
from gateway_cli.output import Output, count, make_console, pluralize, print_data
from gateway_cli.rest.client import RestApi
from gateway_cli.session import EXIT_FAILED, CommandError, exit_on_error
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.crd import KINDS
from gateway_core.api.ids import GROUP
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload
from gateway_core.kube.clock import CLOCK

BETWEEN_SECONDS = 2.0
"""Between two looks at counters."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MOST_RESTARTS = 3
SEE_LOG = {
    "pods": "`kubectl describe pod` and `kubectl logs` of it have the reason",
    "processes": "its log in .local/log has the reason",
}
"""Advice on a process that is not ready, by the place of the processes."""
SEE_PREVIOUS = {
    "pods": "`kubectl logs --previous` has the reason",
    "processes": SEE_LOG["processes"],
}
MARKS = {
    "ok": ("✓", "green"),
    "note": ("·", ""),
    "warning": ("!", "yellow"),
    "error": ("✗", "red"),
    "skipped": ("-", "dim"),
}

Processes = ClusterProcesses | LocalProcesses

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    base_url: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_BASE_URL",
            help="The API's address, to test it from here; with $GATEWAY_API_KEY also a call and"
            " the store.",
        ),
    ] = None,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Find what is wrong with a gateway in a cluster or a local run, and say what to do.

    Changes nothing, but for a File that is written and deleted if an API key is given. Exit code
    1: something is wrong; warnings alone do not count.
    """
    with exit_on_error():
        checks = asyncio.run(_examine(namespace, base_url, os.environ.get(opt.KEY_VARIABLE)))
    is_well = all(check.state != Level.ERROR for check in checks)
    if output == "table":
        for check in checks:
            _print(check)
    else:
        print_data({"ok": is_well, "checks": [check.describe() for check in checks]}, output)
    if not is_well:
        raise typer.Exit(EXIT_FAILED)


async def _examine(namespace: str | None, base_url: str | None, key: str | None) -> list[Check]:
    """Return all checks in order; one that cannot look is skipped, with the reason."""
    local = find_local_run()
    checks = [_check_local(local)] if local else []
    try:
        async with open_cluster(namespace) as cluster:
            checks.append(await _check_control_plane(cluster))
            checks.append(await _try("definitions", lambda: _look_at_definitions(cluster)))
            misnamed = await _check_namespace(cluster)
            checks += misnamed
            checks += await _look_at_objects(cluster, CLOCK.now())
            # the processes of a local run are those of its own namespace
            own = local if local is not None and not misnamed else ClusterProcesses(cluster)
            checks += await _look_at_processes(own)
    except ClusterError as failure:
        action = (
            "start it: `make up`"
            if local is not None
            else "name a cluster: --kubeconfig, --context or KUBECONFIG (of a local run:"
            " `set -a; . .local/gateway.env`)"
        )
        checks.append(Check("control plane", "", [error("Kubernetes API", str(failure), action)]))
        if local is not None:
            checks += await _look_at_processes(local)
    if base_url:
        checks.append(await _check_api(base_url, key))
    return checks


async def _try(name: str, look: Callable[[], Awaitable[Check]]) -> Check:
    try:
        return await look()
    except ClusterError as failure:
        return Check(name, skipped=str(failure))


async def _check_namespace(cluster: Cluster) -> list[Check]:
    """Return what is wrong where another namespace has a gateway, and this one none."""
    try:
        await require_gateway(cluster)
    except NoGateway as failure:
        if failure.others:
            action = "name its namespace: -n NAMESPACE"
            return [Check("gateway", "", [error("namespace", str(failure), action)])]
    return []


def _check_local(local: LocalProcesses) -> Check:
    if local.is_running:
        return Check("local run", f"a run is up in {local.folder}")
    text = f"the run of {local.folder} is not up"
    return Check("local run", "", [error("local run", text, "start it: `make up`")])


async def _check_control_plane(cluster: Cluster) -> Check:
    """Check the Kubernetes API and its clock. ClusterError if it does not answer."""
    version = await cluster.call("GET", "/version")
    skew = CLOCK.skew
    found = []
    if abs(skew) > SKEW_SECONDS:
        text = f"this machine's clock differs from the cluster's by {skew:.0f} s"
        found.append(warning("clock", text, "synchronise the clocks (NTP)"))
    server = f"{cluster.server} answers ({version.get('gitVersion')})"
    return Check("control plane", f"{server}, namespace {cluster.namespace}", found)


async def _look_at_definitions(cluster: Cluster) -> Check:
    installed: dict[str, Object] = {}
    for kind in KINDS:
        name = f"{kind.plural}.{GROUP}"
        with contextlib.suppress(NotThere):
            installed[name] = await cluster.call("GET", f"{CRDS}/{name}")
    found = bound(check_definitions(installed), "`kubectl get crd`")
    return Check("definitions", f"{len(installed)} of {len(KINDS)} CRDs are installed", found)


async def _look_at_objects(cluster: Cluster, now: datetime) -> list[Check]:
    async def look(word: str, kind: Kind, rule: Rule) -> Check:
        # a run is never Ready; settled tasks need no attention
        is_run = kind in (GatewayTask, GatewayBatch, GatewayUpload)
        fields = {"status.work": ""} if kind in (GatewayTask, GatewayUpload) else {}
        objects = await cluster.list_all(kind, **fields)
        found = [] if is_run else list(check_ready(objects, word, now))
        found += rule(objects, now)
        found = bound(found, f"`kubectl get {kind.plural}`")
        return Check(pluralize(word), count(len(objects), word), found)

    return [
        await _try(pluralize(word), partial(look, word, *entry))
        for word, entry in OBJECT_RULES.items()
    ]


async def _look_at_processes(source: Processes) -> list[Check]:
    try:
        processes = await source.read()
    except ClusterError as failure:
        return [Check("processes", skipped=str(failure))]
    inside = await _try("inside", lambda: _look_inside(source, processes))
    return [check_processes(processes, source.place), inside]


def check_processes(processes: list[Process], place: str) -> Check:
    """Check that every process is there and ready."""
    found = []
    for process in processes:
        subject = f"{process.component} {process.instance}"
        if not process.ready:
            found.append(error(subject, process.problem or "not ready", SEE_LOG[place]))
        elif process.restarts > MOST_RESTARTS:
            text = f"ready, but restarted {count(process.restarts, 'time')}"
            found.append(note(subject, text, SEE_PREVIOUS[place]))
    if not processes:
        text = f"there are no {place} of the gateway"
        found.append(error("gateway", text, "install the chart (docs/install.md), or `make up`"))
    ready = sum(process.ready for process in processes)
    return Check("processes", f"{ready} of {len(processes)} are ready", found)


async def _look_inside(source: Processes, processes: list[Process]) -> Check:
    """Look twice at the processes' own metrics, whose counters grow in between."""
    ready = [process for process in processes if process.ready and process.serves_metrics]

    async def read() -> list[object]:
        return await asyncio.gather(*map(source.read_metrics, ready), return_exceptions=True)

    earlier = await read()
    await asyncio.sleep(BETWEEN_SECONDS)
    later = await read()
    found: list[Finding] = []
    read_processes = []
    for process, before, after in zip(ready, earlier, later, strict=True):
        subject = f"{process.component} {process.instance}"
        if isinstance(before, dict) and isinstance(after, dict):
            found += check_metrics(subject, after, before)
            read_processes.append((process.component, after))
        else:
            text = f"its metrics cannot be read: {after}"
            found.append(note(subject, text, "allow it in networkPolicies.metricsFrom"))
    operators = [samples for component, samples in read_processes if component == "operator"]
    if len(operators) == sum(process.component == "operator" for process in processes) > 0:
        found += check_shards(operators)
    summary = f"metrics of {len(read_processes)} of {len(ready)} processes"
    return Check("inside", summary, bound(found, "the processes' /metrics"))


async def _check_api(base_url: str, key: str | None) -> Check:
    told: list[str] = []
    found = []
    try:
        async with RestApi(base_url, key or "", lambda _: None) as api:
            await check_readiness(api, told.append, seconds=0.0)
            if key:
                await check_calls(api, told.append)
    except CommandError as failure:
        action = "is the address right, and does the way to it (Ingress, Service) work?"
        if told:
            # the API was ready a moment ago, so the error is its own answer
            action = "see the findings above, and the log of the API"
        found = [error(base_url, str(failure), action)]
    return Check("API from here", "; ".join(told), found)


def _print(check: Check) -> None:
    console = make_console(sys.stdout)
    mark, style = MARKS[check.state]
    about = check.skipped or check.summary
    console.print(Text(f"{mark} {check.name}: {about}".rstrip(": "), style=style), soft_wrap=True)
    for finding in check.findings:
        mark, style = MARKS[finding.level.value]
        text = f"    {mark} {finding.subject}: {finding.text}"
        console.print(Text(text, style=style), soft_wrap=True)
        console.print(Text(f"      → {finding.action}"), soft_wrap=True)
