"""The history of an account as objects: tasks that ended, files, batches, usage of past days."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway_cli.local.state import ID_KEY, read_shared_secret
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    BATCH_PREFIX,
    FILE_PREFIX,
    FOLDED_LABEL,
    SHARD_LABEL,
    IdMint,
    id_to_name,
    shard_of,
)
from gateway_core.api.resource import Resource, skeleton
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_label_time, format_time
from gateway_core.api.usage import MOST_ROWS, GatewayUsage, usage_name
from gateway_core.billing.usage_store import archive_day
from gateway_core.storage.directory import DirectoryStore
from tests.bench.harness import ACCOUNT, do_all
from tests.servers.world import World

AT_ONCE = 32
DAYS_AS_OBJECTS = 8
Described = tuple[str, dict[str, Any], dict[str, Any]]
"""Name, spec and status of an object."""


async def create_finished(
    world: World,
    count: int,
    describe: Callable[[int], tuple[str, str]] = lambda _: ("sim-q4", "Completed"),
) -> None:
    """Tasks as they are once they are archived and folded, of some 3 kB each.

    `describe` gives the model and the phase of each.
    """
    now = datetime.now(UTC)
    prompt = "A lighthouse at dawn, waves, gulls. " * 30
    values = json.dumps({"prompt": prompt, "reference_image_urls": ["https://example.com/a.png"]})
    video = {
        "url": "https://media.example.com/media/x/0/" + "s" * 40,
        "key": "media/x/0",
        "bytes": 1,
        "sha256": "0" * 64,
        "contentType": "video/mp4",
    }

    def make(number: int) -> Described:
        model, phase = describe(number)
        request = {
            "accountName": ACCOUNT,
            "service": "sim",
            "action": "reference_to_video",
            "modelId": model,
            "input": values,
            "fingerprint": "f" * 64,
            "reservedMicros": 300_000,
        }
        status = {
            "phase": phase,
            "work": "Settled",
            "chargedMicros": 300_000,
            "cost": "0.30",
            "completionTime": format_time(now),
            "upstream": {"providerName": "simulated", "upstreamModel": "q4", "jobId": "job_1"},
            "result": {"videos": [video]},
        }
        return f"task-finished-{number:06}", {"request": request}, status

    await _create(world, GatewayTask, make, count)


async def create_files(world: World, count: int) -> None:
    """Files of the account, whose bytes are nowhere."""
    mint, now = _make_mint(world), int(datetime.now(UTC).timestamp() * 1000)

    def make(number: int) -> Described:
        request = {
            "accountName": ACCOUNT,
            "purpose": "batch" if number % 10 == 0 else "user_data",
            "filename": f"report {number}.pdf",
            "bytes": 1000,
            "segments": [{"key": f"files/bench/{number}", "bytes": 1000, "sha256": "0" * 64}],
        }
        return mint.mint_ordered(FILE_PREFIX, ACCOUNT, now), {"request": request}, {}

    await _create(world, GatewayFile, make, count)


async def create_batches(world: World, count: int) -> None:
    """Batches as they are once they have ended."""
    mint, now = _make_mint(world), format_time(datetime.now(UTC))

    def make(number: int) -> Described:
        request = {
            "accountName": ACCOUNT,
            "inputFileName": f"file-{number:026}".replace("0", "a").replace("1", "b"),
            "metadata": {"number": str(number), "note": "x" * 500},
        }
        status = {
            "phase": "Completed",
            "work": "Settled",
            "modelId": "sim-moderation",
            "counts": {"total": 100, "completed": 99, "failed": 1},
            "startTime": now,
            "completionTime": now,
        }
        name = id_to_name(mint.mint_random(BATCH_PREFIX, ACCOUNT))
        return name, {"request": request}, status

    await _create(world, GatewayBatch, make, count)


async def create_usage(world: World, days: int) -> None:
    """Past days with as many rows as an object may have, the older ones archived."""
    today = datetime.now(UTC).date()
    rows = [
        {
            "keyName": f"key-bench-{number % 50}",
            "modelId": f"model-{number // 50}",
            "operation": "sim/reference_to_video",
            "requests": 10,
            "failed": 1,
            "chargedMicros": 3_000_000 + number,
        }
        for number in range(MOST_ROWS)
    ]
    sums = {
        "requests": 10 * MOST_ROWS,
        "failed": MOST_ROWS,
        "chargedMicros": sum(row["chargedMicros"] for row in rows),
    }

    def make(number: int) -> Described:
        day = (today - timedelta(number + 1)).isoformat()
        spec = {"accountName": ACCOUNT, "day": day}
        return usage_name(ACCOUNT, day), spec, {**sums, "rows": rows}

    await _create(world, GatewayUsage, make, DAYS_AS_OBJECTS)
    store = DirectoryStore(world.config.store_directory)
    for number in range(DAYS_AS_OBJECTS, days):
        name, spec, status = make(number)
        meta = {"name": name, "uid": f"uid-{number}"}
        await archive_day(store, {"metadata": meta, "spec": spec, "status": status})


def _make_mint(world: World) -> IdMint:
    return IdMint(read_shared_secret(world.config.secrets_directory, ID_KEY))


async def _create(
    world: World, kind: type[Resource], make: Callable[[int], Described], count: int
) -> None:
    folded = format_label_time(datetime.now(UTC))
    async with world.kube() as kube:

        async def create(name: str, spec: dict[str, Any], status: dict[str, Any]) -> None:
            labels = {
                ACCOUNT_LABEL: ACCOUNT,
                SHARD_LABEL: str(shard_of(name)),
                FOLDED_LABEL: folded,
            }
            obj = {**skeleton(kind, name, labels=labels), "spec": spec}
            made = await kube.create(kind.plural, obj)
            if status:
                await kube.patch_status(kind.plural, made, status)

        await do_all((create(*make(number)) for number in range(count)), AT_ONCE)
