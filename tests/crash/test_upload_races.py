"""I5, I6: of all that would end an Upload at once one wins, on a real record, Redis and store.

Three processes' worth of parts, each with connections of its own; their clocks differ where a race
is against expiry, so that some find the hour over and others do not.
"""

import asyncio
import collections
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from gateway_apiserver.auth import Principal
from gateway_apiserver.entries import project_account, project_key
from gateway_apiserver.routes.uploads.creation import UploadCreation
from gateway_apiserver.routes.uploads.desk import UploadDesk
from gateway_apiserver.routes.uploads.requests import WantedCompletion, WantedUpload
from gateway_core.adapters.objectstore.directory import DirectoryStore
from gateway_core.adapters.redis.parts import RedisParts
from gateway_core.adapters.redis.storage import RedisStorage
from gateway_core.contract.ids import IdMint
from gateway_core.contract.names import name_to_id
from gateway_core.domain.uploads import UploadConflict
from gateway_core.usecases.files import FileRecorder
from gateway_core.usecases.parts import UploadParts
from gateway_core.usecases.storage import StorageGate
from gateway_core.usecases.uploads import UploadOutcomes
from tests.crash.shares import IS_WHOLE
from tests.servers.redis_server import RedisServer

pytestmark = pytest.mark.slow

ROUNDS = 1000 if IS_WHOLE else 34
AT_ONCE = 4
"""Rounds under way at once."""
REPLICAS = 3
HOUR = 3600


@dataclass
class Replica:
    """What one process has."""

    creation: UploadCreation
    desk: UploadDesk
    late_desk: UploadDesk
    parts: UploadParts
    storage: RedisStorage


@pytest.fixture(scope="module")
def redis_server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def caller():
    account = f"races-{secrets.token_hex(4)}"
    owner = {"name": "Olga", "email": "olga@example.com"}
    meta = {"name": account, "uid": account}
    spec = {"displayName": "Races", "owner": owner}
    key = {"metadata": {"name": "key-races"}, "spec": {"accountName": account}}
    return Principal(
        project_account({"metadata": meta, "spec": spec}), project_key(key), "member", None
    )


@pytest.fixture
async def replicas(control_plane, redis_server, tmp_path):
    mint, store = IdMint(b"i" * 32), DirectoryStore(tmp_path / "store")
    made = []
    async with AsyncExitStack() as stack:
        for _ in range(REPLICAS):
            records = await stack.enter_async_context(control_plane.records())
            storage, counts = RedisStorage(redis_server.url), RedisParts(redis_server.url)
            stack.push_async_callback(storage.close)
            stack.push_async_callback(counts.close)
            gate = StorageGate(records, storage)
            outcomes = UploadOutcomes(records, gate, FileRecorder(records, storage))
            parts = UploadParts(store, counts, mint)
            made.append(
                Replica(
                    UploadCreation(records, gate, outcomes, mint),
                    UploadDesk(records, outcomes, parts, mint),
                    UploadDesk(
                        records, outcomes, parts, mint, clock=lambda: time.time() + HOUR + 1
                    ),
                    parts,
                    storage,
                )
            )
        yield made
    store.close()


async def flow(data: bytes):
    yield data


class Race:
    """One Upload with two parts, and what is done to it at once."""

    def __init__(self, replicas: list[Replica], caller: Principal) -> None:
        self._replicas = replicas
        self._account = caller.account.name
        self._caller = caller
        self.wire_id = ""
        self.wanted = WantedCompletion((), None)
        self.size = 0

    async def prepare(self) -> None:
        texts = [secrets.token_bytes(5), secrets.token_bytes(3)]
        self.size = 8
        wanted = WantedUpload("user_data", "a.bin", "x", self.size, None)
        obj, _ = await self._replicas[0].creation.create(
            self._caller, wanted, None, secrets.token_hex(8)
        )
        self.wire_id = name_to_id(obj["metadata"]["name"])
        ids = [(await self._replicas[1].parts.add(obj, flow(text))).id for text in texts]
        self.wanted = WantedCompletion(tuple(ids), None)

    async def complete(self, n: int):
        desk = self._replicas[n % REPLICAS].desk
        obj, file = await desk.complete(self._account, self.wire_id, self.wanted)
        return obj["spec"]["outcome"], file.name, file.bytes

    async def cancel(self, n: int):
        obj = await self._replicas[n % REPLICAS].desk.cancel(self._account, self.wire_id)
        return obj["spec"]["outcome"], None, 0

    async def expire(self, n: int):
        """A cancellation after the hour is refused, and says that it is over."""
        obj = await self._replicas[n % REPLICAS].late_desk.cancel(self._account, self.wire_id)
        return obj["spec"]["outcome"], None, 0


async def run_rounds(control_plane, replicas, caller, draw):
    """Runs the rounds; how often each outcome won. Every promise is checked in each of them."""
    slots, outcomes = asyncio.Semaphore(AT_ONCE), collections.Counter()
    async with control_plane.records() as records:

        async def run_one() -> int:
            race = Race(replicas, caller)
            await race.prepare()
            answers = await asyncio.gather(*draw(race), return_exceptions=True)
            won = {answer for answer in answers if isinstance(answer, tuple)}
            lost = [answer for answer in answers if not isinstance(answer, tuple)]
            assert all(isinstance(error, UploadConflict) for error in lost), lost
            upload = await records.get("gatewayuploads", race.wire_id.replace("_", "-"))
            outcome = upload["spec"]["outcome"]
            assert outcome != "Pending"
            assert len(won) == (outcome != "Expired"), (outcome, won)
            assert all(answer[0] == outcome for answer in won)
            selector = f"spec.request.uploadName={upload['metadata']['name']}"
            files = (await records.list_page("gatewayfiles", field_selector=selector)).items
            outcomes[outcome] += 1
            if outcome != "Completed":
                assert files == [], "I5: a file of what was not completed"
                return 0
            (file,) = files
            assert next(iter(won))[1:] == (file["metadata"]["name"], race.size)
            keys = [segment["key"] for segment in file["spec"]["request"]["segments"]]
            assert [key.rpartition("/")[2] for key in keys] == list(race.wanted.part_ids)
            return race.size

        async def run_in_turn() -> int:
            async with slots:
                return await run_one()

        sizes = await asyncio.gather(*(run_in_turn() for _ in range(ROUNDS)))
        account = caller.account.name
        used = await replicas[0].storage.read_used(account, "files")
        assert used == sum(sizes), "I6: storage used is not that of the files"
        members = {c.member for c in await replicas[0].storage.list_claims(account, "files", 0)}
        assert all(member.startswith("file-") for member in members)
    assert sum(outcomes.values()) == ROUNDS
    return outcomes


async def test_of_twenty_completions_one_makes_the_file(control_plane, replicas, caller):
    outcomes = await run_rounds(
        control_plane, replicas, caller, lambda race: [race.complete(n) for n in range(20)]
    )
    assert outcomes == {"Completed": ROUNDS}


async def test_of_completions_and_cancellations_one_wins(control_plane, replicas, caller):
    def draw(race):
        calls = [*(race.complete(n) for n in range(3)), *(race.cancel(n) for n in range(3))]
        secrets.SystemRandom().shuffle(calls)
        return calls

    outcomes = await run_rounds(control_plane, replicas, caller, draw)
    assert min(outcomes["Completed"], outcomes["Cancelled"]) > 0


async def test_of_completions_and_the_end_of_the_hour_one_wins(control_plane, replicas, caller):
    def draw(race):
        calls = [*(race.complete(n) for n in range(3)), *(race.expire(n) for n in range(3))]
        secrets.SystemRandom().shuffle(calls)
        return calls

    outcomes = await run_rounds(control_plane, replicas, caller, draw)
    assert min(outcomes["Completed"], outcomes["Expired"]) > 0
