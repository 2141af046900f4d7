"""docs/pictures/dashboard.svg: the chart's Grafana dashboard, drawn from a load run.

A Prometheus scrapes a local run under load and answers the dashboard's queries; Vega draws the
series, since Grafana is in no registry of packages.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
import vl_convert
import yaml
from tools import dashboard
from tools.pictures.studio import open_studio
from tools.programs import ensure_program

from gateway_cli.local.config import LOOPBACK, is_busy
from gateway_cli.local.processes import ProcessSpec
from gateway_cli.local.run import LocalRun

LOAD_SECONDS = 420
SCRAPE_SECONDS = 5
STEP_SECONDS = 10
JOB_SECONDS = "1-9"
FAILING_CALLBACKS = 0.08
_SERVICES = {"api": "api_health", "mcp": "mcp_health", "media": "media_health"}
"""The port of each Service `…-health` that the chart's ServiceMonitors choose."""
_NUMBER = "format(datum.value, datum.value >= 1000 ? '.3~s' : '.3~r')"
_UNITS = {
    "s": "datum.value >= 120 ? format(datum.value / 60, '.3~r') + ' min'"
    " : format(datum.value, '.3~s') + 's'",
    "bytes": "format(datum.value, '.3~s') + 'B'",
    "Bps": "format(datum.value, '.3~s') + 'B/s'",
    "reqps": f"{_NUMBER} + ' req/s'",
    "ops": f"{_NUMBER} + ' ops/s'",
    "percentunit": "format(datum.value, '.3~%')",
    "short": _NUMBER,
}
"""Grafana's units as expressions of Vega."""
_LOOK = {
    "aria": False,
    "axis": {"domain": False, "gridColor": "#e7e8eb", "ticks": False},
    "legend": {
        "columns": 2,
        "labelLimit": 190,
        "orient": "bottom",
        "symbolLimit": 8,
        "symbolType": "stroke",
    },
    "title": {"anchor": "start"},
    "view": {"fill": "#fff", "stroke": "#d8dadd"},
}
_WASTE = re.compile(
    r'<path [^>]*d="(?:M0,0h[^"]*)?"[^>]*/>| (?:class|aria-hidden|pointer-events)="[^"]*"'
    r'| opacity="1"'
)
"""What Vega writes for its own scripts, and boxes that nothing is drawn in."""

Answers = Mapping[str, Sequence[Mapping[str, Any]]]
"""The series of Prometheus by query: `metric` has the labels, `values` times and texts."""


@dataclass(frozen=True, slots=True)
class Span:
    """The times that the picture shows, in Unix seconds."""

    start: int
    end: int


async def draw_dashboard() -> str:
    """Return the SVG of a load run that takes place now, for some ten minutes."""
    jobs = {"simulator": {"GATEWAY_SIMULATOR_SECONDS": JOB_SECONDS}}
    async with open_studio(jobs, FAILING_CALLBACKS) as studio:
        run = studio.run
        url = await start_prometheus(run)
        start = int(time.time())
        await studio.load.run(LOAD_SECONDS)
        span = Span(start, start + LOAD_SECONDS)
        async with aiohttp.ClientSession(url, raise_for_status=True) as session:
            answers = {
                query: await _ask(session, fill_variables(query, run.config.namespace), span)
                for query in dashboard.list_queries()
            }
    return draw(json.loads(dashboard.PATH.read_text()), answers, span)


async def start_prometheus(run: LocalRun) -> str:
    """Start a Prometheus that scrapes the processes of a run and ends with them.

    Raises:
        ProgramMissingError: it is not there and cannot be built.
        LocalRunError: it does not become ready.
    """
    config, port = run.config, next(port for port in range(19_090, 19_190) if not is_busy(port))
    services = {f"{name}-health": config.ports.of(key) for name, key in _SERVICES.items()}
    services["operator"] = config.ports.of("operator")
    scrapes = [
        {
            "job_name": service,
            "static_configs": [
                {
                    "targets": [f"{LOOPBACK}:{target}"],
                    "labels": {
                        "namespace": config.namespace,
                        "service": f"model-gateway-{service}",
                        "pod": f"{service.removesuffix('-health')}-0",
                    },
                }
            ],
        }
        for service, target in services.items()
    ]
    interval = {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"}
    path = config.directory / "prometheus.yml"
    path.write_text(yaml.safe_dump({"global": interval, "scrape_configs": scrapes}))
    url = f"http://{LOOPBACK}:{port}"

    async def is_ready() -> bool:
        try:
            async with aiohttp.ClientSession(url) as session, session.get("/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    command = (
        str(ensure_program("prometheus")),
        f"--config.file={path}",
        f"--storage.tsdb.path={config.directory / 'prometheus'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--log.level=warn",
    )
    await run.supervisor.start(ProcessSpec("prometheus", command, os.environ, is_ready))
    return url


async def _ask(session: aiohttp.ClientSession, query: str, span: Span) -> list[dict[str, Any]]:
    asked = {"query": query, "start": span.start, "end": span.end, "step": STEP_SECONDS}
    async with session.post("/api/v1/query_range", data=asked) as answer:
        series: list[dict[str, Any]] = (await answer.json())["data"]["result"]
    return sorted(series, key=lambda each: sorted(each["metric"].items()))


def fill_variables(query: str, namespace: str) -> str:
    """Return the query for all processes of the namespace, without Grafana's variables."""
    query = query.replace("$namespace", namespace).replace("$service", ".+")
    return query.replace("$__rate_interval", f"{4 * SCRAPE_SECONDS}s")


def draw(board: Mapping[str, Any], answers: Answers, span: Span) -> str:
    """Return the SVG: each row of the dashboard with its panels, three in a line."""
    rows: list[dict[str, Any]] = []
    alone = {"scale": {"color": "independent"}}
    for panel in board["panels"]:
        if panel["type"] == "row":
            title = {"text": panel["title"], "fontSize": 15}
            rows.append({"title": title, "columns": 3, "concat": [], "resolve": alone})
        else:
            rows[-1]["concat"].append(_describe_panel(panel, answers, span))
    note = (
        f"{(span.end - span.start) // 60} minutes of a load run from"
        f" {datetime.fromtimestamp(span.start, UTC):%Y-%m-%d %H:%M} UTC, drawn by make pictures"
        " from the dashboard's queries"
    )
    head = {"text": board["title"], "fontSize": 22, "subtitle": note, "offset": 16}
    picture = {"title": head, "background": "#f4f5f5", "config": _LOOK, "vconcat": rows}
    return _WASTE.sub("", vl_convert.vegalite_to_svg({**picture, "resolve": alone})) + "\n"


def _describe_panel(panel: Mapping[str, Any], answers: Answers, span: Span) -> dict[str, Any]:
    """Return the panel as Vega-Lite describes plots."""
    options = panel["fieldConfig"]["defaults"]
    is_stacked = options["custom"]["stacking"]["mode"] == "normal"
    points = []
    for target in panel["targets"]:
        for series in answers[target["expr"]]:
            name = _fill_legend(target["legendFormat"], series["metric"])
            values = {at: float(text) for at, text in series["values"] if text != "NaN"}
            # the line is broken where a value is missing
            points += [
                {"at": at * 1000, "value": values.get(at), "name": name}
                for at in range(span.start, span.end + 1, STEP_SECONDS)
            ]
    frame = {"title": panel["title"], "width": 400, "height": 110}
    if not any(point["value"] is not None for point in points):
        return {**frame, "data": {"values": [{}]}, "mark": {"type": "text", "text": "No data"}}
    return {
        **frame,
        "data": {"values": points},
        "mark": {"type": "area", "line": True, "fillOpacity": 0.25}
        if is_stacked
        else {"type": "line", "strokeWidth": 1.5},
        "encoding": {
            "x": {
                "field": "at",
                "type": "temporal",
                "title": None,
                "scale": {"type": "utc", "domain": [span.start * 1000, span.end * 1000]},
                "axis": {"format": "%H:%M", "tickCount": 6},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": None,
                "axis": {"labelExpr": _UNITS[options["unit"]], "minExtent": 60, "tickCount": 4},
            },
            "color": {"field": "name", "type": "nominal", "sort": None, "title": None},
        },
    }


def _fill_legend(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend).strip()
