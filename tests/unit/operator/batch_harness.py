"""The batch controller on fakes, in virtual time: it can be killed and started again.

The record, the counters, the store and the provider outlive it, as they do in earnest.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway_core.api.batch import TERMINAL_PHASES, GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    BATCH_FINALIZER,
    BATCH_PREFIX,
    FILE_PREFIX,
    SHARD_LABEL,
    id_to_name,
    shard_of,
)
from gateway_core.api.resource import Object, file_key
from gateway_core.files.files import FileRecorder, NewFile, build_file
from gateway_core.kube.client import WatchEvent
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import ModerationUpstream, UpstreamError
from gateway_operator.batches.controller import BatchController
from gateway_operator.context import Shards
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import copy_object
from tests.fakes.moderation import FakeModeration
from tests.fakes.storage import FakeStorage
from tests.unit.operator.environment import Feed, read_now
from tests.unit.operator.harness import ALL_SHARDS, MINT, Operator, Simulation, stop

BATCHES = GatewayBatch.plural
FILES = GatewayFile.plural
PRICE = 1000
"""Micro-dollars a line."""
Errors = Callable[[str, int], UpstreamError | None]
"""What a call fails by: the text that is judged, and how often it was asked before."""


class Judge(FakeModeration):
    """Judges texts, fails by `errors_of`, and remembers how often it was asked each."""

    def __init__(self, *, latency: float = 0.05) -> None:
        super().__init__(latency=latency)
        self.asked: Counter[str] = Counter()
        self.at_once = 0
        self.most_at_once = 0
        self.times: list[float] = []
        self.errors_of: Errors = lambda _text, _times: None

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        text = str(body["input"])
        times = self.asked[text]
        self.asked[text] += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.times.append(asyncio.get_running_loop().time())
        try:
            error = self.errors_of(text, times)
            if error is not None:
                await asyncio.sleep(self.latency)
                raise error
            return await super().moderate(body)
        finally:
            self.at_once -= 1


def build_batches(
    operator: Operator,
    upstream: ModerationUpstream,
    storage: FakeStorage | None = None,
    providers: Any = None,
) -> BatchController:
    """The controller of batches beside that of tasks, one provider serving all models."""
    ledger, kube = storage or FakeStorage(), operator.context.kube
    table = providers or FakeInformer(kube, "gatewayproviders", lambda obj: obj)  # type: ignore[arg-type]
    return BatchController(
        operator.context,
        reservations=operator.reservations,
        credentials=operator.credentials,
        calls=operator.calls,
        catalog=operator.catalog,
        providers=Providers(table, kube, lambda _spec, _secret: upstream, lambda _: None),
        ledger=ledger,
        files=FileRecorder(kube, ledger),
        aggregator=operator.aggregator,
    )


class BatchOperator(Operator):
    """One process's worth of the operator with batches."""

    def __init__(self, sim: "BatchSimulation", lag: float, shards: Shards = ALL_SHARDS) -> None:
        super().__init__(sim, lag, shards)
        self.batches = build_batches(self, sim.judge, sim.storage, sim.providers)
        self.batch_feed = Feed(sim.kube, self.batches, lag, shards, BATCHES)
        self._parts.append(asyncio.create_task(self.batches.queue.run()))

    async def end(self) -> None:
        self.batch_feed.ended = True
        await self.batches.end()
        await super().end()

    def halt(self) -> None:
        self.batch_feed.ended = True
        stop(self.batches.queue)
        super().halt()

    async def kill(self) -> None:
        self.batch_feed.ended = True
        await super().kill()


class BatchSimulation(Simulation):
    """A simulation with a moderation model of a tenth of a cent a line."""

    def __init__(self, judge: Judge | None = None, *, lag: float = 0.01) -> None:
        self.judge = judge or Judge()
        self.storage = FakeStorage()
        super().__init__(lag=lag)
        self.batch_history: dict[str, list[Object]] = defaultdict(list)
        self.kube.listen(BATCHES, self._remember_batch)
        self.put_model(
            "judge",
            action="moderations",
            prices=[{"perCallMicros": PRICE}],
            routes=[{"name": "main", "providerName": "simulated", "upstreamModel": "omni"}],
        )

    async def open_storage(self) -> None:
        token = await self.storage.begin_rebuild("demo", "files")
        if token is not None:
            await self.storage.finish_rebuild("demo", "files", token, {})

    async def boot_without_books(self) -> BatchOperator:
        await self.open_storage()
        self.operator = BatchOperator(self, self.lag)
        return self.operator

    def boot_twin(self, lag: float) -> None:
        self.twin = self.twin or BatchOperator(self, lag)

    async def put_input(self, data: bytes, **changes: Any) -> Object:
        account = changes.get("account", "demo")
        wire_id = MINT.mint_ordered(FILE_PREFIX, account, int(read_now().timestamp() * 1000))
        stored = await self.store.put(file_key(account, wire_id), data)
        fields = {"purpose": "batch", "filename": "in.jsonl", "account": account, **changes}
        new = NewFile(name=wire_id, segments=(stored.refer(),), **fields)
        return await self.kube.create(FILES, build_file(new, read_now().timestamp()))

    async def submit(self, data: bytes | Iterable[Mapping[str, Any]], **request: Any) -> str:
        file = await self.put_input(data if isinstance(data, bytes) else write_lines(data))
        name = id_to_name(MINT.mint_random(BATCH_PREFIX, "demo"))
        labels = {ACCOUNT_LABEL: "demo", SHARD_LABEL: str(shard_of(name))}
        spec = {
            "request": {
                "accountName": "demo",
                "endpoint": "/v1/moderations",
                "completionWindow": "24h",
                "inputFileName": file["metadata"]["name"],
                "segments": file["spec"]["request"]["segments"],
                "fingerprint": "f" * 64,
                **request,
            },
            "desiredState": "Completed",
        }
        metadata = {"name": name, "labels": labels, "finalizers": [BATCH_FINALIZER]}
        await self.kube.create(BATCHES, {"metadata": metadata, "spec": spec})
        return name

    async def apply_batch(self, file_name: str, name: str = "batch-by-hand", **request: Any) -> str:
        """A batch as `kubectl create -f` makes it; its name."""
        made = {"accountName": "demo", "inputFileName": file_name, **request}
        spec = {"request": made, "desiredState": "Completed"}
        await self.kube.create(BATCHES, {"metadata": {"name": name}, "spec": spec})
        return name

    async def cancel_batch(self, name: str) -> None:
        obj = await self.kube.get(BATCHES, name)
        await self.kube.patch(BATCHES, obj, {"spec": {"desiredState": "Cancelled"}})

    def batch_status(self, name: str) -> dict[str, Any]:
        return dict(self.batch_history[name][-1].get("status") or {})

    def is_batch_there(self, name: str) -> bool:
        return self.kube.find(BATCHES, name) is not None

    def is_batch_closed(self, name: str) -> bool:
        if not self.batch_history[name]:
            return False
        ended = self.batch_status(name).get("phase") in TERMINAL_PHASES
        return ended and (
            self.batch_status(name).get("work") == "Settled" or not self.is_batch_there(name)
        )

    async def finish_batch(self, name: str, *, seconds: float = 120) -> dict[str, Any]:
        """Waits until the batch is closed; its status, checked against its history."""
        await self.wait(lambda: self.is_batch_closed(name), seconds=seconds, what=f"{name}'s end")
        self.check_batch(name)
        return self.batch_status(name)

    async def read_file(self, name: str | None) -> list[dict[str, Any]]:
        """The lines of an output File; none where there is none."""
        if name is None:
            return []
        obj = await self.kube.get(FILES, name)
        [segment] = obj["spec"]["request"]["segments"]
        data = await self.store.get(segment["key"])
        assert len(data) == segment["bytes"] == obj["spec"]["request"]["bytes"]
        assert obj["spec"]["request"]["purpose"] == "batch_output"
        return [json.loads(line) for line in data.splitlines()]

    async def read_results(self, name: str) -> tuple[list[Any], list[Any]]:
        status = self.batch_status(name)
        output = await self.read_file(status.get("outputFileName"))
        return output, await self.read_file(status.get("errorFileName"))

    def check_batch(self, name: str) -> None:
        """What holds of every batch: no way back from a terminal state, times set once (I3)."""
        ended: dict[str, Any] | None = None
        times: dict[str, str] = {}
        for obj in self.batch_history[name]:
            status = obj.get("status") or {}
            told = {k: v for k, v in status.items() if k not in ("work", "conditions")}
            assert ended is None or told == ended
            if status.get("phase") in TERMINAL_PHASES:
                ended = told
            for field in ("startTime", "finalizingTime", "cancellingTime", "completionTime"):
                if field in status:
                    assert times.setdefault(field, status[field]) == status[field]

    def _remember_batch(self, change: WatchEvent) -> None:
        if change.type != "DELETED":
            self.batch_history[change.object["metadata"]["name"]].append(copy_object(change.object))


def make_lines(count: int, *, prefix: str = "text") -> list[dict[str, Any]]:
    return [make_line(f"r-{n}", f"{prefix} {n}") for n in range(count)]


def make_line(custom_id: str, text: Any, model: str = "judge") -> dict[str, Any]:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/moderations",
        "body": {"model": model, "input": text},
    }


def write_lines(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
