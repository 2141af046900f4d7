"""Creates of tasks through real processes: the record, and what faults leave (contract §2.1)."""

import json

import pytest
import yaml

from gateway_cli.cluster.errors import ClusterError
from tests.servers.replica import run_linked_api
from tests.servers.tenants import (
    API_VERSION,
    describe_task,
    list_objects,
    read_balance,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import wait_for

MEBIBYTE = 1024 * 1024
JSON = {"Content-Type": "application/json"}


async def post(client, data, headers=JSON):
    return await client.request("POST", client.tasks_path, headers=headers, data=data)


def encode(client, **changes):
    return json.dumps(client.body(**changes)).encode()


async def test_size_counts_as_it_comes_where_no_length_is_declared(shared):
    async def stream(size):
        whole = encode(shared).ljust(size)
        for start in range(0, size, 65_536):
            yield whole[start : start + 65_536]

    assert (await post(shared, stream(MEBIBYTE))).status == 202
    assert (await post(shared, stream(MEBIBYTE + 1))).status == 413


async def test_input_over_8_kib_is_kept_in_the_store_and_read_from_there(client):
    prompt = "\u6d77" * 20_000
    task = (await client.create(prompt=prompt, duration_seconds=3)).body["id"]
    (obj,) = list_objects(client)
    assert "input" not in obj["spec"]["request"]
    assert obj["spec"]["request"]["inputRef"]["bytes"] > 60_000
    ended = await client.wait_terminal([task])
    assert ended[task]["status"] == "completed"


async def test_402_where_the_balance_does_not_cover_the_reservation(world, client):
    # 5 seconds of 720p at 0.06 dollars
    world.patch("gatewayaccount", client.account, {"funds": {"paidMicros": 299_999}})

    async def is_poor():
        return (await read_balance(client))["paid_balance_cents"] == 29

    await wait_for(is_poor, what="the new balance")
    answer = await client.create(idempotency_key="topped-up")
    assert answer.status == 402
    assert set(answer.body) == {"error"}
    assert answer.headers["X-RateLimit-Remaining-RPM"] == "299"
    assert not list_objects(client)
    assert (await read_balance(client))["balance_cents"] == 29
    # a cheaper one is taken, and reserves
    assert (await client.create(duration_seconds=3)).status == 202
    assert (await client.create(duration_seconds=3)).status == 402
    world.patch("gatewayaccount", client.account, {"funds": {"paidMicros": 600_000}})
    topped_up = await wait_status(
        client,
        202,
        client.tasks_path,
        method="POST",
        headers={"Idempotency-Key": "topped-up"},
        body=client.body(),
    )
    assert "task_replayed" not in topped_up.body


async def test_503_leaves_no_task_and_no_hold_and_does_not_bind_the_key(world, client):
    with run_linked_api(world) as (base, link):
        await wait_known(client, base=base)
        link.refuse()
        answer = await client.create(idempotency_key="cut", base=base)
        assert answer.status == 503
        assert set(answer.body) == {"error"}
        assert 1 <= int(answer.headers["Retry-After"]) <= 120
        unkeyed = await client.create(base=base)
        assert unkeyed.status == 503
    assert not list_objects(client)
    balance = await read_balance(client)
    assert balance["balance_cents"] == balance["paid_balance_cents"]
    accepted = await client.create(idempotency_key="cut")
    assert accepted.status == 202
    assert "task_replayed" not in accepted.body


@pytest.mark.full
async def test_504_after_10_s_names_the_task_and_a_retry_finds_it(unacknowledged):
    told = await unacknowledged.hear()
    answer, again = told["answer"], told["again"]
    assert answer.status == 504
    assert set(answer.body) == {"error"}
    assert told["timed"].seconds > 9
    told["timed"].check("504", at_most=11)
    assert answer.headers["X-RateLimit-Remaining-RPM"] == "299"
    task = answer.headers["X-Task-Id"]
    assert again.status == 202
    assert again.body == {"id": task, "status": "processing", "task_replayed": True}
    assert told["count"] == 1
    assert told["ended"] == ["completed"]


async def test_500_tells_nothing_leaves_no_hold_and_does_not_bind_the_key(world, client):
    """What the API server refuses, here by a policy of the cluster, is no client's fault."""
    name = unique("refuse")
    task = describe_task(client, unique("task-x"))
    refuse_tasks(world, name, client.account)
    try:
        await wait_for(lambda: not is_let_in(world, task), what="the policy")
        answer = await client.create()
        balance = await read_balance(client)
        keyed = await client.create(idempotency_key="refused")
    finally:
        world.run.kubectl("delete", "validatingadmissionpolicybinding", name)
        world.run.kubectl("delete", "validatingadmissionpolicy", name)
    assert (answer.status, keyed.status) == (500, 500)
    assert set(answer.body) == {"error"}
    assert "policy" not in answer.body["error"]
    assert answer.headers["X-Request-Id"].startswith("req_")
    assert answer.headers["X-RateLimit-Remaining-RPM"] == "299"
    assert balance["balance_cents"] == balance["paid_balance_cents"]
    await wait_for(lambda: is_let_in(world, task), what="the end of the policy")
    accepted = await client.create(idempotency_key="refused")
    assert accepted.status == 202
    assert "task_replayed" not in accepted.body


def is_let_in(world, task):
    """Whether the API server would create the object."""
    try:
        world.apply(task, command="create", dry_run=True)
    except ClusterError:
        return False
    return True


def refuse_tasks(world, name, account):
    """A cluster's policy that lets no task of an account in."""
    group = API_VERSION.split("/")
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [group[0]],
                        "apiVersions": [group[1]],
                        "operations": ["CREATE"],
                        "resources": ["gatewaytasks"],
                    }
                ]
            },
            "validations": [
                {
                    "expression": f"object.spec.request.accountName != '{account}'",
                    "message": "a policy of the cluster says no",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    world.apply(policy, binding)


async def test_a_number_beyond_a_double_in_a_temporary_file_is_refused_under_its_name(shared):
    headers = {"Content-Type": "application/json"}
    for path, raw, name in (
        ("", b'{"source":1e400}', "source"),
        ("", b'{"source":{"type":"url","url":"http://a.example/"},"file_name":1e400}', "file_name"),
        ("/prepare", b'{"filename":"a","byte_size":1e400,"checksum":"x"}', "byte_size"),
    ):
        answer = await shared.request("POST", "/api/v1/files" + path, data=raw, headers=headers)
        assert answer.status == 400, answer.raw
        assert name in answer.body["errors"], answer.body


async def test_one_error_names_all_problems(shared):
    answer = await shared.create(
        prompt=" ", duration_seconds=99, audio="yes", colour="red", Model="x"
    )
    assert answer.status == 400
    assert set(answer.body["errors"]) == {
        *("prompt", "duration_seconds", "audio", "colour", "Model")
    }


async def test_request_is_recorded_as_it_was_sent(shared):
    sent = {
        "prompt": "Ein Leuchtturm, 灯台 \U0001f600",
        "reference_audio_urls": ["https://example.com/a.mp3"],
        "aspect_ratio": "3:4",
        "audio": False,
        "duration_seconds": 3,
        "output_resolution": "540p",
        "callback_url": "https://example.com/hook",
    }
    task = (await shared.create(**sent)).body["id"]
    request = shared.world.read("gatewaytask", task.replace("_", "-", 1))["spec"]["request"]
    assert request["callbackUrl"] == sent.pop("callback_url")
    assert request["modelId"] == shared.world.env["GATEWAY_MODEL"]
    urls = shared.body()["reference_image_urls"]
    assert json.loads(request["input"]) == {**sent, "reference_image_urls": urls}


async def test_prompt_of_any_characters_can_be_shown_with_kubectl(shared):
    prompt = "".join(map(chr, (*range(0x180), 0x2028, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, 0x1FFFF)))
    task = (await shared.create(prompt=prompt)).body["id"]
    name = task.replace("_", "-", 1)
    request = shared.world.read("gatewaytask", name)["spec"]["request"]
    assert json.loads(request["input"])["prompt"] == prompt
    shown = shared.world.run.kubectl("get", "gatewaytask", name, "-o", "yaml")
    assert json.loads(yaml.safe_load(shown)["spec"]["request"]["input"])["prompt"] == prompt
