"""The Grafana dashboard of the chart: edited in Grafana, and exported over the chart's file.

`make generate` rewrites the export without what belongs to the Grafana that made it, and checks
that every query asks for the namespace and the processes that the reader has chosen.
"""

import json
import re
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[1] / "charts" / "model-gateway" / "files" / "dashboard.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = '{namespace="$namespace",service=~"$service"'
_OWN = ("__elements", "__inputs", "__requires", "gnetId", "id", "iteration", "version")
_METRIC = re.compile(rf"\b(?:gateway|process)_\w+(.{{{len(_CHOSEN)}}})")


def list_queries(text: str | None = None) -> list[str]:
    """Return every query of the dashboard, or of another with the JSON `text`."""
    panels = json.loads(text or PATH.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def normalize(text: str) -> str:
    """Return an export in the form in which the chart has it, panels numbered in reading order.

    Raises:
        ValueError: a panel asks another data source, or a query ignores the variables.
    """
    board: dict[str, Any] = json.loads(text)
    for name in _OWN:
        board.pop(name, None)
    board["panels"].sort(key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    for number, panel in enumerate(board["panels"], 1):
        panel["id"] = number
        panel.pop("pluginVersion", None)
        if panel["type"] != "row" and panel["datasource"] != _SOURCE:
            raise ValueError(f"panel {panel['title']!r} does not ask ${{datasource}}")
    written = json.dumps(board, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    for query in list_queries(written):
        selectors = _METRIC.findall(query)
        if not selectors or any(selector != _CHOSEN for selector in selectors):
            raise ValueError(f"{query} does not select {_CHOSEN}}}")
    return written
