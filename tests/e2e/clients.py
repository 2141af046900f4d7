"""Clients in pods of the cluster: each runs a file of this folder on the gateway's image."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.objects import (
    ACCOUNT,
    BATCH_LINES,
    FUNDS_MICROS,
    LOAD_RATE,
    NAMESPACE,
    PASSWORD,
    PERSON,
    RELEASE,
    read_manifest,
)

FOLDER = Path(__file__).parent
API = f"http://{RELEASE}-api"


@dataclass(frozen=True)
class Client:
    """A client: its file, its variables, and where it gets keys of the API from.

    `keys` are Secrets by the variable that has their key, `beside` further files by their paths
    beside the client's.
    """

    file: str
    env: Mapping[str, str]
    keys: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Path] = field(default_factory=dict)

    @property
    def name(self):
        return self.file.removesuffix(".py").replace("_", "-")

    def describe(self, image):
        files = {self.file: FOLDER / self.file, **self.beside}
        script, pod = read_manifest(
            "client", name=self.name, image=image, command=f"/code/{self.file}"
        )
        script["data"] = {path.name: path.read_text() for path in files.values()}
        volume = pod["spec"]["volumes"][0]["configMap"]
        volume["items"] = [{"key": path.name, "path": name} for name, path in files.items()]
        pod["spec"]["containers"][0]["env"] = [
            *({"name": name, "value": value} for name, value in self.env.items()),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": "api-key"}}}
                for name, secret in self.keys.items()
            ),
        ]
        return script, pod


LOAD = Client(
    "load.py", {"LOAD_URL": API, "LOAD_RATE": str(LOAD_RATE)}, keys={"LOAD_KEY": "load-key"}
)
STORAGE = Client(
    "storage.py",
    {
        "GATEWAY_BASE_URL": API,
        "STORAGE_LINES": str(BATCH_LINES),
        "XDG_STATE_HOME": "/tmp/state",
    },
    keys={"GATEWAY_API_KEY": "load-key"},
)
LIVE_DATA = Client(
    "live_data.py",
    {"GATEWAY_BASE_URL": API, "LIVE_DATA_FUNDS_MICROS": str(FUNDS_MICROS)},
    keys={
        "GATEWAY_API_KEY": "live-data-key",
        "GATEWAY_MANAGEMENT_KEY": "live-data-management-key",
    },
)
MCP_USER = Client(
    "mcp_user.py",
    {
        "GATEWAY_BASE_URL": f"{API}.{NAMESPACE}.svc",
        "GATEWAY_MCP_URL": f"http://{RELEASE}-mcp.{NAMESPACE}.svc",
        "MCP_EMAIL": PERSON,
        "MCP_PASSWORD": PASSWORD,
        "MCP_ACCOUNT": ACCOUNT,
    },
    beside={"tests/servers/browser.py": FOLDER.parent / "servers" / "browser.py"},
)


class ClientPod:
    """A pod that runs a client."""

    def __init__(self, cluster, client):
        self._cluster = cluster
        self._client = client

    def start(self, image):
        self._cluster.apply(*self._client.describe(image))

    def read_log(self):
        return self._cluster.kubectl("logs", self._client.name, check=False)

    def wait_reached(self, step, seconds=240):
        """Wait until the client tells that it has reached a step. E2EError if it ends before."""

        def has_reached():
            self.check_running()
            return f"reached {step}\n" in self.read_log()

        wait_for(has_reached, f"{self._client.name} has reached {step!r}", seconds)

    def go_on(self, step):
        """Let the client go on after a step."""
        self._cluster.kubectl("exec", self._client.name, "--", "touch", f"/tmp/{step}")

    def wait_ended(self, seconds=240):
        """Return the log of a client that ends well. E2EError otherwise."""
        wait_for(
            lambda: self._phase in ("Succeeded", "Failed"),
            f"{self._client.name} has ended",
            seconds,
        )
        if self._phase != "Succeeded":
            raise E2EError(f"{self._client.name}: {self.read_log()[-3000:]}")
        return self.read_log()

    def remove(self):
        """Delete the pod, so that another one may have its name."""
        self._cluster.kubectl("delete", "pod", self._client.name)

    def check_running(self):
        """Raise E2EError if the client has ended."""
        if self._phase in ("Succeeded", "Failed"):
            raise E2EError(f"{self._client.name}: {self.read_log()[-3000:]}")

    @property
    def _phase(self):
        return self._cluster.get("pod", self._client.name)["status"]["phase"]
