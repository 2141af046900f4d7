"""Writes what is generated: CRDs, the chart's files that follow from others, references in docs.

Run by `make generate`; `make check-generated` fails on drift.
"""

import json
from pathlib import Path

import yaml
from tools import dashboard
from tools.chart import (
    build_readme,
    build_schema,
    read_values,
    template_crd,
    template_simulator_objects,
)
from tools.commands import build_command_reference
from tools.guides import PAGES, fill_page
from tools.metrics import build_reference
from tools.reference import errors, resources, rest, settings
from tools.reliability import read_runs, render

from gateway_core.api.crd import KINDS, build_crd

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "model-gateway"
DOCS = ROOT / "docs"
HEADER = "# Generated from core/gateway_core/api by `make generate`; do not edit.\n"
CHART_HEADER = "# Generated from {} by `make generate`; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, which not every reader of CRDs follows."""

    def ignore_aliases(self, data: object) -> bool:
        """Nothing is aliased."""
        return True


def main() -> None:
    """Write `crds/` and the chart's share of it, the references, and what pages show of files."""
    crds = {
        f"{kind.plural}.yaml": HEADER
        + yaml.dump(build_crd(kind), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
        for kind in KINDS
    }
    _write_folder(ROOT / "crds", crds)
    templates = {name: template_crd(text) for name, text in crds.items()}
    _write_folder(CHART / "templates" / "crds", templates)

    values = read_values((CHART / "values.yaml").read_text())
    schema = json.dumps(build_schema(values), indent=2, ensure_ascii=False) + "\n"
    objects = template_simulator_objects(ROOT / "examples" / "local")
    runs = read_runs(DOCS / "reliability.jsonl")
    files = {
        CHART / "values.schema.json": schema,
        CHART / "README.md": build_readme(values, (CHART / "README.in.md").read_text()),
        CHART / "files" / "simulator.yaml": CHART_HEADER.format("examples/local") + objects,
        dashboard.PATH: dashboard.normalize(dashboard.PATH.read_text()),
        DOCS / "metrics.md": build_reference(),
        DOCS / "reference" / "errors.md": errors.build_page(),
        DOCS / "reference" / "resources.md": resources.build_page(),
        DOCS / "reference" / "rest.md": rest.build_page(),
        DOCS / "reference" / "settings.md": settings.build_page(),
        DOCS / "gatewayctl.md": build_command_reference((DOCS / "gatewayctl.in.md").read_text()),
        DOCS / "reliability.md": render((DOCS / "reliability.in.md").read_text(), runs),
    }
    for path, text in files.items():
        path.write_text(text)
    for path in PAGES.glob("*.md"):
        path.write_text(fill_page(path.read_text()))


def _write_folder(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path.name for path in folder.glob("*.yaml")} - set(files):
        (folder / stale).unlink()
    for name, text in files.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
