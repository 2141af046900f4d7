"""`Idempotency-Key` on task creates, against the real Kubernetes API (contract §2.2)."""

import asyncio

from tests.servers.tenants import ask_patiently, create_patiently, list_objects, read_balance


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


async def test_20_equal_calls_at_once_make_one_task(client):
    """Of two API processes, see tests/crash/tasks/test_two_apis.py."""
    answers = await asyncio.gather(*(create_patiently(client, "k") for _ in range(20)))
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
