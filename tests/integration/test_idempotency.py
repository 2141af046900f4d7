"""`Idempotency-Key` on task creates, against the real Kubernetes API (contract §2.2)."""

import asyncio
import collections

import pytest

from tests.servers.replica import run_api
from tests.servers.tenants import (
    ask_patiently,
    create_patiently,
    describe_model,
    list_objects,
    make_key,
    read_balance,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import wait_for


def name_of(task):
    return task.replace("_", "-", 1)


async def test_repeated_call_is_answered_with_the_same_task(client):
    calls = []

    async def create():
        calls.append("k")
        return await client.create(idempotency_key="k")

    first, second = await ask_patiently(create), await ask_patiently(create)
    assert (first.status, second.status) == (202, 202)
    assert second.body == {**first.body, "task_replayed": True}
    assert second.headers["Location"] == first.headers["Location"]
    assert second.headers["Cache-Control"] == "no-store"
    if len(calls) == 2:  # a call that is repeated counts again
        assert second.headers["X-RateLimit-Remaining-RPM"] == "298"
    assert len(list_objects(client)) == 1
    # one hold or one charge, never two
    assert (await read_balance(client))["balance_cents"] == 9_970


async def test_calls_without_a_key_are_different_tasks(client):
    ids = {(await client.create()).body["id"] for _ in range(3)}
    assert len(ids) == len(list_objects(client)) == 3


async def test_other_input_is_409_and_names_the_task(client):
    first = await create_patiently(client, "k")
    answer = await create_patiently(client, "k", prompt="Something else")
    assert answer.status == 409
    assert answer.body == {"error": "Idempotency-Key was already used with different input"}
    assert answer.headers["X-Task-Id"] == first.body["id"]
    assert answer.headers["x-should-retry"] == "false"
    assert len(list_objects(client)) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"duration_seconds": 5}),
        ({"duration_seconds": 5}, {"duration_seconds": 5.0}),
        ({"aspect_ratio": "16:9", "audio": True, "output_resolution": "720p"}, {}),
    ],
    ids=["a default given or left out", "an integer with a zero fraction", "all defaults"],
)
async def test_same_values_are_the_same_input(client, first, second):
    task = (await create_patiently(client, "k", **first)).body["id"]
    answer = await create_patiently(client, "k", **second)
    assert answer.body == {"id": task, "status": "processing", "task_replayed": True}


@pytest.mark.parametrize(
    "change",
    [
        *({"prompt": "A lighthouse at dawn "}, {"duration_seconds": 6}, {"audio": False}),
        *({"aspect_ratio": "1:1"}, {"callback_url": "https://example.com/hook"}),
        {"reference_image_urls": ["https://example.com/lighthouse.png"] * 2},
        {"reference_audio_urls": []},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_every_field_counts_as_input(client, change):
    await create_patiently(client, "k")
    assert (await create_patiently(client, "k", **change)).status == 409


async def test_order_of_members_and_blanks_are_no_difference(client):
    first = await create_patiently(client, "k")
    text = ",\n ".join(f'"{k}" : {v}' for k, v in reversed(encode_members(client)))
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    data = f"\n{{ {text} }}".encode()
    call = {"headers": headers, "data": data}
    again = await ask_patiently(lambda: client.request("POST", client.tasks_path, **call))
    assert again.body == {**first.body, "task_replayed": True}


def encode_members(client):
    body = client.body()
    urls = ", ".join(f'"{url}"' for url in body["reference_image_urls"])
    # an escape and the letter itself are one string
    return [
        ("model", f'"{body["model"]}"'),
        ("prompt", '"\\u0041 lighthouse at dawn"'),
        ("reference_image_urls", f"[{urls}]"),
    ]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_20_equal_calls_at_once_make_one_task(world, client, replicas):
    if replicas == 1:
        await check_20_at_once(client, [None])
    else:
        with run_api(world) as base:
            await wait_known(client, base=base)
            await check_20_at_once(client, [None, base])


async def check_20_at_once(client, bases):
    answers = await asyncio.gather(
        *(create_patiently(client, "k", base=bases[n % len(bases)]) for n in range(20))
    )
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body["id"] for answer in answers}) == 1
    made = [answer for answer in answers if "task_replayed" not in answer.body]
    assert len(made) == 1
    assert len(list_objects(client)) == 1
    # one hold or one charge, never two
    assert (await read_balance(client))["balance_cents"] == 9_970
    (task,) = client.history.accepted
    await client.wait_terminal([task])
    history = await client.read_simulator()
    (obj,) = list_objects(client)
    jobs = [j for j in history["submissions"] if j["client_reference"] == obj["metadata"]["uid"]]
    assert len(jobs) == 1


async def test_of_20_unequal_calls_at_once_one_input_wins(client):
    answers = await asyncio.gather(
        *(create_patiently(client, "k", prompt=f"Prompt {n % 4}") for n in range(20))
    )
    counts = collections.Counter(answer.status for answer in answers)
    assert counts == {202: 5, 409: 15}
    winners = {answer.body["id"] for answer in answers if answer.status == 202}
    losers = {answer.headers["X-Task-Id"] for answer in answers if answer.status == 409}
    assert len(winners) == 1
    assert losers == winners
    assert len(list_objects(client)) == 1
    # one hold or one charge, never two
    assert (await read_balance(client))["balance_cents"] == 9_970


async def test_another_key_of_the_account_is_the_same_caller(world, client):
    second = make_key(world, client.account).plaintext
    await wait_known(client, second)
    first = await create_patiently(client, "k")
    call = {"headers": {"Idempotency-Key": "k"}, "body": client.body(), "key": second}
    answer = await ask_patiently(lambda: client.request("POST", client.tasks_path, **call))
    assert answer.body == {**first.body, "task_replayed": True}


async def test_another_account_is_unrelated(client, other):
    mine = await create_patiently(client, "k")
    theirs = await create_patiently(other, "k", prompt="Something else")
    assert theirs.status == 202
    assert "task_replayed" not in theirs.body
    assert theirs.body["id"] != mine.body["id"]


async def test_another_path_is_unrelated(world, client):
    name = unique("elsewhere")
    world.apply(describe_model(world, name))
    path = f"/api/v1/{name}/reference_to_video"
    await wait_status(client, 405, path)
    first = await create_patiently(client, "k")
    call = {"headers": {"Idempotency-Key": "k"}, "body": client.body(model=name)}
    answer = await ask_patiently(lambda: client.request("POST", path, **call))
    assert answer.status == 202, answer.raw
    assert "task_replayed" not in answer.body
    assert answer.body["id"] != first.body["id"]
    world.run.kubectl("delete", "gatewaymodel", name)


async def test_refused_calls_do_not_bind_the_key(world, client):
    refusals = [
        ({"prompt": ""}, 400),
        ({"model": "no-such-model"}, 400),
        ({"duration_seconds": 99}, 400),
    ]
    for changes, status in refusals:
        assert (await create_patiently(client, "k", **changes)).status == status
    headers = {"Idempotency-Key": "k", "Content-Type": "text/plain"}
    answer = await client.request("POST", client.tasks_path, headers=headers, data=b"{}")
    assert answer.status == 415
    accepted = await create_patiently(client, "k")
    assert accepted.status == 202
    assert "task_replayed" not in accepted.body


async def test_replay_goes_on_after_the_end_and_after_kubectl_delete(world, client):
    task = (await create_patiently(client, "k", duration_seconds=3)).body["id"]
    ended = (await client.wait_terminal([task]))[task]
    assert ended["status"] == "completed"
    replay = {"id": task, "status": "processing", "task_replayed": True}
    assert (await create_patiently(client, "k", duration_seconds=3)).body == replay
    world.run.kubectl("delete", "gatewaytask", name_of(task), "--timeout=20s")
    assert not list_objects(client)

    again = await create_patiently(client, "k", duration_seconds=3)
    assert (again.status, again.body) == (202, replay)
    assert (await create_patiently(client, "k")).status == 409
    assert (await client.poll(task)).body == ended
    assert not list_objects(client)


async def test_replay_of_a_failed_task_is_the_acceptance_too(client, simulate):
    await simulate({"behaviour": "fail", "match": {"prompt_contains": "to fail"}})
    call = {"key": "k", "prompt": "Bound to fail", "duration_seconds": 3}
    task = (await create_patiently(client, **call)).body["id"]
    assert (await client.wait_terminal([task]))[task]["status"] == "failed"
    answer = await create_patiently(client, **call)
    assert answer.body == {"id": task, "status": "processing", "task_replayed": True}


async def test_replay_needs_no_money(world, client):
    first = await create_patiently(client, "k")
    world.patch("gatewayaccount", client.account, {"funds": {"paidMicros": 0}})

    async def is_poor():
        return (await read_balance(client))["paid_balance_cents"] == 0

    await wait_for(is_poor, what="the new balance")
    assert (await client.create()).status == 402
    again = await create_patiently(client, "k")
    assert again.body == {**first.body, "task_replayed": True}


async def test_replay_whatever_the_model_says_by_now(world, client):
    """A model that has another default, or is gone, does not make another call of the same."""
    name = unique("changing")
    rule = {"name": "output_resolution", "default": '"1080p"'}
    stays = describe_model(world, f"{name}-stays", service=name)
    world.apply(describe_model(world, name, fields=[rule]), stays)
    path = f"/api/v1/{name}/reference_to_video"
    body = client.body(model=name)
    headers = {"Idempotency-Key": "k"}
    call = {"method": "POST", "headers": headers, "body": body}
    first = await wait_status(client, 202, path, **call)
    replay = {"id": first.body["id"], "status": "processing", "task_replayed": True}

    rule["default"] = '"540p"'
    world.patch("gatewaymodel", name, {"fields": [rule]})

    async def has_another_default():
        await client.request("POST", path, body=body)
        inputs = [obj["spec"]["request"]["input"] for obj in list_objects(client)]
        return any('"output_resolution":"540p"' in text for text in inputs)

    await wait_for(has_another_default, what="the new default")
    after_change = await ask_patiently(lambda: client.request(path=path, **call))
    other_input = {**call, "body": {**body, "prompt": "Something else"}}
    conflict = await ask_patiently(lambda: client.request(path=path, **other_input))
    assert conflict.status == 409
    world.run.kubectl("delete", "gatewaymodel", name)
    await wait_status(client, 400, path, method="POST", body=body)
    after_end = await ask_patiently(lambda: client.request(path=path, **call))
    world.run.kubectl("delete", "gatewaymodel", f"{name}-stays")
    assert (after_change.status, after_change.body) == (202, replay)
    assert (after_end.status, after_end.body) == (202, replay)


@pytest.mark.parametrize("key", ["  k  ", "\tk", "k \t"])
async def test_key_is_trimmed(client, key):
    first = await create_patiently(client, "k")
    assert (await create_patiently(client, key)).body["id"] == first.body["id"]


@pytest.mark.parametrize("key", ["a" * 512, " " + "a" * 512, "~!@#$%^&*()_+{}|:<>?", "a b", "0"])
async def test_key_of_1_to_512_characters_is_taken(client, key):
    first = await create_patiently(client, key)
    assert first.status == 202
    assert (await create_patiently(client, key)).body["id"] == first.body["id"]


async def test_key_may_be_any_text_in_utf_8(client):
    ids = set()
    for key in ("灯台", "é", "e\u0301", "\u00e8"):
        answer = await create_patiently(client, key)
        assert answer.status == 202
        ids.add(answer.body["id"])
        assert (await create_patiently(client, key)).body["id"] == answer.body["id"]
    assert len(ids) == 4
    # 512 characters count, not bytes
    assert (await create_patiently(client, "\u6d77" * 512)).status == 202


async def test_keys_that_differ_in_case_are_two(client):
    first = await create_patiently(client, "Key")
    assert (await create_patiently(client, "key")).body["id"] != first.body["id"]


@pytest.mark.parametrize("key", ["", "   ", "a" * 513])
async def test_empty_and_too_long_keys_are_400_in_the_simple_form(client, key):
    answer = await create_patiently(client, key)
    assert answer.status == 400
    assert set(answer.body) == {"error"}
    assert "Idempotency-Key" in answer.body["error"]


async def test_two_keys_are_400(client):
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = await client.request("POST", client.tasks_path, headers=headers, body=client.body())
    assert answer.status == 400
    assert set(answer.body) == {"error"}
