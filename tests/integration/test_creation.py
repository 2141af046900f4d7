"""A create apart from its fields: types, sizes, JSON, answers and statuses (contract §2.1)."""

import json
import re

import pytest

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


async def test_acceptance_has_two_members_and_its_headers(client):
    answer = await client.create()
    assert answer.status == 202
    assert re.fullmatch(r"task_[a-z2-7]{26}", answer.body["id"])
    assert answer.body == {"id": answer.body["id"], "status": "processing"}
    headers = answer.headers
    assert headers["Location"] == f"{client.tasks_path}/{answer.body['id']}"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Type"] == "application/json"
    assert headers["X-RateLimit-Limit-RPM"] == "300"
    assert "Retry-After" not in headers
    shown = await client.request("GET", headers["Location"])
    assert (shown.status, shown.body["id"]) == (200, answer.body["id"])


async def test_acceptance_stands_for_an_object(client):
    task = (await client.create()).body["id"]
    (obj,) = list_objects(client)
    assert obj["metadata"]["name"] == task.replace("_", "-", 1)


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"],
)
async def test_json_is_taken_as_declared(shared, content_type):
    answer = await post(shared, encode(shared), {"Content-Type": content_type})
    assert answer.status == 202


@pytest.mark.parametrize(
    "content_type",
    [
        *(None, "", "text/plain", "text/json", "application/x-www-form-urlencoded"),
        *("multipart/form-data; boundary=x", "application/jsonl", "application/problem+json"),
    ],
)
async def test_any_other_type_is_415_and_told_which_is_read(shared, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = await post(shared, encode(shared), headers)
    assert answer.status == 415
    assert set(answer.body) == {"error"}
    assert answer.headers["Accept"] == "application/json"


BROKEN = {
    "nothing": b"",
    "a blank": b" ",
    "half": b'{"model": "x"',
    "two": b"{}{}",
    "a comment": b"{} // none",
    "single quotes": b"{'model': 'x'}",
    "a comma too many": b'{"model": "x",}',
    "no number": b'{"duration_seconds": NaN}',
    "bytes that are no UTF-8": b'{"model": "\xff"}',
    "half a surrogate": b'{"model": "\\ud800"}',
    "another encoding": '{"model": "x"}'.encode("utf-16"),
    "100,000 levels": b"[" * 100_000,
    "100,000 whole levels": b"[" * 100_000 + b"]" * 100_000,
    "100,000 levels of objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "an array": b"[]",
    "a string": b'"model"',
    "a number": b"5",
    "null": b"null",
    "true": b"true",
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_is_no_json_object_is_400_in_the_simple_form(shared, case):
    answer = await post(shared, BROKEN[case])
    assert answer.status == 400
    assert set(answer.body) == {"error"}
    assert answer.body["error"]


async def test_number_beyond_all_bounds_is_400(shared):
    raw = encode(shared).replace(b'{"model"', b'{"duration_seconds": 1e999, "model"')
    assert (await post(shared, raw)).status == 400


async def test_body_of_a_mebibyte_is_read_and_one_byte_more_is_413(shared):
    whole = encode(shared).ljust(MEBIBYTE)
    assert (await post(shared, whole)).status == 202
    answer = await post(shared, whole + b" ")
    assert answer.status == 413
    assert set(answer.body) == {"error"}


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


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_other_method_at_the_create_path_is_405(shared, method):
    answer = await shared.request(method, shared.tasks_path)
    assert answer.status == 405
    assert answer.headers["Allow"] == "POST"
    if method == "HEAD":
        assert answer.raw == b""
    else:
        assert set(answer.body) == {"error"}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_other_method_at_a_task_is_405(shared, ended, method):
    answer = await shared.request(method, f"{shared.tasks_path}/{ended[2]}")
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        *("/api/v1/sim", "/api/v1/sim/text_to_video", "/api/v1/no/reference_to_video"),
        *("/api/v1/SIM/reference_to_video", "/api/v1//reference_to_video", "/api/v1"),
        *("/api/sim/reference_to_video", "/api/v2/sim/reference_to_video", "/api/v1/files/x"),
    ],
)
async def test_path_that_no_model_serves_is_404(shared, path):
    answer = await shared.request("POST", path, body=shared.body())
    assert answer.status == 404
    assert set(answer.body) == {"error"}


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


async def test_exact_balance_covers_the_reservation(world, client):
    world.patch("gatewayaccount", client.account, {"funds": {"paidMicros": 300_000}})

    async def is_exact():
        return (await read_balance(client))["paid_balance_cents"] == 30

    await wait_for(is_exact, what="the new balance")
    assert (await client.create()).status == 202
    assert (await read_balance(client))["balance_cents"] == 0


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


@pytest.mark.slow
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
