"""A slow, wrong and hostile provider: every task ends, at most one job each (I1, I2)."""

import json

from tests.crash.history import check_money
from tests.servers.world import check_invariants, wait_for

SUBMIT = {"on": "submit"}
POLL = {"on": "poll"}
OUTPUT = {"on": "output"}

TEMPORARY = {
    "dropped before acceptance": {
        "behaviour": "drop",
        "when": "before",
        "count": 3,
        "match": SUBMIT,
    },
    "html at submission": {"behaviour": "nonsense", "kind": "html", "count": 2, "match": SUBMIT},
    "polls that are no JSON": {
        "behaviour": "nonsense",
        "kind": "not_json",
        "count": 3,
        "match": POLL,
    },
    "polls too large to read": {"behaviour": "nonsense", "kind": "huge", "count": 2, "match": POLL},
    "polls cut short": {"behaviour": "nonsense", "kind": "truncated", "count": 3, "match": POLL},
    "done without outputs": {"behaviour": "contradict", "kind": "done_without_outputs", "count": 2},
    "an unknown state word": {"behaviour": "contradict", "kind": "unknown_state", "count": 2},
    "an output that is missing at first": {
        "behaviour": "bad_output",
        "kind": "not_found",
        "count": 1,
        "match": OUTPUT,
    },
    "an output cut short": {
        "behaviour": "bad_output",
        "kind": "truncated",
        "count": 2,
        "match": OUTPUT,
    },
}
"""By what the prompt says; `test_provider_load` has those that come at random."""


async def test_tasks_complete_in_spite_of_passing_faults(world, payer):
    await payer.simulate(
        *(
            {**rule, "match": {**rule.get("match", {}), "prompt_contains": fault}}
            for fault, rule in TEMPORARY.items()
        )
    )
    ids = {
        await payer.create_surely(f"{fault}-{n}", prompt=fault, duration_seconds=3): fault
        for fault in TEMPORARY
        for n in range(2)
    }
    ended = await payer.wait_terminal(ids)
    failed = {ids[task_id]: body for task_id, body in ended.items() if body["status"] == "failed"}
    assert failed == {}
    await check_invariants(payer, jobs="exactly one")


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


async def test_tasks_fail_for_a_reason_and_cost_nothing(world, payer):
    await payer.simulate(
        *(
            {**rule, "match": {**rule.get("match", {}), "prompt_contains": fault}}
            for fault, (rules, _) in FINAL.items()
            for rule in rules
        )
    )
    ids = {
        fault: await payer.create_surely(fault, prompt=fault, duration_seconds=3) for fault in FINAL
    }
    ended = await payer.wait_terminal(ids.values(), seconds=100)
    for fault, (_, text) in FINAL.items():
        body = ended[ids[fault]]
        assert body["status"] == "failed", fault
        assert text in body["error"], fault
        assert "127.0.0.1" not in body["error"], fault
    await payer.simulate()
    await check_invariants(payer)
    await check_money(world, payer)


async def test_task_whose_provider_never_answers_fails_at_its_deadline(world):
    # a model of its own: when the API takes it, it knows its deadline
    obj = json.loads(
        world.run.kubectl("get", "gatewaymodel", world.env["GATEWAY_MODEL"], "-o", "json")
    )
    obj["metadata"] = {"name": "impatient"}
    obj.pop("status", None)
    obj["spec"] |= {"modelId": "impatient", "deadlineSeconds": 6}
    apply(world, obj)
    async with world.client() as client:
        await client.simulate({"behaviour": "stall"})

        async def create():
            answer = await client.create(
                model="impatient", idempotency_key="stalled", duration_seconds=3
            )
            return answer.body["id"] if answer.status == 202 else None

        stalled = await wait_for(create, what="the model")
        await client.simulate({"behaviour": "drop", "when": "before"})
        silent = await client.create_surely("silent", model="impatient", duration_seconds=3)
        ended = await client.wait_terminal([stalled, silent])
        assert "6 seconds" in ended[stalled]["error"]
        assert "6 seconds" in ended[silent]["error"]
        await client.simulate()
        await check_invariants(client)
    world.run.kubectl("delete", "gatewaymodel/impatient")


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
        ended = await client.wait_terminal([task])
        assert ended[task]["status"] == "completed"
    world.run.kubectl(
        "delete", "gatewaytasks", "--wait=false", "--field-selector=spec.request.modelId=hanging"
    )
    world.run.kubectl("delete", "gatewaymodel/hanging", "gatewayprovider/hanging")


def apply(world, obj):
    """Applies one object."""
    path = world.config.directory / "applied.json"
    path.write_text(json.dumps(obj))
    world.run.kubectl("apply", "-f", str(path))
