"""The whole gateway as real processes on loopback, and a client that keeps a history of it.

Used by the integration, crash and conformance tests. What the client was told and what the
provider saw is kept, so that the invariants are checked afterwards from the history.
"""

import asyncio
import collections
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway_cli.local.config import LocalConfig
from gateway_cli.local.processes import PROCESSES
from gateway_cli.local.supervisor import ProcessFailedError
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.kubeconfig import find_connection
from gateway_core.redis.options import RedisOptions
from tests.servers.control_plane import (
    CALL_SECONDS,
    BackgroundRun,
    ControlPlane,
    copy_kubeconfig,
    free_ports,
    join,
)
from tests.servers.deadline import Deadline

ROOT = Path(__file__).resolve().parents[2]
REQUEST_SECONDS = 5.0
"""One request or round of polls uses up at most so much of a wait."""
TERMINAL = ("completed", "failed")


@dataclass
class Answer:
    """An HTTP answer, read whole."""

    status: int
    headers: CIMultiDictProxy[str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class History:
    """What clients were told, in order: acknowledgements and polled bodies by task id."""

    accepted: list[str] = field(default_factory=list)
    polled: dict[str, list[Any]] = field(default_factory=dict)


class World:
    """A running gateway. `with World() as world`, then `async with world.client()`.

    With `cluster` it has a namespace of its own on that control plane, which costs half the time
    and memory of a start. Tests that disturb etcd or kube-apiserver leave it out. The MCP
    process is started where a test asks for it.
    """

    def __init__(
        self,
        cluster: ControlPlane | None = None,
        *,
        extra_env: Mapping[str, Mapping[str, str]] | None = None,
        restart: bool = False,
        mcp: bool = False,
    ) -> None:
        self.names = [name for name in PROCESSES if mcp or name != "mcp"]
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-world-")
        folder = Path(self._folder.name)
        place = {"ports": free_ports()} if cluster is None else join(cluster.config, folder)
        self.config = LocalConfig(
            root=ROOT,
            directory=folder,
            restart=restart,
            sync_to_disk=False,
            extra_env={
                "simulator": {"GATEWAY_SIMULATOR_SECONDS": "1"},
                **(extra_env or {}),
            },
            **place,
        )
        self.redis: RedisOptions | str = f"redis://127.0.0.1:{self.config.ports.redis}/0"
        """The Redis of its processes."""
        self.run = BackgroundRun(self.config)
        self._guests: list[Callable[[], None]] = []
        self.secrets = set[str]()
        """API keys that tests have made, for those who look whether one has leaked."""

    def __enter__(self) -> Self:
        try:
            self.run.start(*self.names)
        except BaseException as error:
            # the logs go with the folder
            for log in sorted(self.config.log_directory.glob("*.log")):
                error.add_note(f"{log.name}: ...{log.read_text(errors='replace')[-1500:]}")
            self.run.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._guests:
            end()
        self.run.close()
        keep = os.environ.get("GATEWAY_TEST_LOGS")
        if keep:
            shutil.copytree(self.config.log_directory, keep, dirs_exist_ok=True)
        self._folder.cleanup()

    @property
    def env(self) -> dict[str, str]:
        """What `gateway.env` holds."""
        return self.run.variables

    def host(self, end: Callable[[], None]) -> None:
        """Has `end` called before the world ends, whatever has become of the test."""
        self._guests.append(end)

    def client(self, key: str | None = None, account: str = "demo") -> "Client":
        """A client with the first account's key, or another one; `account` is whose key it is."""
        return Client(self, key or self.env["GATEWAY_API_KEY"], account)

    def apply(
        self, *objects: Mapping[str, Any], command: str = "apply", dry_run: bool = False
    ) -> str:
        """Has kubectl apply (or create) objects; what it prints. ClusterError if refused."""
        path = self.config.directory / f"applied-{secrets.token_hex(4)}.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        options = ["--dry-run=server"] if dry_run else []
        return self.run.kubectl(command, "-f", str(path), *options)

    def patch(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        """Has kubectl merge `spec` into that of an object."""
        patch = json.dumps({"spec": spec})
        self.run.kubectl("patch", kind, name, "--type=merge", "-p", patch)

    def read(self, kind: str, name: str) -> dict[str, Any]:
        """An object as kubectl shows it; ClusterError where it is none."""
        found: dict[str, Any] = json.loads(self.run.kubectl("get", kind, name, "-o", "json"))
        return found

    def kube(self) -> KubernetesClient:
        """The project's own Kubernetes client; an asynchronous context manager."""
        connection = find_connection(self.config.cluster_kubeconfig)
        return KubernetesClient(connection, self.config.namespace, call_seconds=CALL_SECONDS)

    def link_kubernetes(self, port: int) -> Path:
        """A kubeconfig that reaches the Kubernetes API by another port, such as a proxy's."""
        path = self.config.directory / f"kubeconfig-{port}"
        own = f":{self.config.ports.kube_apiserver}"
        copy_kubeconfig(self.config.cluster_kubeconfig, path, own, f":{port}")
        return path

    def log(self, name: str) -> str:
        """The log of a process."""
        return self.run.log_of(name).read_text(errors="replace")

    def restart_doomed(self, process: str, env: Mapping[str, str]) -> None:
        """Restarts a process that is to be killed at a step.

        What the last kill has left behind may take it there before it is ready.
        """
        try:
            self.run.restart(process, dict(env))
        except ProcessFailedError as error:
            if "SIGKILL" not in str(error):
                raise

    def is_alive(self, name: str) -> bool:
        """Whether a process runs."""
        return self.run.is_alive(name)


class Client:
    """A REST client of one key. Every acknowledgement and poll goes into `history`."""

    def __init__(
        self, world: World, key: str, account: str = "demo", *, connections: int = 100
    ) -> None:
        self.connections = connections
        """At most so many requests are under way at once."""
        self.world = world
        self.key = key
        self.account = account
        self.service = world.env["GATEWAY_SERVICE"]
        self.model = world.env["GATEWAY_MODEL"]
        self.history = History()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=20)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.connections),
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=["Content-Type"],
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    @property
    def tasks_path(self) -> str:
        return f"/api/v1/{self.service}/reference_to_video"

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] | None = None,
        body: Any = None,
        data: bytes | AsyncIterable[bytes] | None = None,
        key: str | None = "",
        base: str | None = None,
    ) -> Answer:
        """One exchange, the path sent as it stands.

        `body` goes as JSON, `data` as it is. `key=None` sends no credential; ConnectionError if
        there was no answer.
        """
        assert self._session is not None
        sent = CIMultiDict(headers or {})
        if key is not None and "Authorization" not in sent:
            sent["Authorization"] = f"Bearer {key or self.key}"
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        url = URL((base or self.world.env["GATEWAY_BASE_URL"]) + path, encoded=True)
        try:
            async with self._session.request(
                method, url, headers=sent, data=data, allow_redirects=False
            ) as response:
                return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error

    def body(self, **changes: Any) -> dict[str, Any]:
        """A good request body with changes; a change to None leaves the field out."""
        body = {
            "model": self.model,
            "prompt": "A lighthouse at dawn",
            "reference_image_urls": ["https://example.com/lighthouse.png"],
            **changes,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def create(
        self, *, idempotency_key: str | None = None, base: str | None = None, **changes: Any
    ) -> Answer:
        """POSTs a task; an acknowledgement is kept in the history."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        answer = await self.request(
            "POST", self.tasks_path, headers=headers, body=self.body(**changes), base=base
        )
        if answer.status == 202 and answer.body["id"] not in self.history.accepted:
            self.history.accepted.append(answer.body["id"])
        return answer

    async def create_surely(self, key: str, *, seconds: float = 60, **changes: Any) -> str:
        """Creates with an Idempotency-Key and repeats until acknowledged, as an SDK would."""
        deadline = Deadline(seconds, step=REQUEST_SECONDS)
        while True:
            try:
                answer = await self.create(idempotency_key=key, **changes)
            except ConnectionError:
                answer = None
            if answer is not None and answer.status == 202:
                return str(answer.body["id"])
            if answer is not None and answer.status < 500 and answer.status != 429:
                raise AssertionError(f"refused: {answer.status} {answer.raw!r}")
            if deadline.is_over():
                raise AssertionError(f"not acknowledged in {seconds} s: {answer}")
            await asyncio.sleep(0.05)

    async def poll(self, task_id: str) -> Answer:
        """GETs a task; a 200 is kept in the history."""
        answer = await self.request("GET", f"{self.tasks_path}/{task_id}")
        if answer.status == 200:
            self.history.polled.setdefault(task_id, []).append(answer.body)
        return answer

    async def wait_terminal(
        self, task_ids: Iterable[str], *, seconds: float = 60
    ) -> dict[str, Any]:
        """Polls until all have ended; their bodies by id."""
        open_ids, ended = set(task_ids), dict[str, Any]()
        deadline = Deadline(seconds, step=REQUEST_SECONDS)
        while open_ids:
            for task_id in list(open_ids):
                try:
                    answer = await self.poll(task_id)
                except ConnectionError:
                    continue
                if answer.status == 404:
                    raise AssertionError(f"I9: {task_id} was acknowledged and is not found")
                if answer.status == 200 and answer.body["status"] in TERMINAL:
                    ended[task_id] = answer.body
                    open_ids.discard(task_id)
            if open_ids:
                if deadline.is_over():
                    raise AssertionError(f"I1: not ended in {seconds} s: {sorted(open_ids)}")
                await asyncio.sleep(max(0.05, len(open_ids) / 200))
        return ended

    async def simulate(self, *rules: Mapping[str, Any]) -> None:
        """Tells the simulated provider to misbehave; no rules: to behave."""
        base = self.world.env["GATEWAY_SIMULATOR_URL"]
        document = {"rules": list(rules)}
        answer = await self.request("PUT", "/control", body=document, base=base, key=None)
        assert answer.status == 200, answer.raw

    async def read_simulator(self, path: str = "/control/history") -> Any:
        """What the simulated provider tells of itself."""
        base = self.world.env["GATEWAY_SIMULATOR_URL"]
        return (await self.request("GET", path, base=base, key=None)).body


def read_task(world: World, task_id: str) -> dict[str, Any]:
    """The GatewayTask object of a task."""
    name = task_id.replace("_", "-", 1)
    found: dict[str, Any] = json.loads(world.run.kubectl("get", "gatewaytask", name, "-o", "json"))
    return found


def list_tasks(world: World) -> dict[str, dict[str, Any]]:
    """All GatewayTask objects by task id."""
    text = world.run.kubectl("get", "gatewaytasks", "-o", "json")
    items = json.loads(text)["items"]
    return {item["metadata"]["name"].replace("-", "_", 1): item for item in items}


async def check_invariants(client: Client, *, jobs: str = "at most one") -> dict[str, int]:
    """Checks I1, I2, I3 and I9 over the client's history; counts for the report.

    `jobs` is `exactly one` where every task got as far as the provider.
    """
    history = client.history
    ended = await client.wait_terminal(history.accepted)
    for task_id, bodies in history.polled.items():
        first = next((body for body in bodies if body["status"] in TERMINAL), None)
        if first is None:
            continue
        after = bodies[bodies.index(first) :]
        assert all(body == first for body in after), f"I3: {task_id} changed: {after}"
    submissions = (await client.read_simulator())["submissions"]
    made = collections.Counter(
        entry["client_reference"] for entry in submissions if entry["replay"] is False
    )
    uids = {task_id: obj["metadata"]["uid"] for task_id, obj in list_tasks(client.world).items()}
    for task_id in history.accepted:
        count = made[uids[task_id]]
        assert count <= 1, f"I2: {task_id} has {count} upstream jobs"
        if jobs == "exactly one":
            assert count == 1, f"I2: {task_id} has {count} upstream jobs"
    return {"accepted": len(history.accepted), "ended": len(ended), "jobs": sum(made.values())}


async def wait_for(
    condition: Callable[[], Any], *, seconds: float = 20, what: str = "condition"
) -> Any:
    """The first true value of `condition` (a function or coroutine function).

    A stall of the machine uses up little of `seconds`, as `Deadline` says.
    """
    deadline = Deadline(seconds)
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if deadline.is_over():
            raise AssertionError(f"{what} did not come true in {seconds} s")
        await asyncio.sleep(0.05)
