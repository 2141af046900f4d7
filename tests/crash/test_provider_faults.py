"""A slow, wrong and hostile provider: every task ends, at most one job each (I1, I2)."""

import json

import pytest

from tests.crash.history import check_money
from tests.servers.world import check_invariants, wait_for

pytestmark = pytest.mark.slow

SUBMIT = {"on": "submit"}
POLL = {"on": "poll"}
OUTPUT = {"on": "output"}

TEMPORARY = {
    "5xx at submission after the job was made": [
        {"behaviour": "status", "status": 502, "when": "after", "count": 3, "match": SUBMIT}
    ],
    "429 with Retry-After at submission": [
        {"behaviour": "status", "status": 429, "retry_after": 1, "count": 3, "match": SUBMIT}
    ],
    "connections dropped after acceptance": [
        {"behaviour": "drop", "when": "after", "count": 3, "match": SUBMIT}
    ],
    "connections dropped before acceptance": [
        {"behaviour": "drop", "when": "before", "count": 3, "match": SUBMIT}
    ],
    "nonsense at submission": [
        {"behaviour": "nonsense", "kind": "html", "count": 2, "match": SUBMIT}
    ],
    "a third of all polls fail": [
        {"behaviour": "status", "status": 500, "probability": 0.3, "match": POLL}
    ],
    "polls that are no JSON": [
        {"behaviour": "nonsense", "kind": "not_json", "count": 3, "match": POLL}
    ],
    "polls of another shape": [
        {"behaviour": "nonsense", "kind": "wrong_json", "count": 3, "match": POLL}
    ],
    "polls too large to read": [
        {"behaviour": "nonsense", "kind": "huge", "count": 2, "match": POLL}
    ],
    "polls cut short": [{"behaviour": "nonsense", "kind": "truncated", "count": 3, "match": POLL}],
    "done without outputs": [
        {"behaviour": "contradict", "kind": "done_without_outputs", "count": 2}
    ],
    "an unknown state word": [{"behaviour": "contradict", "kind": "unknown_state", "count": 2}],
    "an output that is missing at first": [
        {"behaviour": "bad_output", "kind": "not_found", "count": 1, "match": OUTPUT}
    ],
    "an output cut short": [
        {"behaviour": "bad_output", "kind": "truncated", "count": 2, "match": OUTPUT}
    ],
}


@pytest.mark.parametrize("fault", TEMPORARY)
async def test_task_completes_in_spite_of(world, fault):
    async with world.client() as client:
        await client.simulate(*TEMPORARY[fault])
        ids = [await client.create_surely(f"{fault}-{n}", duration_seconds=3) for n in range(2)]
        ended = await client.wait_terminal(ids)
        assert {body["status"] for body in ended.values()} == {"completed"}, ended
        await check_invariants(client, jobs="exactly one")


FINAL = {
    "the job fails": (
        [{"behaviour": "fail", "code": "content_policy", "message": "The prompt was refused."}],
        "The prompt was refused.",
    ),
    "the input is refused": (
        [
            {
                "behaviour": "status",
                "status": 400,
                "message": "Image 1 cannot be read.",
                "match": SUBMIT,
            }
        ],
        "Image 1 cannot be read.",
    ),
    "the job is lost": ([{"behaviour": "lose_job", "match": POLL}], "lost"),
    "the output is on a host that nobody declared": (
        [{"behaviour": "foreign_output", "url": "http://169.254.169.254/latest/meta-data/"}],
        "output",
    ),
    "the output leads elsewhere": (
        [
            {
                "behaviour": "bad_output",
                "kind": "redirect",
                "location": "http://10.0.0.1/video.mp4",
                "match": OUTPUT,
            }
        ],
        "output",
    ),
}


@pytest.mark.parametrize("fault", FINAL)
async def test_task_fails_for_a_reason_and_costs_nothing_when(world, fault):
    rules, text = FINAL[fault]
    async with world.client() as client:
        await client.simulate(*rules)
        task = await client.create_surely(fault, duration_seconds=3)
        body = (await client.wait_terminal([task], seconds=100))[task]
        assert body["status"] == "failed"
        assert text in body["error"]
        assert "127.0.0.1" not in body["error"]
        await client.simulate()
        await check_invariants(client)
        await check_money(world, client)


async def test_task_whose_provider_never_answers_fails_at_its_deadline(world):
    set_deadline(world, 6)
    try:
        async with world.client() as client:
            await client.simulate({"behaviour": "stall"})
            stalled = await client.create_surely("stalled", duration_seconds=3)
            await client.simulate({"behaviour": "drop", "when": "before"})
            silent = await client.create_surely("silent", duration_seconds=3)
            ended = await client.wait_terminal([stalled, silent])
            assert "6 seconds" in ended[stalled]["error"]
            assert "6 seconds" in ended[silent]["error"]
            await client.simulate()
            await check_invariants(client)
    finally:
        set_deadline(world, 3600)


async def test_slow_provider_does_not_delay_the_others(world):
    """One provider that hangs must not hold up what another one works on."""
    manifest = json.loads(world.run.kubectl("get", "gatewayprovider", "simulated", "-o", "json"))
    model = json.loads(
        world.run.kubectl("get", "gatewaymodel", world.env["GATEWAY_MODEL"], "-o", "json")
    )
    for obj in (manifest, model):
        obj["metadata"] = {"name": "hanging"}
        obj.pop("status", None)
    # nothing listens there
    manifest["spec"]["http"]["baseUrl"] = "http://127.0.0.1:9"
    model["spec"]["modelId"] = "hanging"
    model["spec"]["routes"][0]["providerName"] = "hanging"
    apply(world, manifest)
    apply(world, model)
    async with world.client() as client:
        await client.simulate()

        async def routed():
            return (await client.create(model="hanging")).status == 202

        await wait_for(routed, what="the model's route")
        for number in range(20):
            await client.create(model="hanging", idempotency_key=f"hang-{number}")
        task = await client.create_surely("not-hanging", duration_seconds=3)
        ended = await client.wait_terminal([task], seconds=15)
        assert ended[task]["status"] == "completed"
    world.run.kubectl(
        "delete", "gatewaytasks", "--wait=false", "--field-selector=spec.request.modelId=hanging"
    )
    world.run.kubectl("delete", "gatewaymodel/hanging", "gatewayprovider/hanging")


def set_deadline(world, seconds):
    """Changes how long the model's tasks may take, and waits until the API knows."""
    patch = json.dumps({"spec": {"deadlineSeconds": seconds}})
    model = world.env["GATEWAY_MODEL"]
    world.run.kubectl("patch", "gatewaymodel", model, "--type=merge", "-p", patch)


def apply(world, obj):
    """Applies one object."""
    path = world.config.directory / "applied.json"
    path.write_text(json.dumps(obj))
    world.run.kubectl("apply", "-f", str(path))
