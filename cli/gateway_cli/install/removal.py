"""`gatewayctl install remove`: everything of a gateway, in the order in which it can be removed.

Intake stops first, then the operator ends tasks, batches, uploads and files while the accounts,
providers and Secrets exist that it needs for that; then come all other objects, and last the CRDs.
Where no operator does its part, jobs are stopped and finalizers removed from here: after `helm
uninstall`, in a terminating namespace and with terminating CRDs alike. It may be repeated.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gateway_cli.cluster.client import MERGE_PATCH, Cluster, Kind
from gateway_cli.cluster.errors import ClusterError, Forbidden, NotServed, NotThere
from gateway_cli.install.jobs import JobLeft, JobStopper
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.crd import KINDS
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import API_VERSION, GROUP, OPERATOR_LEASE
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.usage import list_pending
from gateway_core.billing.usage_store import is_aggregated
from gateway_core.concurrency import map_bounded
from gateway_core.kube.clock import CLOCK

WORKED: tuple[Kind, ...] = (GatewayTask, GatewayBatch, GatewayUpload, GatewayFile)
"""Kinds that the operator ends before their objects may go."""
OTHERS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in WORKED)
PART_OF = "app.kubernetes.io/part-of=model-gateway"
INTAKE = f"{PART_OF},app.kubernetes.io/component in (api,mcp)"
ABANDONED = "reason=JobAbandoned"
ALIVE_SECONDS = 30.0
"""Age of a heartbeat beyond which its operator is taken for gone."""
ABSENT_SECONDS = 5.0
"""Time for an operator without a heartbeat: in a terminating namespace its Lease is gone."""
CRD_SECONDS = 60.0
PAUSE_SECONDS = 0.5
AT_ONCE = 16
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass
class Outcome:
    """The result of a removal, and what it leaves behind."""

    deleted: Counter[str] = field(default_factory=Counter)
    released: list[str] = field(default_factory=list)
    """Objects whose finalizers were removed from here."""
    jobs_stopped: int = 0
    jobs_left: list[dict[str, str]] = field(default_factory=list)
    uncounted_micros: Counter[str] = field(default_factory=Counter)
    """Charges by account of objects that no operator has added to the usage."""
    crds: str = "kept"
    remains: list[str] = field(default_factory=list)

    def show(self) -> dict[str, Any]:
        """Return the document for scripts."""
        return {
            "deleted": dict(self.deleted),
            "released": self.released,
            "jobsStopped": self.jobs_stopped,
            "jobsLeft": self.jobs_left,
            "uncountedMicros": dict(self.uncounted_micros),
            "crds": self.crds,
            "remains": self.remains,
        }


@dataclass(eq=False)
class InstallationRemoval:
    """One removal. `patience` are the seconds without progress that the operator is given."""

    cluster: Cluster
    patience: float
    report: Callable[[str], None]
    outcome: Outcome = field(default_factory=Outcome)
    _counted: set[str] = field(default_factory=set, init=False)

    async def count(self) -> Counter[str]:
        """Return the numbers of objects by kind."""
        counts = Counter[str]()
        for kind in KINDS:
            counts[kind.plural] = len(await self._list(kind))
        return +counts

    async def run(self, *, crds: bool) -> Outcome:
        """Remove everything. ClusterError."""
        async with JobStopper(self.cluster) as stopper:
            await self._stop_intake()
            is_alive = await self._is_operator_alive()
            if not is_alive:
                self.report("no operator renews its heartbeat: jobs are stopped from here")
            patience = self.patience if is_alive else min(self.patience, ABSENT_SECONDS)
            begun = CLOCK.now()
            for kinds in (WORKED, OTHERS):
                removals = (self._remove(kind, patience, stopper) for kind in kinds)
                await asyncio.gather(*removals)
            await self._list_abandoned(begun)
        if crds:
            await self._remove_crds()
        await self._list_remains()
        return self.outcome

    async def _stop_intake(self) -> None:
        """Scale the API and the MCP endpoint to none; an autoscaler is off at zero."""
        path = f"/apis/apps/v1/namespaces/{self.cluster.namespace}/deployments"
        listed = await self.cluster.call("GET", path, query={"labelSelector": INTAKE})
        for deployment in listed["items"]:
            name = deployment["metadata"]["name"]
            change = {"spec": {"replicas": 0}}
            await self.cluster.call(
                "PATCH", f"{path}/{name}/scale", change, content_type=MERGE_PATCH
            )
            self.report(f"Deployment/{name} scaled to 0: it takes no more calls")

    async def _is_operator_alive(self) -> bool:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.cluster.namespace}/leases"
        leases = (await self.cluster.call("GET", path))["items"]
        beats = [
            parse_time(lease["spec"]["renewTime"])
            for lease in leases
            if lease["metadata"]["name"].startswith(OPERATOR_LEASE)
            and lease["spec"].get("renewTime")
        ]
        return any((CLOCK.now() - beat).total_seconds() < ALIVE_SECONDS for beat in beats)

    async def _remove(self, kind: Kind, patience: float, stopper: JobStopper) -> None:
        """Delete all objects of a kind, and release those that stay without progress."""
        left = await self._list(kind)
        if not left:
            return
        self.outcome.deleted[kind.plural] = least = len(left)
        deadline = time.monotonic() + patience
        is_released = False
        while left:
            # again each time: requests that began before may have made more
            await self._delete(self._path(kind))
            left = await self._list(kind)
            if len(left) < least:
                least, deadline = len(left), time.monotonic() + patience
            elif left and time.monotonic() > deadline and is_released:
                names = [f"{kind.kind_name}/{obj['metadata']['name']}" for obj in left]
                self.outcome.remains += [f"{name}, which another finalizer keeps" for name in names]
                return
            elif left and time.monotonic() > deadline:
                await self._read_counted()
                await map_bounded(AT_ONCE, lambda obj: self._release(kind, obj, stopper), left)
                is_released, deadline = True, time.monotonic() + ABSENT_SECONDS
            if left:
                await asyncio.sleep(PAUSE_SECONDS)
        self.report(f"{kind.plural}: none left")

    async def _read_counted(self) -> None:
        """Note the runs that are in a usage and not labelled yet."""
        for usage in await self._list(GatewayUsage):
            self._counted |= list_pending(usage.get("status") or {}).keys()

    async def _release(self, kind: Kind, obj: Object, stopper: JobStopper) -> None:
        """Do what the operator would have done as far as it can be done, and let the object go."""
        meta, outcome = obj["metadata"], self.outcome
        name = f"{kind.kind_name}/{meta['name']}"
        if kind is GatewayTask:
            try:
                is_stopped = await stopper.stop(GatewayTask.load(obj))
                outcome.jobs_stopped += is_stopped
            except JobLeft as left:
                outcome.jobs_left.append({"task": meta["name"], "problem": str(left)})
                self.report(f"! {name}: a job may run on at {left}")
        # an account shows the sum of its charges under the same name
        is_run = kind in (GatewayTask, GatewayBatch)
        charged = (obj.get("status") or {}).get("chargedMicros") if is_run else None
        if charged and not is_aggregated(obj) and meta["uid"] not in self._counted:
            outcome.uncounted_micros[obj["spec"]["request"]["accountName"]] += charged
        held = meta.get("finalizers") or []
        kept = [finalizer for finalizer in held if not finalizer.startswith(f"{GROUP}/")]
        if kept == held:
            return
        path, change = f"{self._path(kind)}/{meta['name']}", {"metadata": {"finalizers": kept}}
        with contextlib.suppress(NotThere):
            await self.cluster.call("PATCH", path, change, content_type=MERGE_PATCH)
            outcome.released.append(name)

    async def _list_abandoned(self, begun: datetime) -> None:
        """Note the jobs that the operator could not stop, which it reports by Events."""
        path = f"/api/v1/namespaces/{self.cluster.namespace}/events"
        events = await self.cluster.call("GET", path, query={"fieldSelector": ABANDONED})
        for event in events["items"]:
            # times of Events have whole seconds
            if parse_time(event["firstTimestamp"]) >= begun - timedelta(seconds=1):
                task, problem = event["involvedObject"]["name"], event["message"]
                self.outcome.jobs_left.append({"task": task, "problem": problem})
                self.report(f"! GatewayTask/{task}: {problem}")

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(NotServed, NotThere):
            await self.cluster.call("DELETE", path)

    async def _list(self, kind: Kind) -> list[Object]:
        try:
            return await self.cluster.list_all(kind)
        except (NotServed, NotThere):
            return []

    async def _remove_crds(self) -> None:
        """Delete the CRDs, unless another namespace has objects of them."""
        elsewhere = set[str]()
        try:
            for kind in KINDS:
                with contextlib.suppress(NotServed, NotThere):
                    path = f"/apis/{API_VERSION}/{kind.plural}"
                    listed = await self.cluster.call("GET", path, query={"limit": "1"})
                    elsewhere |= {obj["metadata"]["namespace"] for obj in listed["items"]}
            if elsewhere:
                self.outcome.crds = f"kept: {', '.join(sorted(elsewhere))} has a gateway too"
                return
            for kind in KINDS:
                await self._delete(f"{_CRDS}/{kind.plural}.{GROUP}")
        except Forbidden as error:
            self.outcome.crds = f"kept: {error}"
            return
        deadline = time.monotonic() + CRD_SECONDS
        while left := await self._list_crds():
            if time.monotonic() > deadline:
                self.outcome.crds = f"still terminating: {', '.join(left)}"
                return
            await asyncio.sleep(PAUSE_SECONDS)
        self.outcome.crds = "removed"

    async def _list_crds(self) -> list[str]:
        ours = {f"{kind.plural}.{GROUP}" for kind in KINDS}
        listed = await self.cluster.call("GET", _CRDS)
        return [
            crd["metadata"]["name"] for crd in listed["items"] if crd["metadata"]["name"] in ours
        ]

    async def _list_remains(self) -> None:
        """Note what an admin may still want to remove: Secrets, volumes, and bytes in a bucket."""
        for title in ("Secret", "PersistentVolumeClaim"):
            path = f"/api/v1/namespaces/{self.cluster.namespace}/{title.lower()}s"
            try:
                found = await self.cluster.call("GET", path, query={"labelSelector": PART_OF})
            except ClusterError as error:
                self.outcome.remains.append(f"{title}s were not listed: {error}")
                continue
            self.outcome.remains += [f"{title}/{obj['metadata']['name']}" for obj in found["items"]]

    def _path(self, kind: Kind) -> str:
        return f"/apis/{API_VERSION}/namespaces/{self.cluster.namespace}/{kind.plural}"
