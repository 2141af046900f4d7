"""Upstream jobs that are stopped from this machine, where no operator does it any more."""

import asyncio
from base64 import b64decode
from contextlib import AsyncExitStack
from typing import Self

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError, NotThere
from gateway_cli.cluster.secrets import get_secret
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.task import TERMINAL_PHASES, GatewayTask, UpstreamJob
from gateway_core.egress.addresses import DECLARED
from gateway_core.failures import describe_failure
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.upstream import Upstream, UpstreamError

STOP_SECONDS = 20.0


class JobLeft(Exception):
    """A job that runs or may run on at its provider; the text says where and why."""


class JobStopper:
    """The providers as they were when it was opened; an asynchronous context manager.

    Their objects and Secrets are read at once: in a terminating namespace they may vanish before
    the tasks.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._upstreams: dict[str, Upstream | str] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            providers = await self._cluster.list_all(GatewayProvider)
        except ClusterError:
            providers = []
        for obj in providers:
            self._upstreams[obj["metadata"]["name"]] = await self._open(obj)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def stop(self, task: GatewayTask) -> bool:
        """Stop the task's job; False where it certainly has none. JobLeft."""
        request, job = task.spec.request, task.status.upstream
        if task.status.phase in TERMINAL_PHASES:
            return False
        if job is None and request.route is not None:
            # the API's route is the intent: the operator may have submitted it
            job = UpstreamJob(provider_name=request.route.provider_name)
        if job is None:
            return False
        where = f"{job.provider_name}, job {job.job_id or 'unknown'}"
        upstream = self._upstreams.get(job.provider_name, "its GatewayProvider is gone")
        if isinstance(upstream, str):
            raise JobLeft(f"{where}: {upstream}")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                job_id = job.job_id
                if job_id is None:
                    if not upstream.can_find:
                        raise JobLeft(f"{where}: a submission may have started it")
                    job_id = await upstream.find(task.metadata.uid)
                if job_id is None:
                    return False
                if not upstream.can_cancel:
                    raise JobLeft(f"{where}: the provider cannot cancel")
                await upstream.cancel(job_id)
        except (UpstreamError, TimeoutError) as error:
            raise JobLeft(f"{where}: {str(error) or 'no answer in time'}") from error
        return True

    async def _open(self, obj: dict[str, object]) -> Upstream | str:
        """Return the provider's adapter, or why there is none."""
        try:
            spec = GatewayProvider.load(obj).spec
            if spec.type != "http":
                return f"type {spec.type} cannot be called from this machine"
            credential = None
            if spec.credentials_secret_ref is not None:
                secret = await get_secret(self._cluster, spec.credentials_secret_ref.name)
                text = (secret.get("data") or {}).get(spec.credentials_secret_ref.key, "")
                credential = b64decode(text)
            upstream = HttpUpstream(spec, credential, DECLARED)
            await upstream.start()
        except NotThere:
            return "its Secret is gone"
        except (ClusterError, ValueError) as error:
            return describe_failure(error)
        self._stack.push_async_callback(upstream.close)
        return upstream
