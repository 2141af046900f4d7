"""Follows a batch to its end, and shows on standard error how far that is."""

import asyncio
import time

from rich.console import Console

from gateway_cli.progress import Reporter
from gateway_cli.rest.bars import open_counts
from gateway_cli.rest.batches import ENDED
from gateway_cli.rest.calls import Body
from gateway_cli.rest.storage import StorageApi

FIRST_PAUSE, LAST_PAUSE = 0.5, 5.0
"""Seconds between two looks; the counts of a batch change every few seconds."""


async def wait_ended(api: StorageApi, batch_id: str, seconds: float) -> Body:
    """The batch once it has ended, or as it is when `seconds` are over. RestError."""
    reporter = Reporter(Console(stderr=True, highlight=False))
    deadline = time.monotonic() + seconds
    batch = await api.get_batch(batch_id)
    if batch["status"] in ENDED or seconds <= 0:
        return batch
    if not reporter.console.is_terminal:
        async with reporter.stage(f"Waiting for {batch_id}"):
            return await _look_on(api, batch, deadline)
    return await _look_on(api, batch, deadline)


async def _look_on(api: StorageApi, batch: Body, deadline: float) -> Body:
    pause = FIRST_PAUSE
    with open_counts() as progress:
        row = progress.add_task(batch["status"], total=None)
        while batch["status"] not in ENDED:
            counts = batch["request_counts"]
            progress.update(
                row,
                description=batch["status"],
                completed=counts["completed"] + counts["failed"],
                total=counts["total"] or None,
            )
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(pause, left))
            pause = min(LAST_PAUSE, pause * 1.2)
            batch = await api.get_batch(batch["id"])
    return batch
