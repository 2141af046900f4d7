"""`gatewayctl doctor`: what is wrong with a gateway, and what to do."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer
from rich.text import Text

from gateway_cli import options as opt
from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.inspection.findings import Check, Level, error
from gateway_cli.inspection.overview import (
    Look,
    Processes,
    check_control_plane,
    check_processes,
    list_object_checks,
    look_at_definitions,
    look_inside,
)
from gateway_cli.inspection.processes import ClusterProcesses, LocalProcesses, find_local_run
from gateway_cli.install.trial import check_calls, check_readiness
from gateway_cli.output import Output, make_console, print_data
from gateway_cli.rest.client import RestApi
from gateway_cli.session import EXIT_FAILED, CommandError, exit_on_error
from gateway_core.kube.clock import CLOCK

MARKS = {
    "ok": ("✓", "green"),
    "note": ("·", ""),
    "warning": ("!", "yellow"),
    "error": ("✗", "red"),
    "skipped": ("-", "dim"),
}

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
    """All checks, in order; one that cannot look is skipped, with the reason."""
    local = find_local_run()
    checks: list[Check] = []
    if local is not None:
        checks.append(_check_local(local))
    try:
        async with open_cluster(namespace) as cluster:
            checks.append(await check_control_plane(cluster))
            looks: dict[str, Look] = {"definitions": lambda: look_at_definitions(cluster)}
            looks |= list_object_checks(cluster, CLOCK.now())
            checks += [await _try(name, look) for name, look in looks.items()]
            checks += await _look_at_processes(local or ClusterProcesses(cluster))
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


def _check_local(local: LocalProcesses) -> Check:
    if local.is_running:
        return Check("local run", f"a run is up in {local.folder}")
    text = f"the run of {local.folder} is not up"
    return Check("local run", "", [error("local run", text, "start it: `make up`")])


async def _look_at_processes(source: Processes) -> list[Check]:
    try:
        processes = await source.read()
    except ClusterError as failure:
        return [Check("processes", skipped=str(failure))]
    inside = await _try("inside", lambda: look_inside(source, processes))
    return [check_processes(processes, source.place), inside]


async def _check_api(base_url: str, key: str | None) -> Check:
    told: list[str] = []
    try:
        async with RestApi(base_url, key or "", lambda _: None) as api:
            await check_readiness(api, told.append, seconds=0.0)
            if key:
                await check_calls(api, told.append)
    except CommandError as failure:
        action = "is the address right, and does the way to it (Ingress, Service) work?"
        found = [error(base_url, str(failure), action)]
        return Check("API from here", "; ".join(told), found)
    return Check("API from here", "; ".join(told))


async def _try(name: str, look: Callable[[], Awaitable[Check]]) -> Check:
    try:
        return await look()
    except ClusterError as failure:
        return Check(name, skipped=str(failure))


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
