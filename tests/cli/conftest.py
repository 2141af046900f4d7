"""gatewayctl as a user calls it, on a real API server with the gateway's kinds."""

import asyncio
import base64
import json
import secrets
from dataclasses import dataclass

import pytest
from kubernetes.client import ApiException
from kubernetes.client.rest import RESTClientObject
from typer.testing import CliRunner
from urllib3.exceptions import ProtocolError

from gateway_cli.__main__ import app
from gateway_core.api.crd import KINDS
from gateway_core.api.ids import API_VERSION
from gateway_core.api.resource import skeleton

PLURALS = {kind.kind_name.lower(): kind.plural for kind in KINDS}


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)

    @property
    def refusal(self):
        """The error, its lines joined: a terminal's width breaks them anywhere."""
        return " ".join(self.err.split())


@pytest.fixture
def gatewayctl(control_plane, monkeypatch):
    """Runs a command on the cluster; its exit code must be as expected."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.config.cluster_kubeconfig))
    monkeypatch.setenv("GATEWAY_NAMESPACE", control_plane.namespace)
    monkeypatch.delenv("GATEWAY_SECRETS_DIR", raising=False)

    def run(*arguments, code=0, stdin=None):
        result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def kube(control_plane):
    """Runs work with a client of the cluster, as `kube(lambda client: client.get(…))`."""

    def run(work):
        async def use():
            async with control_plane.kube() as client:
                return await work(client)

        return asyncio.run(use())

    return run


def locate(control_plane, kind, name):
    """The path of an object, given the singular or plural of its kind."""
    if kind == "secret":
        return f"/api/v1/namespaces/{control_plane.namespace}/secrets/{name}"
    plural = PLURALS.get(kind, kind)
    return f"/apis/{API_VERSION}/namespaces/{control_plane.namespace}/{plural}/{name}"


@pytest.fixture
def read(control_plane, kube):
    """Reads an object."""

    def run(kind, name):
        return kube(lambda client: client.call("GET", locate(control_plane, kind, name)))

    return run


@pytest.fixture
def account(gatewayctl):
    """The name of a new account."""
    name = f"acct-{secrets.token_hex(4)}"
    gatewayctl("accounts", "create", name, "--owner-email", "olga@example.com")
    return name


@pytest.fixture(scope="session")
def pepper_secret(control_plane):
    """A Secret as the chart's hook makes it; its id key and pepper."""
    pepper = b"o" * 32
    content = {"id-key": b"i" * 32, "pepper-1": b"x" * 32, "pepper-2": pepper}
    literals = [
        f"--from-literal={name}={base64.urlsafe_b64encode(value).decode()}"
        for name, value in content.items()
    ]
    control_plane.kubectl("create", "secret", "generic", "gw-api-keys", *literals)
    control_plane.kubectl(
        "label", "secret", "gw-api-keys", "app.kubernetes.io/part-of=model-gateway"
    )
    return pepper


@pytest.fixture
def patch_status(control_plane, kube):
    """Writes a status, as the operator would."""

    def run(kind, name, status):
        path = locate(control_plane, kind, name) + "/status"
        patch = {"status": status}
        kube(lambda client: client.call("PATCH", path, body=patch))

    return run


@pytest.fixture
def create(kube, patch_status):
    """Creates an object as another client would, with a status where one is given; its name."""

    def run(kind, name, spec, status=None):
        kube(lambda client: client.create(kind.plural, skeleton(kind, name) | {"spec": spec}))
        if status is not None:
            patch_status(kind.plural, name, status)
        return name

    return run


@pytest.fixture
def lose_answers(monkeypatch):
    """Loses the answers to some of the next writes that a command makes to a path.

    Each of `fates`, in turn, is what becomes of such a write: "done" and "not done" are answered
    by nothing, "504" is done and answered by an error of the server, "fine" goes well.
    """

    def run(method, part, *fates):
        request, left = RESTClientObject.request, list(fates)

        def lose(self, sent, url, **options):
            if sent != method or part not in url or not left:
                return request(self, sent, url, **options)
            fate = left.pop(0)
            answer = None if fate == "not done" else request(self, sent, url, **options)
            if fate == "fine":
                return answer
            if fate == "504":
                error = ApiException(status=504)
                error.body = b'{"message": "request did not complete"}'
                raise error
            raise ProtocolError("no answer")

        monkeypatch.setattr(RESTClientObject, "request", lose)
        return left

    return run
