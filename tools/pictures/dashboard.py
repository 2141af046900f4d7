"""docs/pictures/dashboard.svg: the chart's Grafana dashboard, drawn from a load run.

A Prometheus scrapes a local run under load, and answers the queries of the dashboard as the chart
has it. The panels lie as in Grafana, which is in no registry of packages and so does not draw them.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape

from tools.pictures.gateway import ROOT, run_gateway
from tools.pictures.load import open_load
from tools.pictures.plots import Curve, Place, Span, draw_plot
from tools.pictures.prometheus import RATE_SECONDS, SCRAPE_SECONDS, Prometheus, Series
from tools.pictures.studio import Studio, receive_callbacks

LOAD_SECONDS = 420.0
JOB_SECONDS = "1-9"
FAILING_CALLBACKS = 0.08
WIDTH, _UNIT, _ROW, _GAP, _HEAD = 1500, 25, 32, 8, 64
"""Pixels: of the picture, of a unit of the grid's height, of the head of a row, between panels."""
_COLUMNS = 24
_FONTS = "Inter,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif"
_STYLE = (
    f"text{{font:11px {_FONTS};fill:#52545c}}.title{{font-size:13px;font-weight:600;fill:#24292e}}"
    ".row{font-size:15px;font-weight:600;fill:#24292e}.head{font-size:22px;font-weight:600;"
    "fill:#24292e}.note{font-size:13px}.panel{fill:#fff;stroke:#d8dadd}.grid{stroke:#e7e8eb;"
    "fill:none}.line{fill:none;stroke-width:1.5;stroke-linejoin:round}.value{text-anchor:end}"
    ".time{text-anchor:middle}.none{text-anchor:middle;font-size:14px}"
)
_LABEL = re.compile(r"\{\{(\w+)\}\}")

Answers = Mapping[str, Sequence[Series]]
"""Series by the query of the dashboard."""


async def draw_dashboard() -> str:
    """The SVG of a load run that takes place now; it takes some ten minutes."""
    board = json.loads((ROOT / "charts/model-gateway/files/dashboard.json").read_text())
    jobs = {"simulator": {"GATEWAY_SIMULATOR_SECONDS": JOB_SECONDS}}
    async with run_gateway(jobs) as run, receive_callbacks(FAILING_CALLBACKS) as hook:
        studio = Studio(run)
        await studio.prepare(datetime.now(UTC))
        prometheus = Prometheus(run)
        await prometheus.start()
        async with open_load(run.config, studio, hook) as load:
            start = time.time()
            await load.run(LOAD_SECONDS)
        span = Span(start, start + LOAD_SECONDS, SCRAPE_SECONDS)
        answers = {
            query: await prometheus.query(
                fill_variables(query, run.config.namespace), span.start, span.end, span.step
            )
            for query in list_queries(board)
        }
    return compose(board, answers, span)


def list_queries(board: Mapping[str, Any]) -> list[str]:
    """Every query of the dashboard, with Grafana's variables."""
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def fill_variables(query: str, namespace: str) -> str:
    """The query for all processes of the namespace."""
    values = {
        "$namespace": namespace,
        "$service": ".+",
        "$__rate_interval": f"{RATE_SECONDS}s",
    }
    for name, value in values.items():
        query = query.replace(name, value)
    return query


def compose(board: Mapping[str, Any], answers: Answers, span: Span) -> str:
    """The picture: rows and panels at the places that the dashboard gives them."""
    tops = _list_tops(board)
    height = max(tops.values()) + _GAP
    title = board["title"]
    when = f"{datetime.fromtimestamp(span.start, UTC):%Y-%m-%d %H:%M} UTC"
    note = (
        f"{(span.end - span.start) / 60:.0f} minutes of a load run from {when}, drawn by"
        " make pictures from the dashboard's queries"
    )
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}"'
        f' width="{WIDTH}" height="{height:g}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect width="{WIDTH}" height="{height:g}" fill="#f4f5f5"/>'
        f'<text class="head" x="{2 * _GAP}" y="40">{escape(title)}</text>'
        f'<text class="note" x="230" y="39">{escape(note)}</text>'
    ]
    for panel in board["panels"]:
        grid = panel["gridPos"]
        y = tops[grid["y"]]
        if panel["type"] == "row":
            pieces.append(f'<text class="row" x="{2 * _GAP}" y="{y + 21:g}">')
            pieces.append(f"{escape(panel['title'])}</text>")
            continue
        unit = WIDTH / _COLUMNS
        place = Place(
            grid["x"] * unit + _GAP / 2,
            y + _GAP / 2,
            grid["w"] * unit - _GAP,
            grid["h"] * _UNIT - _GAP,
        )
        options = panel["fieldConfig"]["defaults"]
        is_stacked = options["custom"]["stacking"]["mode"] == "normal"
        curves = name_curves(panel, answers)
        pieces.append(draw_plot(panel["title"], options["unit"], curves, is_stacked, place, span))
    return "".join([*pieces, "</svg>\n"])


def _list_tops(board: Mapping[str, Any]) -> dict[int, float]:
    """The pixel of each line of the grid, whose rows' heads are lower than its other lines."""
    heads = {p["gridPos"]["y"] for p in board["panels"] if p["type"] == "row"}
    last = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    tops, y = {}, float(_HEAD)
    for line in range(last + 1):
        tops[line] = y
        y += _ROW if line in heads else _UNIT
    return tops


def name_curves(panel: Mapping[str, Any], answers: Answers) -> list[Curve]:
    """The series of a panel under the names that its legends give them."""
    return [
        Curve(_fill_legend(target["legendFormat"], series.labels), series.points)
        for target in panel["targets"]
        for series in answers[target["expr"]]
    ]


def _fill_legend(legend: str, labels: Mapping[str, str]) -> str:
    return _LABEL.sub(lambda found: labels.get(found[1], ""), legend).strip()
