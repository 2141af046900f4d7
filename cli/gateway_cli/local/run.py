"""A local run as a library: the processes, what they need beforehand, and their end.

    run = LocalRun(LocalConfig(root=…, directory=…, ports=…, restart=False))
    await run.start()                        # or start("etcd", "kube-apiserver")
    await run.supervisor.kill("operator"); await run.restart("operator", {"NAME": "value"})
    await run.stop()

Used by `gatewayctl local` and by the tests with real processes.
"""

import asyncio
import contextlib
import ipaddress
import os
import time
import urllib.parse
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from gateway_cli.cluster.applying import apply
from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.cluster.manifests import read_manifests
from gateway_cli.local.binaries import ControlPlaneBinaries, find_kubectl, resolve_binaries
from gateway_cli.local.certificates import ClusterKeys, write_cluster_keys, write_kubeconfig
from gateway_cli.local.config import (
    LOOPBACK,
    PORT_NAMES,
    LocalConfig,
    LocalRunError,
    check_ports,
)
from gateway_cli.local.processes import (
    BACKENDS,
    CONTROL_PLANE,
    S3,
    ProcessSpec,
    describe_apiserver,
    describe_etcd,
    describe_gateway,
    describe_redis,
    describe_s3,
    find_s3_server,
    list_listeners,
    list_processes,
)
from gateway_cli.local.state import (
    Credentials,
    ensure_credentials,
    ensure_shared_secrets,
    list_variables,
    read_first_objects,
    write_env_file,
)
from gateway_cli.local.supervisor import SUPERVISOR, RunDirectory, Supervisor
from gateway_cli.machine import run_program
from gateway_cli.progress import Reporter, format_seconds

APPLY_SECONDS = 30.0
_ESTABLISHED = f"--timeout={APPLY_SECONDS:.0f}s"

_T = TypeVar("_T")


class LocalRun:
    """One run in one folder. Use it from one event loop; `start` once, `stop` always.

    `supervisor` has the processes.
    """

    supervisor_class = Supervisor

    def __init__(self, config: LocalConfig, reporter: Reporter | None = None) -> None:
        self.config = config
        self._reporter = reporter or Reporter.quiet()
        self._run_directory = RunDirectory(config.run_directory)
        self.supervisor = self.supervisor_class(
            self._run_directory, config.log_directory, config.root, self._reporter, config.restart
        )
        self._env = {name: dict(values) for name, values in config.extra_env.items()}
        self._credentials: Credentials | None = None
        self._binaries: ControlPlaneBinaries | None = None
        self._keys: ClusterKeys | None = None
        self._kubectl: Path | None = None
        self._s3_server: Path | None = None

    @property
    def credentials(self) -> Credentials:
        """Keys and secrets of the run; there from `start` on."""
        return _started(self._credentials)

    @property
    def variables(self) -> dict[str, str]:
        """The content of `gateway.env`."""
        return list_variables(self.config, self.credentials)

    @property
    def kubectl_path(self) -> Path:
        """The kubectl of the run; there from `start` on."""
        return _started(self._kubectl)

    async def start(self, *names: str) -> None:
        """Start all processes, or those of `names`, and return when all are ready.

        Raises:
            LocalRunError: its subclasses say what is wrong. What was started stays for `stop`.
            ClusterError: the cluster refuses what the run needs of it.
            BinariesNotFoundError: if there is no control plane to be had.
        """
        wanted = self._select(names)
        self._run_directory.acquire()
        for name in self._run_directory.clear_stale():
            self._reporter.line(f"! {name} was left over from an earlier run; ended")
        ports, listeners = self.config.ports, list(chain(*map(list_listeners, wanted)))
        check_ports(ports, listeners)
        self._run_directory.describe(
            wanted, {name: ports.of(name) for name in (*PORT_NAMES, *listeners)}
        )
        self._prepare_files()
        await self._find_programs(wanted)
        if self.config.kubeconfig is not None and not self.config.allow_remote:
            async with self._open_cluster() as cluster:
                _refuse_remote(self.config.kubeconfig, cluster.server)
        begin = time.monotonic()
        # first what stands alone beside the control plane, then what needs both
        backends = [name for name in wanted if name in (*BACKENDS, S3)]
        await _run_together(self._start_cluster(wanted), *map(self._start, backends))
        rest = [name for name in wanted if name not in (*CONTROL_PLANE, *backends)]
        await _run_together(*map(self._start, rest))
        write_env_file(self.config.env_file, self.variables)
        took = format_seconds(time.monotonic() - begin)
        self._reporter.line(f"✓ all {len(wanted)} processes are ready ({took})")

    async def stop(self) -> None:
        """End all processes in reverse order of their start; harmless when there is none."""
        if self.supervisor.names:
            async with self._reporter.stage("Stopping everything"):
                await self.supervisor.stop_all()
        self._run_directory.release()

    async def restart(self, name: str, env: Mapping[str, str] | None = None) -> None:
        """End a process if it runs and start it again; return when it is ready.

        `env`, if given, replaces the process's extra environment from now on.
        """
        if env is not None:
            self._env[name] = dict(env)
        await self.supervisor.stop(name)
        await self.supervisor.start(self._describe(name))

    async def kubectl(self, *arguments: str) -> str:
        """Return the output of kubectl for the cluster in use, in the run's namespace.

        Raises:
            ClusterError: if it fails; the text is what it says.
        """
        done = await run_program(
            str(self.kubectl_path),
            f"--kubeconfig={self.config.cluster_kubeconfig}",
            f"--namespace={self.config.namespace}",
            *arguments,
        )
        if done.code != 0:
            raise ClusterError(f"kubectl {arguments[0]}: {done.errors or done.code}")
        return done.output

    def _select(self, names: tuple[str, ...]) -> list[str]:
        known = list_processes(self.config)
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
            server = f"https://{LOOPBACK}:{config.ports.kube_apiserver}"
            write_kubeconfig(config.cluster_kubeconfig, self._keys, server, config.namespace)

    async def _find_programs(self, wanted: list[str]) -> None:
        self._kubectl = find_kubectl(os.environ)
        if self.config.kubeconfig is None or self._kubectl is None:
            self._binaries = await resolve_binaries(self.config.root, os.environ, self._reporter)
            self._kubectl = self._binaries.kubectl
            if self.config.kubeconfig is None:
                self._reporter.line(f"✓ control plane: {self._binaries.origin}")
        if S3 in wanted:
            async with self._reporter.stage("Finding or building the S3 server"):
                self._s3_server = await find_s3_server(self.config.root)

    async def _start_cluster(self, wanted: list[str]) -> None:
        for name in CONTROL_PLANE:
            if name in wanted:
                await self._start(name)
        if self.config.kubeconfig is not None or "kube-apiserver" in wanted:
            async with self._reporter.stage("Applying CRDs and first objects"):
                await self._prepare_cluster()

    async def _prepare_cluster(self) -> None:
        config = self.config
        crds = read_manifests([config.root / "crds"])
        if not crds:
            raise LocalRunError(f"{config.root / 'crds'} has no CRDs; `make generate` writes them")
        metadata = {"name": config.namespace}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        async with self._open_cluster() as cluster:
            for obj in (namespace, *crds):
                await apply(cluster, obj)
            names = (f"crd/{crd['metadata']['name']}" for crd in crds)
            await self.kubectl("wait", "--for=condition=Established", _ESTABLISHED, *names)
            if config.first_objects:
                for obj in read_first_objects(config, self.credentials):
                    await apply(cluster, obj)

    def _open_cluster(self) -> Any:
        return open_cluster(
            self.config.namespace,
            patience=APPLY_SECONDS,
            kubeconfig=self.config.cluster_kubeconfig,
        )

    async def _start(self, name: str) -> None:
        async with self._reporter.stage(f"Starting {name}"):
            await self.supervisor.start(self._describe(name))

    def _describe(self, name: str) -> ProcessSpec:
        config = self.config
        match name:
            case "etcd":
                spec = describe_etcd(config, _started(self._binaries))
            case "kube-apiserver":
                spec = describe_apiserver(config, _started(self._binaries), _started(self._keys))
            case "s3":
                spec = describe_s3(config, _started(self._s3_server), self.credentials)
            case "redis":
                spec = describe_redis(config)
            case _:
                spec = describe_gateway(name, config, self.credentials)
        return replace(spec, env={**spec.env, **self._env.get(name, {})})


def is_loopback(server: str) -> bool:
    """Return whether the host of the URL `server` is this machine's loopback."""
    host = urllib.parse.urlsplit(server).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _refuse_remote(kubeconfig: Path, server: str) -> None:
    if not is_loopback(server):
        raise LocalRunError(
            f"{kubeconfig} names {server}, which is not on this machine; the local run would"
            " write CRDs and objects there. --allow-remote-cluster says that it may"
        )


def _started(value: _T | None) -> _T:
    if value is None:
        raise LocalRunError("the run has not been started, or has no such process")
    return value


async def _run_together(*works: Coroutine[Any, Any, None]) -> None:
    """Await all; when one fails the others are cancelled and its error alone is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
