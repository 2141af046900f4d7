"""I5, I6: of all that would end an Upload at once one wins, on a real record, Redis and stores.

Three processes' worth of parts, each with connections of its own; their clocks differ where a race
is against expiry, so that some find the hour over and others do not.
"""

import asyncio
import collections
import random
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
from tests.servers.s3_store import open_bucket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if IS_WHOLE else 300)]

ROUNDS = {"directory": 1000 if IS_WHOLE else 34, "s3": 1000 if IS_WHOLE else 12}
"""Rounds of each kind by store: they take longer where parts go over a connection."""
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


@pytest.fixture(params=sorted(ROUNDS))
def kind(request):
    """Which store holds the parts."""
    return request.param


@pytest.fixture
def rounds(kind):
    return ROUNDS[kind]


@pytest.fixture
def store(kind, request, tmp_path):
    if kind == "s3":
        with open_bucket(request.getfixturevalue("s3_server")) as bucket:
            yield bucket
        return
    directory = DirectoryStore(tmp_path / "store")
    yield directory
    directory.close()


@pytest.fixture
def patient(monkeypatch):
    """A machine that holds Redis up for seconds is no outage: who wins is what is claimed."""
    monkeypatch.setattr("gateway_core.adapters.redis.link.COMMAND_SECONDS", 30.0)
    monkeypatch.setattr("gateway_core.adapters.redis.batches.COMMAND_SECONDS", 30.0)
    monkeypatch.setattr("gateway_core.adapters.redis.link.CONNECT_SECONDS", 15.0)


@pytest.fixture
async def replicas(control_plane, redis_server, store, patient):
    mint = IdMint(b"i" * 32)
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


async def flow(data: bytes):
    yield data


class Lead:
    """How far completions, which read their parts first, are ahead of what would undo them.

    In seconds: it follows what the rounds come to, so that each side wins some on any store.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def draw(self) -> float:
        return random.uniform(0, 2 * self._seconds)

    def learn(self, outcome: str) -> None:
        self._seconds *= 1 / 1.5 if outcome == "Completed" else 1.5


class Race:
    """One Upload with two parts, and what is done to it at once."""

    def __init__(self, replicas: list[Replica], caller: Principal, lead: float = 0.0) -> None:
        self._lead = lead
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
        await asyncio.sleep(self._lead)
        obj = await self._replicas[n % REPLICAS].desk.cancel(self._account, self.wire_id)
        return obj["spec"]["outcome"], None, 0

    async def expire(self, n: int):
        """A cancellation after the hour is refused, and says that it is over."""
        await asyncio.sleep(self._lead)
        obj = await self._replicas[n % REPLICAS].late_desk.cancel(self._account, self.wire_id)
        return obj["spec"]["outcome"], None, 0


async def run_rounds(control_plane, replicas, caller, rounds, draw, told):
    """Runs so many rounds; how often each outcome won. Every promise is checked in each of them.

    `told` is a tally of them: a round that breaks a promise does not keep the others from running.
    """
    slots, outcomes, sizes = asyncio.Semaphore(AT_ONCE), collections.Counter(), []
    first = Race(replicas, caller)
    await first.prepare()
    begun = time.monotonic()
    await asyncio.gather(*(first.complete(n) for n in range(3)))
    lead = Lead(time.monotonic() - begun)
    sizes.append(first.size)
    async with control_plane.records() as records:

        async def run_one() -> None:
            race = Race(replicas, caller, lead.draw())
            await race.prepare()
            answers = await asyncio.gather(*draw(race), return_exceptions=True)
            won = {answer for answer in answers if isinstance(answer, tuple)}
            lost = [answer for answer in answers if not isinstance(answer, tuple)]
            assert all(isinstance(error, UploadConflict) for error in lost), lost
            upload = await records.get("gatewayuploads", race.wire_id.replace("_", "-"))
            outcome = upload["spec"]["outcome"]
            assert outcome != "Pending"
            lead.learn(outcome)
            assert len(won) == (outcome != "Expired"), (outcome, won)
            assert all(answer[0] == outcome for answer in won)
            selector = f"spec.request.uploadName={upload['metadata']['name']}"
            files = (await records.list_page("gatewayfiles", field_selector=selector)).items
            outcomes[outcome] += 1
            if outcome != "Completed":
                assert files == [], "I5: a file of what was not completed"
                return
            (file,) = files
            sizes.append(race.size)
            assert next(iter(won))[1:] == (file["metadata"]["name"], race.size)
            keys = [segment["key"] for segment in file["spec"]["request"]["segments"]]
            assert [key.rpartition("/")[2] for key in keys] == list(race.wanted.part_ids)

        async def run_in_turn() -> None:
            async with slots, told.trial():
                await run_one()

        await asyncio.gather(*(run_in_turn() for _ in range(rounds)))
        account = caller.account.name
        used = await replicas[0].storage.read_used(account, "files")
        assert used.bytes == sum(sizes), "I6: storage used is not that of the files"
        members = {c.member for c in await replicas[0].storage.list_claims(account, "files", 0)}
        assert all(member.startswith("file-") for member in members)
    for outcome, count in outcomes.items():
        told.note(outcome, count)
    told.check()
    assert sum(outcomes.values()) == rounds
    return outcomes


def assert_mixed(outcomes):
    """The race is one: each side wins some, of as many rounds as chance cannot give to one."""
    assert len(outcomes) == 2 or not IS_WHOLE, outcomes


async def test_of_twenty_completions_one_makes_the_file(
    control_plane, replicas, caller, kind, rounds, tally
):
    told = tally("I5", f"20 completions of one upload, {kind}")
    outcomes = await run_rounds(
        control_plane,
        replicas,
        caller,
        rounds,
        lambda race: [race.complete(n) for n in range(20)],
        told,
    )
    assert outcomes == {"Completed": rounds}


async def test_of_completions_and_cancellations_one_wins(
    control_plane, replicas, caller, kind, rounds, tally
):
    def draw(race):
        calls = [*(race.complete(n) for n in range(3)), *(race.cancel(n) for n in range(3))]
        secrets.SystemRandom().shuffle(calls)
        return calls

    told = tally("I5", f"3 completions, 3 cancellations, {kind}")
    outcomes = await run_rounds(control_plane, replicas, caller, rounds, draw, told)
    assert_mixed(outcomes)


async def test_of_completions_and_the_end_of_the_hour_one_wins(
    control_plane, replicas, caller, kind, rounds, tally
):
    def draw(race):
        calls = [*(race.complete(n) for n in range(3)), *(race.expire(n) for n in range(3))]
        secrets.SystemRandom().shuffle(calls)
        return calls

    told = tally("I5", f"3 completions, the hour over for 3 more, {kind}")
    outcomes = await run_rounds(control_plane, replicas, caller, rounds, draw, told)
    assert_mixed(outcomes)
