"""Every scenario in ci/ is well-formed, hardened, and taken by a real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.chart.conftest import CHART, StrictLoader, repeat_own_entries

KEYS = {
    "containers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("name", "containerPort", "port", "protocol"),
    "imagePullSecrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""The keys by which server-side apply tells the entries of a list apart."""


def test_lint_finds_nothing(chart, scenario):
    assert chart.lint(scenario) == ""


def test_api_server_takes_every_object(chart, scenario, control_plane, tmp_path: Path):
    objects = [
        obj
        for obj in chart.render(scenario, control_plane.namespace)
        # kinds of the Prometheus operator, which is not there
        if not obj["apiVersion"].startswith("monitoring.coreos.com/")
    ]
    path = tmp_path / "objects.yaml"
    # a pod is only taken where its account is really there
    for kind, options in (("ServiceAccount", ()), (None, ("--dry-run=server",))):
        chosen = [obj for obj in objects if kind in (None, obj["kind"])]
        path.write_text(yaml.safe_dump_all(chosen))
        control_plane.kubectl(
            "apply", "--server-side", "--force-conflicts", f"--filename={path}", *options
        )


def test_pods_run_without_rights(chart, scenario):
    templates = {
        f"{obj['kind']}/{obj['metadata']['name']}": obj["spec"].get("template", obj)["spec"]
        for obj in chart.render(scenario)
        if obj["kind"] in ("Deployment", "StatefulSet", "Job", "Pod")
    }
    assert templates
    for name, spec in templates.items():
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"]["cpu"], name


def test_names_are_unique_and_selectors_match_their_pods(chart, scenario):
    objects = chart.render(scenario)
    names = [(obj["kind"], obj["metadata"]["name"]) for obj in objects]
    assert len(names) == len(set(names))
    for obj in objects:
        if obj["kind"] in ("Deployment", "StatefulSet"):
            labels = obj["spec"]["template"]["metadata"]["labels"]
            assert obj["spec"]["selector"]["matchLabels"].items() <= labels.items()


def _list_entries(value: Any, at: str = "") -> Iterator[tuple[str, list[tuple]]]:
    """The keys of the entries of every list in an object, by the list's path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _list_entries(inner, f"{at}.{name}")
            if name in KEYS and isinstance(inner, list):
                yield f"{at}.{name}", [tuple(e.get(key) for key in KEYS[name]) for e in inner]
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _list_entries(inner, f"{at}[{number}]")


def test_lists_have_each_key_once(chart, scenario):
    for obj in chart.render(scenario):
        for path, keys in _list_entries(obj):
            assert len(keys) == len(set(keys)), f"{obj['kind']} {obj['metadata']['name']}{path}"


def test_entries_of_values_replace_those_of_the_chart(chart):
    values = repeat_own_entries(chart)
    for component in ("api", "mcp", "media", "operator"):
        kind = "StatefulSet" if component == "operator" else "Deployment"
        template = chart.find(kind, f"-{component}", values)["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert {entry["value"] for entry in container["env"]} == {"7"}
        assert {mount["name"] for mount in container["volumeMounts"]} == {"tmp"}
        assert all(volume["emptyDir"] == {} for volume in template["spec"]["volumes"])
        labels = template["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "platform"
        assert labels["example.com/number"] == "1500000"
        assert "none" not in labels


def test_names_that_are_numbers_stay_text(chart):
    values = (
        "{fullnameOverride: gateway, firstObjects: {keys: [{account: '20', secretName: '21'}]}}"
    )
    version = "--kube-version=1.36.0"
    done = chart.run("template", "456", str(CHART), version, values=values, namespace="123")
    objects = [obj for obj in yaml.load_all(done.stdout, Loader=StrictLoader) if obj]
    assert {obj["metadata"].get("namespace", "123") for obj in objects} == {"123"}
    for obj in objects:
        instance = obj["metadata"].get("labels", {}).get("app.kubernetes.io/instance", "456")
        assert instance == "456", obj["metadata"]["name"]
    (keys,) = [obj["data"]["keys.yaml"] for obj in objects if "keys.yaml" in obj.get("data", {})]
    (key,) = filter(None, yaml.load_all(keys, Loader=StrictLoader))
    assert key["metadata"]["labels"] == {"modelgateway.dev/account": "20"}
    assert (key["spec"]["accountName"], key["spec"]["secretName"]) == ("20", "21")


def test_null_leaves_out_what_is_free_to_fill(chart):
    free = ("extraEnv", "extraVolumes", "extraVolumeMounts", "podLabels", "podAnnotations")
    empty = dict.fromkeys((*free, "nodeSelector", "tolerations", "affinity"))
    pods = dict.fromkeys(("api", "mcp", "media", "operator"), empty)
    values = yaml.safe_dump({"commonLabels": None, "image": {"pullSecrets": None}, **pods})
    assert chart.text(values) == chart.text()
