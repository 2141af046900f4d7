"""I11: a quota of the largest keys and guardrails leaves both processes within the chart's limits.

The API and the operator are started anew on it, and their peak memory is measured (contract §9.0).
"""

import asyncio
import copy
import time
from pathlib import Path

import psutil
import pytest
import yaml

from gateway_core.accounts.guardrails import measure_fields
from gateway_core.api.guardrail import MOST_KEYS
from gateway_core.api.key import MOST_REVOKED
from gateway_core.api.limits import MOST_GUARDRAILS, MOST_OBJECT_BYTES
from tests.servers.replica import Replica
from tests.servers.tenants import describe_account, describe_token, make_key, unique, wait_status
from tests.servers.world import ROOT, Client, World, wait_for
from tests.shares import long_run

pytestmark = [pytest.mark.timeout(600), long_run]

MANAGEMENT = "/api/v1/management"
KEYS, GUARDRAILS = 1000, 100
"""The quotas of an account, as the chart sets them."""
AT_ONCE = 16
SHARE = 0.6
"""Of its memory limit, what a process may take for one account that fills its quota."""
MIB = 1024 * 1024


def read_limits() -> dict[str, int]:
    """Bytes of memory that the chart gives each process."""
    values = yaml.safe_load(Path(ROOT, "charts/model-gateway/values.yaml").read_text())
    quotas = (values["api"]["keysPerAccount"], values["api"]["guardrailsPerAccount"])
    assert quotas == (KEYS, GUARDRAILS)
    units = {"Mi": MIB, "Gi": 1024 * MIB}
    limits = {name: values[name]["resources"]["limits"]["memory"] for name in ("api", "operator")}
    return {name: int(text[:-2]) * units[text[-2:]] for name, text in limits.items()}


def read_peak(pid: int) -> int:
    """Bytes that a process and its children have had in memory at most, added up."""
    process = psutil.Process(pid)
    peak = 0
    for each in (process, *process.children(recursive=True)):
        lines = Path(f"/proc/{each.pid}/status").read_text().splitlines()
        peak += next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    return peak


def fill(field: str) -> list[str]:
    """As many entries as a list may have, all different."""
    return [f"{field}{n:03}" + "x" * 200 for n in range(64)]


@pytest.fixture(scope="module")
def world():
    """A gateway without its own operator: the test starts the one that it measures."""
    with World() as running:
        running.run.kill("operator")
        yield running


async def restart_api(world: World, client: Client, keys: int) -> int:
    """The peak of a new API process that lists keys and guardrails."""
    with Replica(world, "api") as replica:
        base = replica.base_url
        await wait_status(client, 200, f"{MANAGEMENT}/keys", base=base, seconds=30)
        paths = [f"{MANAGEMENT}/{path}?limit=100" for path in ("keys", "guardrails") * 3]
        pages = await asyncio.gather(*(client.request("GET", path, base=base) for path in paths))
        assert [page.status for page in pages] == [200] * 6, pages[0].raw[:200]
        assert len(pages[0].body["data"]) >= min(50, keys)
        return read_peak(replica.pid)


async def restart_operator(world: World, judged: dict[str, int]) -> int:
    """The peak of a new operator that has judged so many objects of each kind."""

    def have_judged() -> bool:
        for kind, count in judged.items():
            rows = world.run.kubectl("get", kind, "--no-headers").splitlines()
            if sum(bool({"True", "False"} & set(row.split())) for row in rows) < count:
                return False
        return True

    with Replica(world, "operator") as replica:
        await wait_for(have_judged, seconds=300, what=f"conditions of {judged}")
        return read_peak(replica.pid)


async def test_largest_keys_and_guardrails_fit_the_memory_of_both_processes(
    world: World,
) -> None:
    limits = read_limits()
    account = unique("acct")
    world.apply(describe_account(account))
    governor = make_key(world, account, "Management")
    async with world.client(governor.plaintext, account) as client:
        await wait_status(client, 200, f"{MANAGEMENT}/keys", seconds=30)
        bare = {"api": await restart_api(world, client, 0)}
        bare["operator"] = await restart_operator(world, {"gatewaykeys": 1})
        made = {}
        for path, lists in (
            ("keys", ("allowed_models", "allowed_providers")),
            ("guardrails", ("allowed_models", "denied_models")),
        ):
            body = {"name": "n" * 100, lists[0]: fill("a"), lists[1]: fill("b")[:13]}
            answer = await client.request("POST", f"{MANAGEMENT}/{path}", body=body)
            assert answer.status == 201, answer.raw
            made[path] = answer.body["id"].replace("_", "-", 1)
            # what is a little larger is refused
            body[lists[1]] = fill("b")[:16]
            assert (await client.request("POST", f"{MANAGEMENT}/{path}", body=body)).status == 400
        began = time.monotonic()
        size = await store_copies(world, made)
        print(f"stored in {time.monotonic() - began:.0f} s; the smaller kind has {size} bytes each")
        assert size > 0.95 * MOST_OBJECT_BYTES
        full = {"api": await restart_api(world, client, KEYS)}
        full["operator"] = await restart_operator(
            world, {"gatewayguardrails": GUARDRAILS, "gatewaykeys": KEYS}
        )
    for name, limit in limits.items():
        print(
            f"{name}: peak {bare[name] / MIB:.0f} MiB without,"
            f" {full[name] / MIB:.0f} MiB with them, limit {limit / MIB:.0f} MiB"
        )
    for name, limit in limits.items():
        assert full[name] < SHARE * limit, (name, bare, full)


async def store_copies(world: World, made: dict[str, str]) -> int:
    """Fills the quota with copies of what REST took; the bytes of fields of the smaller kind.

    Of revoked keys there are as many as are kept. Each key is in as many guardrails as it may be,
    so those are as large as they get. Each key has a token of its own.
    """
    names = [f"key-copy-{n:040}" for n in range(KEYS + MOST_REVOKED)]
    async with world.kube() as kube:
        key = await kube.get("gatewaykeys", made["keys"])
        guardrail = await kube.get("gatewayguardrails", made["guardrails"])
        turns = asyncio.Semaphore(AT_ONCE)

        async def store(plural: str, obj: dict, name: str, **spec: object) -> None:
            new = copy.deepcopy(obj)
            kept = {part: obj["metadata"].get(part) or {} for part in ("labels", "annotations")}
            new = {**new, "metadata": {"name": name, **kept}, "spec": {**new["spec"], **spec}}
            new.pop("status", None)
            async with turns:
                await kube.create(plural, new)

        async def store_key(number: int) -> None:
            token = describe_token(world)[1]
            await store("gatewaykeys", key, names[number], revoked=number >= KEYS, tokens=[token])

        await asyncio.gather(*map(store_key, range(len(names))))
        pools = [f"grd-copy-{n:040}" for n in range(GUARDRAILS - 1)]
        await asyncio.gather(
            *(
                store(
                    "gatewayguardrails",
                    guardrail,
                    name,
                    displayName=name,
                    keyNames=names[:MOST_KEYS] if n < MOST_GUARDRAILS else [],
                )
                for n, name in enumerate(pools)
            )
        )
    return min(sum(measure_fields(obj["spec"]).values()) for obj in (key, guardrail))
