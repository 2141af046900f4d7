"""The chart as helm renders it."""

import subprocess
from pathlib import Path

import pytest
import yaml
from tools.programs import find_program

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "model-gateway"
NAMESPACE = "model-gateway"


class Chart:
    """Renders the chart of this checkout with a helm binary."""

    def __init__(self, helm: str) -> None:
        self._helm = helm

    def run(self, *arguments: str, values: str | None = "") -> subprocess.CompletedProcess[str]:
        """One helm command, the values on its standard input; None for a command without."""
        options = () if values is None else ("--values=-",)
        return subprocess.run(
            [self._helm, *arguments, f"--namespace={NAMESPACE}", *options],
            input=values,
            capture_output=True,
            text=True,
            check=False,
        )

    def lint(self, values: str) -> str:
        """What `helm lint` complains of; nothing if all is well."""
        done = self.run("lint", "--strict", "--quiet", str(CHART), values=values)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def text(self, values: str = "") -> str:
        """The manifests as text."""
        done = self.run("template", "gateway", str(CHART), "--kube-version=1.36.0", values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def render(self, values: str = "") -> list[dict]:
        """The manifests."""
        return [obj for obj in yaml.safe_load_all(self.text(values)) if obj]

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
    """The chart, rendered by the helm that `make programs` finds or builds."""
    return Chart(str(find_program("helm")))


@pytest.fixture(params=sorted((CHART / "ci").glob("*-values.yaml")), ids=lambda path: path.stem)
def scenario(request) -> str:
    """The values of one scenario."""
    return request.param.read_text()
