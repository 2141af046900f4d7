"""The Grafana dashboard of the chart, drawn from `tools/panels`; used by `tools/generate.py`."""

import json
from typing import Any

from tools.panels import ROWS, Panel

_JOBS = 'namespace="$namespace",service=~"$service"'
_RATE = "$__rate_interval"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24


def list_queries() -> list[str]:
    """Every query as the dashboard holds it."""
    return [_fill(q.expr) for _, panels in ROWS for panel in panels for q in panel.queries]


def build_dashboard() -> str:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        panels.append(_number(panels, {"type": "row", "title": title, "gridPos": place}))
        top += 1
        for index, panel in enumerate(row):
            x, line = index * _WIDTH % _COLUMNS, index * _WIDTH // _COLUMNS
            place = {"x": x, "y": top + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_number(panels, _draw(panel, place)))
        top += -(-len(row) * _WIDTH // _COLUMNS) * _HEIGHT
    dashboard = {
        "uid": "model-gateway",
        "title": "Model Gateway",
        "tags": ["model-gateway"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_SOURCE, *map(_make_variable, ("namespace", "service"))]},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


_SOURCE = {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}


def _make_variable(name: str) -> dict[str, Any]:
    chosen = '{namespace="$namespace"}' if name == "service" else ""
    query = f"label_values(gateway_build_info{chosen}, {name})"
    several = name == "service"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": several,
        "includeAll": several,
        **({"current": {"text": ["All"], "value": ["$__all"]}} if several else {}),
    }


def _number(before: list[dict[str, Any]], panel: dict[str, Any]) -> dict[str, Any]:
    return {"id": len(before) + 1, **panel}


def _draw(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {
                    "fillOpacity": 20 if panel.stacked else 0,
                    "stacking": {"mode": "normal" if panel.stacked else "none"},
                },
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": _fill(q.expr), "legendFormat": q.legend}
            for index, q in enumerate(panel.queries)
        ],
    }


def _fill(expr: str) -> str:
    return expr.replace("JOBS", _JOBS).replace("RATE", _RATE)
