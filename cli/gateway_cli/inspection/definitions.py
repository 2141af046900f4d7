"""Whether the cluster's CRDs are those of this release."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway_cli.inspection.findings import Finding, error, note
from gateway_core.api.crd import KINDS, build_crd
from gateway_core.api.ids import GROUP
from gateway_core.api.resource import RELEASE, Object

APPLY = (
    "upgrade the chart with crds.install=true, or `kubectl apply --server-side -f crds/` of the"
    " release that the processes run"
)
MOST_NAMES = 5


def check_definitions(installed: Mapping[str, Object]) -> Iterator[Finding]:
    """What differs between the CRDs, by name, and those of this release.

    A field that is missing is lost silently when a process writes it.
    """
    for kind in KINDS:
        name = f"{kind.plural}.{GROUP}"
        found = installed.get(name)
        if found is None:
            yield error(name, "the CRD is not installed", APPLY)
            continue
        conditions = {c["type"]: c for c in (found.get("status") or {}).get("conditions") or ()}
        established = conditions.get("Established", {})
        if established.get("status") != "True":
            text = established.get("message") or "no reason is given"
            yield error(name, f"the CRD is not established: {text}", APPLY)
        wanted, served = set(_list_fields(build_crd(kind))), set(_list_fields(found))
        if missing := sorted(wanted - served):
            text = f"the CRD is older than gatewayctl {RELEASE}: it lacks {_shorten(missing)}"
            yield error(name, text, APPLY)
        elif extra := sorted(served - wanted):
            text = f"the CRD is newer than gatewayctl {RELEASE}: it has {_shorten(extra)}"
            yield note(name, text, "use the gatewayctl of the release that is installed")


def _list_fields(crd: Object) -> Iterator[str]:
    for version in crd["spec"]["versions"]:
        if version.get("served"):
            yield from _walk(version["schema"]["openAPIV3Schema"], "")


def _walk(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, child in (schema.get("properties") or {}).items():
        yield f"{path}.{name}"
        yield from _walk(child, f"{path}.{name}")
    if isinstance(items := schema.get("items"), Mapping):
        yield from _walk(items, f"{path}[]")


def _shorten(paths: list[str]) -> str:
    more = f" and {len(paths) - MOST_NAMES} more" if len(paths) > MOST_NAMES else ""
    return ", ".join(paths[:MOST_NAMES]) + more
