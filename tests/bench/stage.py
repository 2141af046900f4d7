"""What the benchmarks share: a running gateway, an unlimited account, the apiserver's counters."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from gateway_core.adapters.kube.connection import load_kubeconfig
from gateway_core.adapters.kube.records import KubeRecords
from gateway_core.adapters.secretfiles import load_key
from gateway_core.contract.account import GatewayAccount, GatewayKey
from gateway_core.contract.keys import digest, mint_key
from gateway_core.contract.names import ACCOUNT_LABEL
from gateway_core.contract.resource import skeleton
from tests.servers.world import World

ACCOUNT = "bench"


def connect_records(world: World) -> KubeRecords:
    """Our own Kubernetes client on the world's cluster."""
    connection = load_kubeconfig(world.config.cluster_kubeconfig)
    return KubeRecords(connection, world.config.namespace)


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
    async with connect_records(world) as records:
        await records.create(GatewayAccount.plural, account)
        await records.create(GatewayKey.plural, key)
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


@contextmanager
def cpu_of(pid: int) -> Iterator[dict[str, Any]]:
    """CPU seconds and resident memory of a process over the block."""
    process, result = psutil.Process(pid), dict[str, Any]()
    before, begin = process.cpu_times(), time.monotonic()
    yield result
    after = process.cpu_times()
    result["cpu"] = after.user + after.system - before.user - before.system
    result["wall"] = time.monotonic() - begin
    result["rss_mb"] = process.memory_info().rss / 2**20


def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parents[2]
