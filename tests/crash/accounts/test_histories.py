"""The audit keeps the rows of deleted keys, guardrails and grants, over kill -9 of the operator."""

import asyncio
import json
from typing import Any

import pytest

from gateway_core.api.ids import REMAINS_FINALIZER
from tests.crash.steps import HISTORIES, choose
from tests.servers.tenants import (
    describe_guardrail,
    describe_key,
    open_tenant,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import World, wait_for

pytestmark = [pytest.mark.timeout(240)]

(STEP,) = choose("operator", HISTORIES)
FAR = "2099-01-01T00:00:00Z"
FOLDERS = {"gatewaykey": "keys", "gatewayguardrail": "guardrails", "gatewaygrant": "grants"}


def describe_grant(account: str) -> dict[str, Any]:
    spec = {
        "userName": "dana",
        "accountName": account,
        "clientId": "https://app.example.com/client.json",
        "clientName": "Editor",
        "redirectHost": "app.example.com",
        "scopes": ["mcp:read"],
        "resource": "https://mcp.example.com",
        "expirationTime": FAR,
        "refreshToken": {"digest": "0" * 64, "expirationTime": FAR},
    }
    head = {"apiVersion": "modelgateway.dev/v1alpha1", "kind": "GatewayGrant"}
    return {**head, "metadata": {"name": unique("grant")}, "spec": spec}


def is_there(world: World, kind: str, name: str) -> bool:
    return bool(world.run.kubectl("get", kind, name, "-o", "name", "--ignore-not-found").strip())


def read_rows(world: World, kind: str, account: str, name: str) -> list[list[str]]:
    path = world.config.store_directory / FOLDERS[kind] / account / f"{name}.json"
    if not path.exists():
        return []
    annotations = json.loads(path.read_bytes())["metadata"]["annotations"]
    rows: list[list[str]] = json.loads(annotations["modelgateway.dev/changes"])
    return rows


async def test_rows_of_objects_deleted_without_an_operator_are_archived_once(world, tally):
    told = tally("F33", "operator killed while rows of the audit are archived")
    async with open_tenant(world) as client:
        account = client.account
        key, key_object = describe_key(world, account)
        guardrail, grant = describe_guardrail(unique("grd"), account, key), describe_grant(account)
        world.apply(key_object, guardrail, grant)
        await wait_known(client, key.plaintext)
        made = {
            "gatewaykey": key.name,
            "gatewayguardrail": guardrail["metadata"]["name"],
            "gatewaygrant": grant["metadata"]["name"],
        }
        async with told.trial(client, count=len(made)):
            for kind, name in made.items():

                def is_guarded(kind: str = kind, name: str = name) -> bool:
                    return REMAINS_FINALIZER in world.read(kind, name)["metadata"]["finalizers"]

                await wait_for(is_guarded, what=f"the finalizer of {kind}")
            await asyncio.to_thread(world.run.kill, "operator")
            for kind, name in made.items():
                world.run.kubectl("delete", kind, name, "--wait=false")
            await wait_status(client, 401, key=key.plaintext)
            assert all(is_there(world, kind, name) for kind, name in made.items())

            for _ in range(2):
                world.restart_doomed("operator", {"GATEWAY_FAILPOINTS": STEP})
                await wait_for(lambda: not world.is_alive("operator"), what="death", seconds=60)
            world.run.restart("operator", {})
            for kind, name in made.items():
                await wait_for(
                    lambda kind=kind, name=name: not is_there(world, kind, name),
                    what=f"the end of {kind}",
                    seconds=60,
                )
                rows = read_rows(world, kind, account, name)
                assert len(rows) == 2, (kind, rows)
                # the user of the grant is no member of the account
                by = "gateway/" if kind == "gatewaygrant" else "client/"
                assert [row[1] for row in rows].count(by) == 1, (kind, rows)
    told.check()
