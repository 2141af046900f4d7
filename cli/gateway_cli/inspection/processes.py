"""The gateway's processes from outside: pods of a cluster, or processes of a local run."""

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.cluster.gateways import PART
from gateway_cli.inspection.metrics import Samples, parse_metrics
from gateway_cli.local.config import LOOPBACK
from gateway_cli.local.supervisor import RUN_FILE, RunDirectory
from gateway_cli.session import SELECTED
from gateway_core.api.resource import Object
from gateway_core.failures import describe_failure

COMPONENT = "app.kubernetes.io/component"
HEALTH_PORT = 8082
PROCESSES = ("api", "media", "mcp", "operator")
"""Components that serve metrics on their health port."""
HOOKS = ("hooks", "test")
ANSWER_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process or pod: whether it is ready, and if not, why."""

    component: str
    instance: str
    ready: bool
    problem: str | None = None
    version: str | None = None
    restarts: int = 0

    @property
    def serves_metrics(self) -> bool:
        """Whether it is one of the gateway's own; `api-2` is an API process of a local run."""
        return self.component.partition("-")[0] in PROCESSES


class ClusterProcesses:
    """Pods with the chart's labels."""

    place = "pods"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def read(self) -> list[Process]:
        """Return the pods, and components that have fewer than they should. ClusterError."""
        core, apps = (
            f"{root}/namespaces/{self._cluster.namespace}" for root in ("/api/v1", "/apis/apps/v1")
        )
        pods = await self._list(f"{core}/pods")
        found = [describe_pod(pod) for pod in pods if not _is_hook(pod)]
        for plural in ("deployments", "statefulsets"):
            for workload in await self._list(f"{apps}/{plural}"):
                found += describe_shortage(workload, found)
        return found

    async def read_metrics(self, process: Process) -> Samples:
        """Return metrics through the API server's proxy. ClusterError."""
        path = (
            f"/api/v1/namespaces/{self._cluster.namespace}/pods/{process.instance}:{HEALTH_PORT}"
            "/proxy/metrics"
        )
        return parse_metrics(await self._cluster.read_text(path))

    async def _list(self, path: str) -> list[Object]:
        answer = await self._cluster.call("GET", path, query={"labelSelector": PART})
        items: list[Object] = answer.get("items") or []
        return items


def describe_pod(pod: Object) -> Process:
    """Return a pod as a process, with the reason for which it is not ready."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready", {}).get("status") == "True"
    labels = pod["metadata"].get("labels") or {}
    return Process(
        component=labels.get(COMPONENT, "?"),
        instance=pod["metadata"]["name"],
        ready=ready,
        problem=None if ready else _explain_pod(status, containers, conditions),
        version=_read_image_tag(pod),
        restarts=sum(container.get("restartCount", 0) for container in containers),
    )


def describe_shortage(workload: Object, pods: list[Process]) -> list[Process]:
    """Return a process that is not there, for a workload with fewer pods than it should have."""
    wanted = workload["spec"].get("replicas", 1)
    component = (workload["metadata"].get("labels") or {}).get(COMPONENT, "?")
    there = sum(process.component == component for process in pods)
    if there >= wanted:
        return []
    text = f"{there} of {wanted} pods exist: `kubectl describe` of the workload has the reason"
    return [Process(component, workload["metadata"]["name"], ready=False, problem=text)]


def _read_image_tag(pod: Object) -> str | None:
    """Return the tag of the pod's image, or the beginning of its digest."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    image: str = containers[0].get("image", "") if containers else ""
    name, _, digest = image.partition("@sha256:")
    return digest[:12] or name.rpartition("/")[2].partition(":")[2] or None


def _is_hook(pod: Object) -> bool:
    return (pod["metadata"].get("labels") or {}).get(COMPONENT) in HOOKS


def _explain_pod(
    status: Mapping[str, Any], containers: Any, conditions: Mapping[str, Mapping[str, Any]]
) -> str:
    for container in containers:
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason"):
            last = ((container.get("lastState") or {}).get("terminated") or {}).get("reason")
            text = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
            return f"{text} (ended before by {last})" if last else text
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"not scheduled: {scheduled.get('message', '')}"
    message: str | None = conditions.get("Ready", {}).get("message")
    return message or f"{status.get('phase', 'Unknown')}: its readiness probe fails"


class LocalProcesses:
    """Processes of a local run on this machine, by the files in its folder `run`."""

    place = "processes"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        described = json.loads((folder / "run" / RUN_FILE).read_text())
        self._ports: dict[str, int] = described["ports"]
        self._names: list[str] = described["processes"]

    @property
    def is_running(self) -> bool:
        """Whether a supervisor runs in this folder."""
        return RunDirectory(self.folder / "run").is_running()

    async def read(self) -> list[Process]:
        """Return the processes that the run has started."""
        return list(await asyncio.gather(*map(self._look, self._names)))

    async def read_metrics(self, process: Process) -> Samples:
        """Return the metrics of its health port. ClusterError."""
        status, text = await self._ask(process.component, "metrics")
        if status != 200:
            raise ClusterError(f"/metrics answers {status}")
        return parse_metrics(text)

    async def _look(self, name: str) -> Process:
        import psutil  # in no image, as the local run

        directory = RunDirectory(self.folder / "run")
        pid, restarts = directory.read_pid(name), directory.read_restarts(name)
        problem: str | None = None
        if pid is None or not psutil.pid_exists(pid):
            problem = f"not running: the end of {self.folder / 'log' / name}.log says why"
        elif name.partition("-")[0] in (*PROCESSES, "simulator"):
            try:
                status, _ = await self._ask(name, "healthz" if name == "simulator" else "readyz")
                problem = None if status == 200 else f"its probe is answered with {status}"
            except ClusterError as error:
                problem = str(error)
        instance = f"pid {pid}" if pid else "-"
        return Process(name, instance, problem is None, problem, restarts=restarts)

    async def _ask(self, name: str, path: str) -> tuple[int, str]:
        """Return status and text of an answer at its health port. ClusterError."""
        field = name.replace("-", "_")
        port = self._ports.get(f"{field}_health") or self._ports[field]
        url, timeout = f"http://{LOOPBACK}:{port}/{path}", aiohttp.ClientTimeout(ANSWER_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url) as answer,
            ):
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ClusterError(f"{url} is not answered: {describe_failure(error)}") from error


def find_local_run() -> LocalProcesses | None:
    """Return the local run whose kubeconfig is in use, or whose folder the environment names."""
    folder = os.environ.get("GATEWAY_LOCAL_DIR")
    if folder:
        places = [Path(folder)]
    else:
        named = str(SELECTED.get().kubeconfig or os.environ.get("KUBECONFIG", ""))
        places = [Path(path).parent for path in named.split(os.pathsep) if path]
    for place in places:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return LocalProcesses(place)
    return None
