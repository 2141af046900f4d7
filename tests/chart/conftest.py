"""The chart as helm renders it, and a gateway whose processes have its roles."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.programs import find_program

from gateway_cli.cluster.errors import ClusterError
from tests.servers.control_plane import ControlPlane
from tests.servers.world import World

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "model-gateway"
NAMESPACE = "model-gateway"


class StrictLoader(yaml.CSafeLoader):
    """Refuses a mapping with a key twice, of which other loaders keep one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value]
        repeated = {key for key in keys if keys.count(key) > 1}
        assert not repeated, f"{repeated} twice: {node.start_mark}"
        return super().construct_mapping(node, deep)


class Chart:
    """Renders the chart of this checkout with a helm binary."""

    def __init__(self, helm: str) -> None:
        self._helm = helm
        self._texts: dict[tuple[str, str], str] = {}
        self._objects: dict[tuple[str, str], list[dict]] = {}

    def run(
        self, *arguments: str, values: str | None = "", namespace: str = NAMESPACE
    ) -> subprocess.CompletedProcess[str]:
        """One helm command, the values on its standard input; None for a command without."""
        options = () if values is None else ("--values=-",)
        return subprocess.run(
            [self._helm, *arguments, f"--namespace={namespace}", *options],
            input=values,
            capture_output=True,
            text=True,
            check=False,
        )

    def lint(self, values: str) -> str:
        """What `helm lint` complains of; nothing if all is well."""
        done = self.run("lint", "--strict", "--quiet", str(CHART), values=values)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def text(self, values: str = "", namespace: str = NAMESPACE) -> str:
        """The manifests as text."""
        given = (values, namespace)
        if given not in self._texts:
            version = "--kube-version=1.36.0"
            done = self.run(
                "template", "gateway", str(CHART), version, values=values, namespace=namespace
            )
            assert done.returncode == 0, done.stderr
            self._texts[given] = done.stdout
        return self._texts[given]

    def render(self, values: str = "", namespace: str = NAMESPACE) -> list[dict]:
        """The manifests, parsed once. AssertionError where a mapping has a key twice."""
        given = (values, namespace)
        if given not in self._objects:
            loaded = yaml.load_all(self.text(values, namespace), Loader=StrictLoader)
            self._objects[given] = [obj for obj in loaded if obj]
        return self._objects[given]

    def find(self, kind: str, suffix: str, values: str = "") -> dict:
        """The one object of a kind whose name ends so."""
        objects = self.render(values)
        found = [
            obj
            for obj in objects
            if obj["kind"] == kind and obj["metadata"]["name"].endswith(suffix)
        ]
        assert len(found) == 1, [obj["metadata"]["name"] for obj in found]
        return found[0]

    def refusal(self, values: str, kube_version: str = "1.36.0") -> str:
        """Why the values, or the cluster, are refused."""
        version = f"--kube-version={kube_version}"
        done = self.run("template", "gateway", str(CHART), version, values=values)
        assert done.returncode != 0, "the values are accepted"
        return done.stderr


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart, rendered by the helm that `make programs-full` finds or builds."""
    return Chart(str(find_program("helm")))


def repeat_own_entries(chart: Chart) -> str:
    """Values that repeat the chart's own entries in every list and map that is free to fill.

    Text that looks like a number, and numbers and nulls where text is due, are among them.
    """
    scalars = {"app.kubernetes.io/part-of": "platform", "example.com/number": 1500000, "none": None}
    pods = {"podLabels": scalars, "podAnnotations": scalars, "nodeSelector": {"a/pool": 2}}
    values: dict[str, dict] = {
        "commonLabels": {**scalars, "app.kubernetes.io/version": 2.5, "helm.sh/chart": True},
        "nameOverride": "77",
        "image": {"pullSecrets": ["5", "5"]},
        "secrets": {"apiKeys": "1", "mediaKey": "2", "redis": "3"},
        "serviceAccount": {"annotations": scalars},
        "simulator": {"enabled": True},
        "monitoring": {
            "serviceMonitor": {"enabled": True, "labels": scalars},
            "prometheusRule": {"enabled": True, "labels": scalars},
            "dashboard": {"enabled": True, "labels": scalars, "annotations": scalars},
        },
        "hooks": pods,
        "redis": pods,
    }
    for component in ("api", "mcp", "media", "operator"):
        kind = "StatefulSet" if component == "operator" else "Deployment"
        spec = chart.find(kind, f"-{component}")["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        mounts = container["volumeMounts"]
        values[component] = pods | {
            "extraEnv": [{"name": e["name"], "value": 7} for e in container["env"]] * 2,
            "extraVolumes": [{"name": v["name"], "emptyDir": {}} for v in spec["volumes"]] * 2,
            "extraVolumeMounts": [
                {"name": "tmp", "mountPath": f"{m['mountPath']}{end}"}
                for m in mounts
                for end in ("", "/")
            ],
        }
        if component != "operator":
            values[component] |= {
                "service": {"annotations": scalars},
                "ingress": {"enabled": True, "host": "example.com", "annotations": scalars},
            }
    return yaml.safe_dump(values)


SCENARIOS = {path.stem: path.read_text() for path in sorted((CHART / "ci").glob("*-values.yaml"))}


@pytest.fixture(params=[*SCENARIOS, "repeated"])
def scenario(request: pytest.FixtureRequest, chart: Chart) -> str:
    """The values of one scenario."""
    return SCENARIOS.get(request.param) or repeat_own_entries(chart)


NAMED = "named-key"
VALUES = f"""
operator: {{secretNames: [simulated-provider, demo-webhook], keySecretNames: [{NAMED}]}}
moderation: {{providerSecrets: [simulated-moderation-key]}}
"""
RIGHTS = {"api": "create", "mcp": "create", "operator": "patch"}
"""A verb on tasks that each has, to tell that its role is bound."""


def wait_bound(world, who, verb):
    """Until the API server's authorizer, which learns of bindings by a watch, knows of this one."""
    resource = "gatewaytasks.modelgateway.dev"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        # a no is an exit code too
        with contextlib.suppress(ClusterError):
            if world.run.kubectl("auth", "can-i", verb, resource, f"--as={who}").strip() == "yes":
                return
        time.sleep(0.05)
    raise AssertionError(f"{who} may not {verb} tasks")


@pytest.fixture(scope="module")
def world(chart: Chart, control_plane: ControlPlane) -> Iterator[World]:
    """A gateway whose API, MCP process and operator hold tokens of the chart's service accounts."""
    kinds = ("Role", "RoleBinding", "ServiceAccount")
    with World(control_plane, restart=True, mcp=True) as running:
        rendered = chart.render(VALUES, running.config.namespace)
        running.apply(*(obj for obj in rendered if obj["kind"] in kinds))
        config = yaml.safe_load(running.config.cluster_kubeconfig.read_text())
        for component, verb in RIGHTS.items():
            account = f"gateway-model-gateway-{component}"
            wait_bound(running, f"system:serviceaccount:{running.config.namespace}:{account}", verb)
            token = running.run.kubectl("create", "token", account).strip()
            config["users"][0]["user"] = {"token": token}
            path = running.config.directory / f"{component}-kubeconfig.yaml"
            path.write_text(yaml.safe_dump(config))
            running.run.restart(component, {"KUBECONFIG": str(path)})
        yield running


@pytest.fixture
async def client(world):
    """A client of the first account."""
    async with world.client() as own:
        yield own
