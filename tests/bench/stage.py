"""What the benchmarks share: a running gateway, an unlimited account, the apiserver's counters."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import ACCOUNT_LABEL
from gateway_core.api.key import GatewayKey, digest, mint_key
from gateway_core.api.resource import skeleton
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import load_kubeconfig
from gateway_core.kube.secrets import load_key
from tests.servers.world import World

ACCOUNT = "bench"


def connect_kubernetes(world: World) -> KubernetesClient:
    """Our own Kubernetes client on the world's cluster."""
    connection = load_kubeconfig(world.config.cluster_kubeconfig)
    return KubernetesClient(connection, world.config.namespace)


async def make_bench_key(world: World) -> str:
    """The plaintext of a key of an unlimited account."""
    minted = mint_key()
    pepper = load_key(world.config.secrets_directory, "pepper-1")
    account = skeleton(GatewayAccount, ACCOUNT) | {
        "spec": {
            "displayName": "Benchmarks",
            "owner": {"name": "Bench", "email": "bench@example.com"},
            "unlimited": True,
            "requestsPerMinute": 1_000_000,
        }
    }
    key = skeleton(GatewayKey, f"key-bench-{minted.id}", labels={ACCOUNT_LABEL: ACCOUNT}) | {
        "spec": {
            "accountName": ACCOUNT,
            "displayName": "Benchmarks",
            "tokens": [
                {
                    "id": minted.id,
                    "digest": digest(minted.plaintext, pepper),
                    "pepperVersion": 1,
                    "hint": minted.hint,
                }
            ],
        }
    }
    async with connect_kubernetes(world) as kube:
        await kube.create(GatewayAccount.plural, account)
        await kube.create(GatewayKey.plural, key)
    return minted.plaintext


def count_requests(world: World, **labels: str) -> float:
    """Requests the apiserver has counted with these labels."""
    text = world.run.kubectl("get", "--raw", "/metrics")
    total = 0.0
    for line in text.splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        if all(f'{name}="{value}"' in line for name, value in labels.items()):
            total += float(re.split(r"\s+", line)[-1])
    return total


def end_operator(world: World) -> None:
    """Ends the operator, which would share the machine with what is measured."""
    if world.is_alive("operator"):
        world.run.kill("operator")


@dataclass
class Usage:
    """What a process used: CPU seconds, the most cores in any 5 s, and its largest memory in MB."""

    cpu: float = 0.0
    peak_cores: float = 0.0
    peak_mb: float = 0.0


@asynccontextmanager
async def watch_usage(pids: Mapping[str, int]) -> AsyncIterator[dict[str, Usage]]:
    """What processes use over the block, by name."""
    usage = {name: Usage() for name in pids}
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def read_cpu(name: str) -> float:
        times = processes[name].cpu_times()
        return times.user + times.system

    before = {name: read_cpu(name) for name in pids}

    async def sample() -> None:
        seen_at, seen = time.monotonic(), dict(before)
        while True:
            await asyncio.sleep(0.5)
            for name, process in processes.items():
                memory = process.memory_info().rss / 2**20
                usage[name].peak_mb = max(usage[name].peak_mb, memory)
            passed = time.monotonic() - seen_at
            if passed >= 5:
                now = {name: read_cpu(name) for name in pids}
                for name in pids:
                    cores = (now[name] - seen[name]) / passed
                    usage[name].peak_cores = max(usage[name].peak_cores, cores)
                seen_at, seen = time.monotonic(), now

    sampling = asyncio.create_task(sample())
    try:
        yield usage
    finally:
        sampling.cancel()
        for name in pids:
            usage[name].cpu = read_cpu(name) - before[name]


def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parents[2]
