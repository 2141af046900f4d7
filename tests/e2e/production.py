"""The blocks of docs/operations/production.md, run on an empty cluster in the order of the page.

A Redis, an S3 server and a simulated provider take the places of the reader's own. No controller
runs for certificates, routes and monitoring: their CRDs check the objects.
"""

import contextlib
import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.processes import CommandFailed, run_command
from tools.programs import ProgramMissingError, ensure_program

from tests.documents.blocks import ROOT, read_blocks
from tests.e2e.cluster import E2EError
from tests.e2e.installation import LOAD_COMMAND
from tests.e2e.objects import SURROUNDINGS, read_manifest

PAGE = "docs/operations/production.md"
NAMESPACE = "model-gateway"
RELEASE = "gateway"
PORT = 18480
FOREIGN_CRDS = (
    ("github.com/cert-manager/cert-manager", "deploy/crds/cert-manager.io_*.yaml"),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/*_servicemonitors.yaml",
    ),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/*_prometheusrules.yaml",
    ),
    ("sigs.k8s.io/gateway-api", "config/crd/standard/*_httproutes.yaml"),
)
"""Modules that `tools/crds` pins, and the files of their CRDs."""
FILES = {"issuer.yaml": 2, "production.yaml": 4, "routes.yaml": 7}
"""Files that the page asks for, and the blocks that they hold."""
EXPECTED = (
    r"65536 bytes were written to the store",
    r'"object":"chat\.completion"',
    r"gpt-5-mini +1 +0 .* 0\.0",
    r"prometheusrule\.monitoring\.coreos\.com",
    r"\d objects written to record\.jsonl",
)
"""Patterns of what the page's commands print."""
FORWARD = f"""
kubectl port-forward service/{RELEASE}-model-gateway-api {PORT}:80 >/dev/null &
trap 'kill %1' EXIT
curl -sSf --retry 60 --retry-delay 1 --retry-all-errors http://127.0.0.1:{PORT}/readyz
"""


class Production:
    """The page's installation; `with` removes everything that it has made."""

    def __init__(self, cluster, image):
        self._cluster = cluster
        self._image = image
        self._secret = secrets.token_hex(16)
        self._crds = []

    def __enter__(self):
        for name in (NAMESPACE, SURROUNDINGS):
            if self._cluster.run("kubectl", "get", "namespace", name, "--ignore-not-found"):
                raise E2EError(f"namespace {name} exists already; remove it first")
        return self

    def __exit__(self, *_):
        run = self._cluster.run
        release = (RELEASE, f"--namespace={NAMESPACE}")
        run("helm", "uninstall", *release, "--wait", "--ignore-not-found", check=False)
        kinds = run("kubectl", "get", "crds", "--output=name").split()
        own = [kind for kind in kinds if kind.endswith(".modelgateway.dev")]
        for kind in own:
            _drop_finalizers(self._cluster, kind.partition("/")[2])
        run("kubectl", "delete", "clusterissuers", "--all", "--ignore-not-found", check=False)
        for name in (NAMESPACE, SURROUNDINGS):
            command = ("delete", "namespace", name, "--ignore-not-found", "--timeout=2m")
            run("kubectl", *command, check=False)
        for kind in (*own, *self._crds):
            run("kubectl", "delete", kind, "--ignore-not-found", "--timeout=1m", check=False)

    def follow_page(self):
        """Run the page; return the seconds that it takes. E2EError if a block fails."""
        self._set_up_surroundings()
        begin = time.monotonic()
        blocks = [self._fill_in(block.text) for block in read_blocks(PAGE)]
        _, secret, _, issuer, _, install, addresses, _, routes, call, look, save = blocks
        with tempfile.TemporaryDirectory(prefix="production-") as folder:
            for name, number in FILES.items():
                (Path(folder) / name).write_text(blocks[number])
            (Path(folder) / "charts").symlink_to(ROOT / "charts")
            script = "\n".join(
                (
                    "set -euo pipefail",
                    f"cd {folder}",
                    f"PATH=$PATH:{Path(sys.executable).parent}",
                    # the page changes the current context
                    'cp "${KUBECONFIG:-$HOME/.kube/config}" kubeconfig',
                    "export KUBECONFIG=$PWD/kubeconfig",
                    *(secret, issuer, install, addresses, routes, FORWARD, call, look, save),
                    "wc -l record.jsonl",
                )
            )
            printed = self._cluster.run("bash", stdin=script, timeout=900)
        for expected in EXPECTED:
            if not re.search(expected, printed):
                raise E2EError(f"the page's commands print no {expected}:\n{printed[-4000:]}")
        return time.monotonic() - begin

    def explain(self):
        """Print what helps to understand a failure."""
        for command in (
            ("get", "pods,jobs", "--output=wide"),
            ("get", "events"),
            ("logs", "--selector=app.kubernetes.io/part-of=model-gateway", "--tail=20", "--prefix"),
        ):
            text = self._cluster.run("kubectl", f"--namespace={NAMESPACE}", *command, check=False)
            print(text, file=sys.stderr)

    def _fill_in(self, text):
        """Put what the cluster has in place of what stands for a reader's own."""
        repository, _, tag = self._image.rpartition(":")
        inside = f"{SURROUNDINGS}.svc"
        for shown, real in (
            (
                "rediss://:REDIS_PASSWORD@redis.example.com",
                f"redis://:{self._secret}@redis.{inside}",
            ),
            ("SECRET_ACCESS_KEY", self._secret),
            ("ACCESS_KEY_ID", self._secret),
            ("PROVIDER_TOKEN", self._secret),
            ("registry.example.com/model-gateway", repository),
            ("tag: 1.0.0", f"tag: {tag}"),
            ("https://s3.example.com", f"http://s3.{inside}:7070"),
            ("https://api.openai.com", f"http://provider.{inside}:9010"),
            ("https://api.example.com/v1", f"http://127.0.0.1:{PORT}/v1"),
            (
                "connections:\n",
                "networkPolicies: {storePorts: [7070], outboundPorts: [9010]}\nconnections:\n",
            ),
            # the operator adds up the charges of calls every few seconds
            (
                "gatewayctl usage acme --by model\n",
                "timeout 60 bash -c 'until gatewayctl usage acme --by model | grep gpt-5-mini; "
                "do sleep 1; done'\n",
            ),
            # without cert-manager no certificate becomes ready
            ("kubectl wait --for=condition=Ready certificate --all --timeout=5m\n", ""),
        ):
            text = text.replace(shown, real)
        return text

    def _set_up_surroundings(self):
        for module, pattern in FOREIGN_CRDS:
            try:
                made = run_command(
                    "go", "mod", "download", "-json", module, cwd=ROOT / "tools/crds"
                )
            except CommandFailed as error:
                raise E2EError(str(error)) from error
            for path in sorted(Path(json.loads(made)["Dir"]).glob(pattern)):
                command = ("apply", "--server-side", "--filename=-", "--output=name")
                said = self._cluster.run("kubectl", *command, stdin=path.read_text())
                self._crds += [name for name in said.split() if "customresourcedefinition" in name]
        s3_image = f"{self._image.rpartition(':')[0]}-s3:e2e"
        with tempfile.TemporaryDirectory(prefix="production-") as folder:
            try:
                shutil.copy(ensure_program("versitygw"), Path(folder) / "versitygw")
            except ProgramMissingError as error:
                raise E2EError(str(error)) from error
            (Path(folder) / "Dockerfile").write_text(
                f"ARG BASE_IMAGE\nFROM {self._image}\nCOPY versitygw /usr/bin/versitygw\n"
            )
            command = [*LOAD_COMMAND, s3_image, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise E2EError(f"image {s3_image}: {done.stderr[-3000:]}")
        self._cluster.run("kubectl", "create", "namespace", SURROUNDINGS)
        manifest = read_manifest(
            "surroundings", image=self._image, s3_image=s3_image, secret=self._secret
        )
        self._cluster.apply(*manifest)
        target = ("pod", "--all", "--for=condition=Ready", "--timeout=120s")
        self._cluster.run("kubectl", f"--namespace={SURROUNDINGS}", "wait", *target)


def _drop_finalizers(cluster, kind):
    found = cluster.run("kubectl", f"--namespace={NAMESPACE}", "get", kind, "--output=name")
    for name in found.split():
        patch = ("patch", name, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
        with contextlib.suppress(E2EError):  # it may be gone
            cluster.run("kubectl", f"--namespace={NAMESPACE}", *patch)


def try_production(cluster, image):
    """Follow the page on an empty cluster; return its seconds. E2EError."""
    with Production(cluster, image) as production:
        try:
            return production.follow_page()
        except E2EError:
            production.explain()
            raise
