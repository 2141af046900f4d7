"""A local run as a library: the processes, what they need beforehand, and their end.

    run = LocalRun(LocalConfig(root=…, directory=…, ports=Ports.free(), restart=False))
    await run.start()                        # or start("etcd", "kube-apiserver")
    await run.kill("operator"); await run.restart("operator", {"NAME": "value"})
    await run.stop()

Used by `gatewayctl local` and, through `background`, by the integration tests.
"""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway_cli.controlplane.binaries import ControlPlaneBinaries
from gateway_cli.controlplane.resolution import find_kubectl, resolve_binaries
from gateway_cli.local.cluster import Cluster
from gateway_cli.local.config import LocalConfig
from gateway_cli.local.envfile import list_variables, write_env_file
from gateway_cli.local.errors import LocalRunError
from gateway_cli.local.manifests import list_crds, write_first_objects, write_namespace
from gateway_cli.local.pki import ClusterKeys, write_cluster_keys, write_kubeconfig
from gateway_cli.local.ports import check_ports
from gateway_cli.local.process import ProcessSpec
from gateway_cli.local.processes import (
    BACKENDS,
    CONTROL_PLANE,
    GATEWAY,
    LISTENERS,
    PROCESSES,
    S3,
    describe_apiserver,
    describe_etcd,
    describe_gateway,
    describe_redis,
)
from gateway_cli.local.redis_binary import find_redis_server
from gateway_cli.local.rundir import SUPERVISOR, RunDirectory
from gateway_cli.local.s3server import describe_s3, find_s3_server, list_store_variables
from gateway_cli.local.state import Credentials, ensure_credentials, ensure_shared_secrets
from gateway_cli.local.supervisor import Supervisor
from gateway_cli.progress import Reporter, format_seconds


class LocalRun:
    """One run in one folder. Use it from one event loop; `start` once, `stop` always."""

    def __init__(self, config: LocalConfig, reporter: Reporter | None = None) -> None:
        self.config = config
        self._reporter = reporter or Reporter.quiet()
        self._run_directory = RunDirectory(config.run_directory)
        self._supervisor = Supervisor(
            self._run_directory, config.log_directory, config.root, self._reporter, config.restart
        )
        self._env: dict[str, dict[str, str]] = {
            name: dict(values) for name, values in config.extra_env.items()
        }
        self._credentials: Credentials | None = None
        self._binaries: ControlPlaneBinaries | None = None
        self._keys: ClusterKeys | None = None
        self._kubectl: Path | None = None
        self._s3_server: Path | None = None

    @property
    def credentials(self) -> Credentials:
        """Keys and secrets of the run; there from `start` on."""
        if self._credentials is None:
            raise LocalRunError("the run has not been started")
        return self._credentials

    @property
    def variables(self) -> dict[str, str]:
        """What `gateway.env` holds."""
        return list_variables(self.config, self.credentials)

    @property
    def cluster(self) -> Cluster:
        """kubectl on the cluster in use; there from `start` on."""
        if self._kubectl is None:
            raise LocalRunError("the run has not been started")
        return Cluster(self._kubectl, self.config.cluster_kubeconfig, self.config.namespace)

    async def start(self, *names: str) -> None:
        """Starts all processes, or those of `names`, and returns when all are ready.

        Raises:
            LocalRunError: its subclasses say what is wrong. What was started stays for `stop`.
            BinariesNotFoundError: if there is no control plane to be had.
        """
        wanted = self._select(names)
        self._run_directory.acquire()
        for name in self._run_directory.clear_stale():
            self._reporter.line(f"! {name} was left over from an earlier run; ended")
        check_ports(self.config.ports, [port for name in wanted for port in LISTENERS[name]])
        self._prepare_files()
        await self._find_programs()
        if S3 in wanted:
            async with self._reporter.stage("Finding or building the S3 server"):
                self._s3_server = await find_s3_server(self.config.root)
        if self.config.kubeconfig is not None and not self.config.allow_remote:
            await self.cluster.refuse_remote()
        begin = time.monotonic()
        await self._start_processes(wanted)
        write_env_file(self.config.env_file, self.variables)
        took = format_seconds(time.monotonic() - begin)
        self._reporter.line(f"✓ all {len(wanted)} processes are ready ({took})")

    async def stop(self) -> None:
        """Ends all processes in reverse order of their start; harmless when there is none."""
        if self._supervisor.names:
            async with self._reporter.stage("Stopping everything"):
                await self._supervisor.stop_all()
        self._run_directory.release()

    async def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Sends a signal; after SIGKILL it returns when the process is gone."""
        await self._supervisor.kill(name, signal_number)

    async def restart(self, name: str, env: Mapping[str, str] | None = None) -> None:
        """Ends a process if it runs and starts it again; returns when it is ready.

        `env`, if given, replaces the process's extra environment from now on.
        """
        if env is not None:
            self._env[name] = dict(env)
        await self._supervisor.stop(name)
        await self._supervisor.start(self._describe(name))

    async def wait_ready(self, name: str) -> None:
        """Waits until a process is running and ready, also over a restart by the supervisor."""
        await self._supervisor.wait_ready(name)

    def pid_of(self, name: str) -> int:
        """The pid of a process; LocalRunError if it is not running."""
        return self._supervisor.pid_of(name)

    def is_alive(self, name: str) -> bool:
        """Whether a process is running now."""
        return self._supervisor.is_alive(name)

    def log_of(self, name: str) -> Path:
        """The log of a process."""
        return self._supervisor.log_of(name)

    def _select(self, names: tuple[str, ...]) -> list[str]:
        known = (*PROCESSES, S3) if self.config.store == "s3" else PROCESSES
        unknown = set(names) - set(known)
        if unknown:
            raise LocalRunError(f"there is no process {', '.join(sorted(unknown))}")
        wanted = [name for name in known if name in (names or known)]
        if self.config.kubeconfig is not None:
            wanted = [name for name in wanted if name not in CONTROL_PLANE]
        return wanted

    def _prepare_files(self) -> None:
        config = self.config
        config.directory.mkdir(parents=True, exist_ok=True)
        self._run_directory.record(SUPERVISOR, os.getpid())
        for folder in (config.log_directory, config.store_directory, config.directory / "redis"):
            folder.mkdir(parents=True, exist_ok=True)
        for log in config.log_directory.glob("*.log"):
            log.replace(log.with_name(f"{log.name}.1"))
        ensure_shared_secrets(config.secrets_directory)
        path = config.directory / "state" / "credentials.json"
        self._credentials = ensure_credentials(path, config.secrets_directory)
        if config.kubeconfig is None:
            self._keys = write_cluster_keys(config.directory / "pki")
            server = f"https://127.0.0.1:{config.ports.kube_apiserver}"
            write_kubeconfig(config.cluster_kubeconfig, self._keys, server, config.namespace)

    async def _find_programs(self) -> None:
        self._kubectl = find_kubectl(os.environ)
        modules = self.config.root / "tools" / "controlplane"
        if self.config.kubeconfig is None or self._kubectl is None:
            self._binaries = await resolve_binaries(modules, os.environ, self._reporter)
            self._kubectl = self._binaries.kubectl
            if self.config.kubeconfig is None:
                self._reporter.line(f"✓ control plane: {self._binaries.origin}")

    async def _start_processes(self, wanted: list[str]) -> None:
        """First what stands alone beside the control plane, then what needs both."""
        await run_together(
            self._start_cluster(wanted),
            *(self._start(name) for name in wanted if name in (*BACKENDS, S3)),
        )
        await run_together(*(self._start(name) for name in wanted if name in GATEWAY))

    async def _start_cluster(self, wanted: list[str]) -> None:
        for name in CONTROL_PLANE:
            if name in wanted:
                await self._start(name)
        if self.config.kubeconfig is not None or "kube-apiserver" in wanted:
            async with self._reporter.stage("Applying CRDs and first objects"):
                await self._prepare_cluster()

    async def _prepare_cluster(self) -> None:
        config, cluster = self.config, self.cluster
        crds = list_crds(config)
        await cluster.apply([write_namespace(config), *crds])
        await cluster.wait_established(crds)
        if config.first_objects:
            await cluster.apply([write_first_objects(config, self.credentials)])

    async def _start(self, name: str) -> None:
        async with self._reporter.stage(f"Starting {name}"):
            await self._supervisor.start(self._describe(name))

    def _describe(self, name: str) -> ProcessSpec:
        env = {
            "GATEWAY_LOG_FORMAT": "console",
            **os.environ,
            "GATEWAY_NAMESPACE": self.config.namespace,
            "GATEWAY_SECRETS_DIR": str(self.config.secrets_directory),
            "GATEWAY_STORE_DIR": str(self.config.store_directory),
        }
        if self.config.store == "s3":
            env |= list_store_variables(self.config, self.credentials)
        if name in CONTROL_PLANE:
            if self._binaries is None or self._keys is None:
                raise LocalRunError(f"{name} is not part of this run")
            if name == "etcd":
                spec = describe_etcd(self.config, self._binaries, os.environ)
            else:
                spec = describe_apiserver(self.config, self._binaries, self._keys, os.environ)
        elif name == S3:
            if self._s3_server is None:
                raise LocalRunError(f"{name} is not part of this run")
            spec = describe_s3(self.config, self._s3_server, self.credentials)
        elif name == "redis":
            spec = describe_redis(self.config, find_redis_server(os.environ), os.environ)
        else:
            spec = describe_gateway(name, self.config, self.credentials, env)
        return replace(spec, env={**spec.env, **self._env.get(name, {})})


async def run_together(*works: Coroutine[Any, Any, None]) -> None:
    """Awaits all; when one fails the others are cancelled and its error alone is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
