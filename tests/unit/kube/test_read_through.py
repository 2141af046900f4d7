"""Reads by name that several callers share."""

import asyncio
from typing import Any

import pytest

from gateway_core.kube.read_through import ReadThrough
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes


async def test_cancelled_caller_leaves_the_read_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kube, gate = FakeKubernetes(), asyncio.Event()
    kube.put("gatewayaccounts", {"metadata": {"name": "demo"}, "spec": {}})
    table: Any = FakeInformer(kube, "gatewayaccounts", lambda obj: obj["metadata"]["name"])
    get = kube.get

    async def get_late(plural: str, name: str) -> Any:
        await gate.wait()
        return await get(plural, name)

    monkeypatch.setattr(kube, "get", get_late)
    accounts = ReadThrough(table, kube, "gatewayaccounts")
    leaving, staying = (asyncio.create_task(accounts.read("demo")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    gate.set()
    assert await staying == "demo"
