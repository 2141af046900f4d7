"""The journal of calls without objects: when it is folded, and what a killed process may lose."""

import json
import os
from itertools import pairwise
from pathlib import Path

from tests.servers.world import World, wait_for

USUAL_GAP_SECONDS = 0.1
"""A process that makes calls without a pause shows a sign of life more often."""


async def wait_folded(world: World) -> None:
    """Returns once nothing of the journal is left."""
    folder = Path(world.config.store_directory, "journal")

    def is_aggregated() -> bool:
        # `os.walk` passes over folders that the operator removes meanwhile, `rglob` does not
        return not any(name.endswith(".json") for _, _, names in os.walk(folder) for name in names)

    await wait_for(is_aggregated, what="the journal folded", seconds=40)


def list_usage(world: World, account: str) -> list[dict]:
    """The statuses of the account's usage; one that has just been made has none yet."""
    items = json.loads(world.run.kubectl("get", "gwusage", "-o", "json"))["items"]
    own = [item for item in items if item["spec"]["accountName"] == account]
    return [item["status"] for item in own if "status" in item]


def go_back(killed: float, moments: list[float], seconds: float = 1.0) -> float:
    """So many seconds before `killed`, but for those in which the process was held up.

    It runs at `moments`, so what is longer than usual between two of them is no time of its own.
    """
    bound = killed - seconds
    for later, earlier in pairwise([killed, *reversed(moments)]):
        if later <= bound:
            break
        bound -= max(0.0, later - earlier - USUAL_GAP_SECONDS)
    return bound
