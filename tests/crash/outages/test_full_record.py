"""An etcd of a small quota is filled: intake stops, reads and running work go on, nothing is lost.

Once its operator's mark stops intake before the quota, and once etcd refuses every write (NOSPACE).
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gateway_core.api.file import GatewayFile
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import NoSpaceLeft
from gateway_core.kube.lists import list_all
from tests.crash.commands import scrape
from tests.crash.history import wait_settled
from tests.crash.storage import UPLOAD, encode_form
from tests.servers.tenants import list_objects, make_key, open_tenant, wait_status
from tests.servers.world import Answer, Client, World, wait_for

pytestmark = [pytest.mark.timeout(420)]

QUOTA = 24 * 2**20
FILLER_BYTES = 200_000
SOON = {
    "GATEWAY_RECORD_SECONDS": "0.5",
    "GATEWAY_SWEEP_SECONDS": "2",
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A gateway on an etcd of `QUOTA`."""
    etcd = {"ETCD_QUOTA_BACKEND_BYTES": str(QUOTA)}
    with World(extra_env={"etcd": etcd, "operator": SOON}) as running:
        yield running


class Etcd:
    """The database behind the record, by its own API, and what fills it."""

    def __init__(self, world: World, kube: KubernetesClient, http: aiohttp.ClientSession) -> None:
        self._root = f"http://127.0.0.1:{world.config.ports.etcd}/v3"
        self.kube = kube
        self.http = http
        self._fillers: list[str] = []

    async def call(self, path: str, **body: Any) -> dict[str, Any]:
        async with self.http.post(f"{self._root}/{path}", data=json.dumps(body)) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json(content_type=None))

    async def size(self) -> int:
        return int((await self.call("maintenance/status"))["dbSize"])

    async def fill(self, size: int) -> None:
        """Puts objects of others into the database until it has so many bytes. NoSpaceLeft."""
        while await self.size() < size:
            await self.put_filler()

    async def put_filler(self) -> None:
        name = f"filler-{secrets.token_hex(6)}"
        filler = {"metadata": {"name": name}, "data": {"x": "y" * FILLER_BYTES}}
        await self.kube.call_core("POST", "configmaps", body=filler)
        self._fillers.append(name)

    async def make_room(self) -> None:
        """What an admin does: removes objects, compacts, defragments, disarms."""
        for name in self._fillers:
            await self.kube.call_core("DELETE", "configmaps", name)
        self._fillers.clear()
        header = (await self.call("maintenance/status"))["header"]
        await self.call("kv/compaction", revision=header["revision"], physical=True)
        await self.call("maintenance/defragment")
        alarms = (await self.call("maintenance/alarm", action="GET")).get("alarms", [])
        for alarm in alarms:
            await self.call("maintenance/alarm", action="DEACTIVATE", **alarm)


async def create_each(client: Client, management_key: str) -> dict[str, Answer]:
    """One request of every kind that creates."""
    batch = {
        "input_file_id": "file-" + "a" * 26,
        "endpoint": "/v1/moderations",
        "completion_window": "24h",
    }
    source = {"source": {"type": "base64", "data": "aGVsbG8="}}
    post = client.request
    return {
        "task": await post("POST", client.tasks_path, body=client.body(duration_seconds=3)),
        "file": await post("POST", "/v1/files", **encode_form("file", b"hello", "user_data")),
        "upload": await post("POST", "/v1/uploads", body=UPLOAD),
        "batch": await post("POST", "/v1/batches", body=batch),
        "temporary file": await post("POST", "/api/v1/files", body=source),
        "key": await post(
            "POST", "/api/v1/management/keys", body={"name": "k"}, key=management_key
        ),
        "guardrail": await post(
            "POST",
            "/api/v1/management/guardrails",
            body={"name": secrets.token_hex(4)},
            key=management_key,
        ),
    }


def check_refused(answers: dict[str, Answer]) -> None:
    """Every one 503 with Retry-After, in its dialect."""
    for kind, answer in answers.items():
        assert answer.status == 503, (kind, answer.status, answer.raw)
        assert 1 <= int(answer.headers["Retry-After"]) <= 120, kind
        error = answer.body["error"]
        if kind in ("file", "upload", "batch"):
            assert error["code"] == "service_unavailable", kind
        else:
            assert isinstance(error, str), kind


async def make_running(client: Client, count: int) -> list[str]:
    """Tasks whose jobs run for some seconds."""
    await client.simulate({"behaviour": "seconds", "seconds": "6"})
    ids = [await client.create_surely(f"run-{secrets.token_hex(4)}") for _ in range(count)]

    async def all_run() -> bool:
        return len({job["client_reference"] for job in await list_jobs(client)}) >= count

    await wait_for(all_run, what="all jobs to be started", seconds=60)
    return ids


async def list_jobs(client: Client) -> list[dict[str, Any]]:
    """The jobs of the account's tasks at the provider."""
    uids = {task["metadata"]["uid"] for task in list_objects(client)}
    jobs = (await client.read_simulator("/control/jobs"))["jobs"]
    return [job for job in jobs if job["client_reference"] in uids]


async def count_objects(kube: KubernetesClient) -> dict[str, int]:
    kinds = (GatewayTask.plural, GatewayFile.plural, GatewayUpload.plural)
    return {kind: len((await list_all(kube, kind, metadata_only=True))[0]) for kind in kinds}


async def check_recovered(client: Client, ids: list[str]) -> None:
    """All that was acknowledged ends well, money and storage are as before, creates are taken."""
    ended = await client.wait_terminal(ids)
    assert {body["status"] for body in ended.values()} == {"completed"}, "I1, I9"
    references = [job["client_reference"] for job in await list_jobs(client)]
    assert len(references) == len(set(references)) == len(ids), "I2"
    # nothing is held any more, of tasks that ended or of creates that were refused
    await wait_settled(client.world, client)

    async def is_taken() -> bool:
        answer = await client.request(
            "POST", client.tasks_path, body=client.body(duration_seconds=3)
        )
        return answer.status == 202

    await wait_for(is_taken, what="a create to be taken", seconds=60)


@asynccontextmanager
async def open_clients(world: World) -> AsyncIterator[tuple[Etcd, Client, str, list[str]]]:
    """The database, a client with running tasks, its account's management key, the tasks' ids."""
    async with (
        world.kube() as kube,
        aiohttp.ClientSession() as http,
        open_tenant(world) as client,
    ):
        manager = make_key(world, client.account, "Management").plaintext
        await wait_status(client, 200, "/api/v1/management/keys", key=manager)
        yield Etcd(world, kube, http), client, manager, await make_running(client, 8)


@asynccontextmanager
async def open_watching(world: World) -> AsyncIterator[None]:
    """The operator watches the size of the database."""
    env = {**SOON, "GATEWAY_RECORD_QUOTA_BYTES": str(QUOTA)}
    await asyncio.to_thread(world.run.restart, "operator", env)
    yield
    await asyncio.to_thread(world.run.restart, "operator", SOON)


async def test_full_etcd_stops_intake_and_running_work_ends_once_it_has_space(
    world: World,
) -> None:
    async with open_clients(world) as (etcd, client, manager, ids):
        kube = etcd.kube
        file = (await client.request("GET", "/v1/files")).body
        before = await count_objects(kube)
        with pytest.raises(NoSpaceLeft):
            await etcd.fill(2 * QUOTA)

        for _ in range(3):
            check_refused(await create_each(client, manager))
        assert await count_objects(kube) == before
        for path in ("/v1/files", "/v1/batches", "/api/v1/me", f"{client.tasks_path}/{ids[0]}"):
            assert (await client.request("GET", path)).status == 200, path
        assert (await client.request("GET", "/v1/files")).body == file

        async def is_end_refused() -> bool:
            jobs = await list_jobs(client)
            is_done = all(job["state"] == "done" for job in jobs)
            return is_done and "gateway_record_refusals_total 0.0" not in await scrape(
                world, "operator"
            )

        await wait_for(is_end_refused, what="an end that cannot be written")
        shown = [(await client.poll(task)).body["status"] for task in ids]
        assert set(shown) <= {"processing", "completed"}
        assert "gateway_intake_stopped" in await scrape(world, "api")

        await etcd.make_room()
        await check_recovered(client, ids)


async def test_intake_stops_near_the_quota_and_running_work_is_written_to_its_end(
    world: World,
) -> None:
    async with open_watching(world), open_clients(world) as (etcd, client, manager, ids):
        await etcd.fill(QUOTA * 82 // 100)

        async def is_stopped() -> bool:
            answer = await client.request(
                "POST", client.tasks_path, body=client.body(duration_seconds=3)
            )
            if answer.status == 202:
                ids.append(answer.body["id"])
            return answer.status == 503

        await wait_for(is_stopped, what="intake to stop", seconds=30)
        check_refused(await create_each(client, manager))
        text = await scrape(world, "api")
        assert 'gateway_intake_stopped{reason="quota"} 1.0' in text
        operators = await scrape(world, "operator")
        sizes = re.findall(r"^gateway_record_size_bytes (.+)$", operators, re.MULTILINE)
        assert [float(size) > QUOTA / 2 for size in sizes] == [True]
        # there is room for the work under way: no write was refused
        ended = await client.wait_terminal(ids)
        assert {body["status"] for body in ended.values()} == {"completed"}
        operators = await scrape(world, "operator")
        assert "gateway_record_refusals_total 0.0" in operators

        await etcd.make_room()
        await check_recovered(client, ids)
