"""The chart's life on the cluster: prepare, install, test, upgrade, roll back, remove."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.cluster import E2EError
from tests.e2e.objects import (
    FOLDER,
    NAMESPACE,
    RELEASE,
    SETUP,
    SHELL,
    SHORT_NAME,
    USER,
    VOLUME,
    read_manifest,
)

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "model-gateway"
TIMEOUT = "--timeout=5m"
LOAD_COMMAND = shlex.split(os.environ.get("CLUSTER_LOAD") or str(ROOT / "tests/e2e/load_image"))
"""Builds an image and loads it into the cluster."""
CLUSTER_KINDS = (
    "clusterroles",
    "clusterrolebindings",
    "flowschemas",
    "prioritylevelconfigurations",
    "persistentvolumes",
)


class Installation:
    """One release of the chart, of images built from this checkout.

    With `earlier`, the folder of an earlier release's source, chart and image of that are installed
    first; without, this checkout's in the form of an older release. With `made`, what `make
    release` wrote into a folder takes the place of this checkout.
    """

    def __init__(self, cluster, say, earlier=None, made=None):
        self._cluster = cluster
        self._say = say
        self._earlier = earlier
        self._source, self._chart = made or (ROOT, CHART)
        self._repository = os.environ.get("E2E_REPOSITORY", "localhost/model-gateway")
        self.image = f"{self._repository}:e2e"
        self._had_crds = True

    def look_around(self):
        """What there is before. E2EError if a namespace of this test exists: it is not this run's.

        To be called first; what was there before is not removed by `clean`.
        """
        self._had_crds = bool(self._list_crds())
        for name in (NAMESPACE, SETUP):
            if self._cluster.kubectl("get", "namespace", name, "--ignore-not-found"):
                raise E2EError(f"namespace {name} is there already; remove it first")

    def prepare(self):
        """Images, namespaces and the volume."""
        for tag, source in (("e2e", self._earlier or self._source), ("e2e-next", self._source)):
            begin = time.monotonic()
            done = subprocess.run(
                [*LOAD_COMMAND, f"{self._repository}:{tag}", str(source)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise E2EError(f"image {tag}: {done.stderr[-3000:] or done.stdout[-3000:]}")
            self._say(f"image {tag} built and loaded in {time.monotonic() - begin:.0f} s")
        self._cluster.apply(*read_manifest("namespaces"))
        self._cluster.apply(*read_manifest("shell", image=self.image))
        target = (f"pod/{SHELL}", "--for=condition=Ready", "--timeout=120s")
        self._cluster.run("kubectl", f"--namespace={SETUP}", "wait", *target)
        path = f"/node/{FOLDER}"
        self._run_on_node(f"rm -rf {path} && mkdir {path} && chown {USER} {path}")
        self._cluster.apply(*read_manifest("volume"))

    def install(self):
        """Installs the older chart and waits; the seconds until everything is ready."""
        with tempfile.TemporaryDirectory(prefix="model-gateway-e2e-") as folder:
            if self._earlier:
                chart = self._earlier / CHART.relative_to(ROOT)
            else:
                chart = _age(self._chart, Path(folder))
            return self._measure("install", lambda: self._deploy("install", "e2e", chart))

    def upgrade(self):
        """To the newest chart, and all but Redis to another image; the seconds it takes."""
        return self._measure("upgrade", lambda: self._deploy("upgrade", "e2e-next", self._chart))

    def roll_back(self):
        """Rolls back to the first revision; the seconds it takes."""
        return self._measure(
            "rollback", lambda: self._cluster.helm("rollback", RELEASE, "1", "--wait", TIMEOUT)
        )

    def test(self):
        """`helm test`; the seconds it takes."""
        return self._measure("test", lambda: self._cluster.helm("test", RELEASE, "--timeout=6m"))

    def uninstall(self):
        self._measure("uninstall", lambda: self._cluster.helm("uninstall", RELEASE, "--wait"))
        left = [
            name
            for kind in CLUSTER_KINDS
            for name in self._cluster.kubectl("get", kind, "--output=name").split()
            if NAMESPACE in name and name.partition("/")[2] != VOLUME
        ]
        if left:
            raise E2EError(f"the uninstall leaves {left}")

    def explain(self):
        """Prints what helps to understand a failure."""
        for arguments in (("get", "pods,jobs", "--output=wide"), ("get", "events")):
            print(self._cluster.kubectl(*arguments, check=False), file=sys.stderr)
        for component in ("api", "mcp", "operator", "secrets", "first-objects", "test"):
            selector = f"--selector=app.kubernetes.io/component={component}"
            text = self._cluster.kubectl("logs", selector, "--tail=20", "--prefix", check=False)
            print(text, file=sys.stderr)

    def clean(self):
        """Removes everything that this run has made, the release too if it is still there."""
        run = self._cluster.kubectl
        self._cluster.helm("uninstall", RELEASE, "--wait", "--ignore-not-found", check=False)
        # without an operator nobody lets go of what was under way, nor of what is kept
        for crd in self._list_crds():
            kind = crd.partition("/")[2]
            for item in self._cluster.get(kind)["items"]:
                if item["metadata"].get("finalizers"):
                    free = '--patch={"metadata":{"finalizers":null}}'
                    run("patch", kind, item["metadata"]["name"], "--type=merge", free, check=False)
        run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=2m", check=False)
        run("delete", "persistentvolume", VOLUME, "--ignore-not-found", check=False)
        with contextlib.suppress(E2EError):  # where there is no shell there is no folder
            self._run_on_node(f"rm -rf /node/{FOLDER}")
        run("delete", "namespace", SETUP, "--ignore-not-found", "--timeout=2m", check=False)
        if not self._had_crds:
            for crd in self._list_crds():
                run("delete", crd, "--timeout=1m", check=False)

    def _deploy(self, verb, tag, chart):
        [values] = read_manifest("values", repository=self._repository, tag=tag)
        arguments = (RELEASE, str(chart), "--values=-", "--wait", TIMEOUT)
        self._cluster.helm(verb, *arguments, stdin=json.dumps(values))

    def _run_on_node(self, script):
        shell = ("kubectl", f"--namespace={SETUP}", "exec", SHELL, "--", "sh", "-c", script)
        self._cluster.run(*shell)

    def _list_crds(self):
        names = self._cluster.kubectl("get", "customresourcedefinitions", "--output=name").split()
        return [name for name in names if name.endswith(".modelgateway.dev")]

    def _measure(self, what, work):
        begin = time.monotonic()
        work()
        seconds = time.monotonic() - begin
        self._say(f"{what}: {seconds:.1f} s")
        return seconds


def read_release(made, folder):
    """The source of the image and the chart, of a folder that `make release` wrote.

    The source is a new Dockerfile in `folder` that names the image's archive, which buildah and
    podman understand. E2EError if the folder holds something else.
    """
    charts, images = list(made.glob("*.tgz")), list(made.glob("*-image-*.tar"))
    if len(charts) != 1 or len(images) != 1:
        raise E2EError(f"{made} holds {len(charts)} charts and {len(images)} images, not one each")
    version = images[0].stem.partition("-image-")[2]
    (folder / "Dockerfile").write_text(f"FROM oci-archive:{images[0]}:{version}\n")
    return folder, charts[0]


def _age(chart, folder):
    """A copy of the chart as an older release may have been: a version less, a kind of less."""
    older = folder / CHART.name
    if chart.is_dir():
        shutil.copytree(chart, older)
    else:
        shutil.unpack_archive(chart, folder, filter="data")
    for name, text, replacement in (
        ("Chart.yaml", "\nversion: ", "\nversion: 0.0.1 # before "),
        ("templates/crds/gatewaytasks.yaml", f"    shortNames:\n    - {SHORT_NAME}\n", ""),
    ):
        content = (older / name).read_text()
        if text not in content:
            raise E2EError(f"{name} has no {text!r}")
        (older / name).write_text(content.replace(text, replacement, 1))
    return older
