"""Every scenario in ci/ is well-formed, hardened, and taken by a real API server."""

from pathlib import Path

import yaml


def test_lint_finds_nothing(chart, scenario):
    assert chart.lint(scenario) == ""


def test_the_api_server_takes_every_object(chart, scenario, control_plane, tmp_path: Path):
    objects = [
        obj
        for obj in chart.render(scenario)
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
