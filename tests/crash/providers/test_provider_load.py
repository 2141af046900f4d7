"""F6: eight faults of a provider, hundreds of tasks each and all at once (I1, I2)."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import pytest

from tests.crash.history import check_money
from tests.servers.tenants import describe_model, unique, wait_status
from tests.servers.world import Client, check_invariants
from tests.shares import IS_WHOLE, share

TASKS = 500
AT_ONCE = 16
DEADLINES = {"stuck": 20, "duplicate ids": 120 if IS_WHOLE else 30}
"""Seconds, of faults some of whose tasks end by their deadline alone.

Of two tasks that are given one id the first to claim it has it. That need not be the one whose
job it is: answers overtake each other, and the other's tries are refused from then on.
"""

Rule = Mapping[str, Any]


def at(rule: Rule, *kinds: str) -> list[Rule]:
    """The rule for requests of several kinds."""
    return [{**rule, "match": {"on": kind}} for kind in kinds]


FAULTS: dict[str, list[Rule]] = {
    "5xx, 30 %": at(
        {"behaviour": "status", "status": 502, "probability": 0.3, "when": "after"},
        *("submit", "poll", "output"),
    ),
    "timeout after acceptance": at(
        {"behaviour": "hang", "seconds": 5, "when": "after", "probability": 0.3}, "submit"
    ),
    "reset": [
        *at({"behaviour": "drop", "when": "after", "probability": 0.3}, "submit", "poll"),
        *at({"behaviour": "drop", "when": "before", "probability": 0.3}, "submit", "output"),
    ],
    "slowloris": at(
        {"behaviour": "slow", "bytes_per_second": 5, "probability": 0.3}, "submit", "poll"
    ),
    "wrong JSON": at(
        {"behaviour": "nonsense", "kind": "wrong_json", "probability": 0.3}, "submit", "poll"
    ),
    "429": at(
        {"behaviour": "status", "status": 429, "retry_after": 1, "probability": 0.5},
        *("submit", "poll"),
    ),
    "duplicate ids": at({"behaviour": "duplicate_id", "probability": 0.3}, "submit"),
    "stuck": at({"behaviour": "stall"}, "submit"),
}
"""What a task's prompt says is what befalls it."""


@pytest.fixture
def hasty(world):
    """The provider's calls time out after 2 s; models of it with the deadlines, by fault."""
    original = world.read("gatewayprovider", "simulated")["spec"]
    world.patch("gatewayprovider", "simulated", {"http": {"requestTimeoutSeconds": 2}})
    names = {fault: unique("model") for fault in DEADLINES}
    service = world.read("gatewaymodel", world.env["GATEWAY_MODEL"])["spec"]["service"]
    world.apply(
        *(
            describe_model(world, names[fault], service=service, deadlineSeconds=seconds)
            for fault, seconds in DEADLINES.items()
        )
    )
    yield names
    world.patch("gatewayprovider", "simulated", original)
    world.run.kubectl("delete", "gatewaymodel", *names.values())


@pytest.mark.timeout(1800)
async def test_tasks_end_once_under_each_fault_of_a_provider(world, payer, hasty, tally):
    for name in hasty.values():
        await wait_offered(payer, name)
    await payer.simulate(
        *(
            {**rule, "match": {**rule["match"], "prompt_contains": f"<{fault}>"}}
            for fault, rules in FAULTS.items()
            for rule in rules
        ),
        {"behaviour": "seconds", "seconds": "1-3"},
    )
    tallies = {fault: tally("F6", fault) for fault in FAULTS}
    slots = asyncio.Semaphore(AT_ONCE)

    async def judge(fault: str) -> None:
        client = Client(world, payer.key, payer.account)
        model = {"model": hasty[fault]} if fault in hasty else {}
        async with client, tallies[fault].trial(client, count=share(TASKS)):
            await asyncio.gather(
                *(
                    create(client, slots, prompt=f"<{fault}>", duration_seconds=3, **model)
                    for _ in range(share(TASKS))
                )
            )
            ended = await client.wait_terminal(client.history.accepted, seconds=1200)
            check_ends(fault, ended)
            await check_invariants(
                client, jobs="at most one" if fault == "stuck" else "exactly one"
            )

    await asyncio.gather(*(judge(fault) for fault in FAULTS))
    await payer.simulate()
    await check_money(world, payer)
    for told in tallies.values():
        told.check()


async def wait_offered(client: Client, model: str) -> None:
    """Waits until the API knows the model, without a task of it."""
    call = {"service": client.service, "action": "reference_to_video", "model": model}
    await wait_status(client, 200, "/api/v1/price_quotes", method="POST", body=call, seconds=20)


async def create(client: Client, slots: asyncio.Semaphore, **changes: Any) -> None:
    """Creates one task when it is its turn."""
    async with slots:
        await client.create_surely(secrets.token_hex(8), **changes)


def check_ends(fault: str, ended: Mapping[str, Any]) -> None:
    """What is stuck fails at its deadline, the rest completes or could not fetch its output.

    A task that was given another's id ends as that one does, or at its deadline.
    """
    if fault == "duplicate ids":
        return
    wanted = f"within {DEADLINES[fault]} seconds" if fault == "stuck" else "could not be fetched"
    for task_id, body in ended.items():
        assert body["status"] in ("completed", "failed")
        if body["status"] == "failed":
            assert wanted in body["error"], f"{task_id}: {body}"
        else:
            assert fault != "stuck", f"{task_id}: {body}"
