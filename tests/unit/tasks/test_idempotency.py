"""One key, one task (contract §2.2): the object's name is the lock."""

import asyncio

import orjson
import pytest

from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.tasks.archive import archive_task
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import COMPLETED, FAILED, MODEL, PATH, Gateway, body


async def test_create_is_accepted_with_the_location_of_its_task(gateway: Gateway) -> None:
    answer = await gateway.create()
    assert answer.status == 202
    assert answer.body == orjson.dumps({"id": answer.json["id"], "status": "processing"})
    assert answer.headers["location"] == f"{PATH}/{answer.json['id']}"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"


async def test_task_names_the_models_keyed_route(gateway: Gateway) -> None:
    """A route that is known to be keyed is the operator's intent: it needs no write of its own."""
    before = await gateway.create()
    assert "route" not in gateway.task_object(before.json["id"])["spec"]["request"]
    [model] = gateway.kube.list_objects("gatewaymodels")
    [route] = model["spec"]["routes"]
    keyed = {name: route[name] for name in ("providerName", "upstreamModel")}
    gateway.kube.put("gatewaymodels", {**model, "status": {"keyedRoute": keyed}})
    after = await gateway.create()
    assert gateway.task_object(after.json["id"])["spec"]["request"]["route"] == keyed


async def test_calls_without_a_key_make_a_task_each(gateway: Gateway) -> None:
    first, second = await gateway.create(), await gateway.create()
    assert first.json["id"] != second.json["id"]


async def test_second_create_with_the_key_returns_the_first_task(gateway: Gateway) -> None:
    first = await gateway.create(idempotency_key="k")
    again = await gateway.create(idempotency_key="k")
    assert "task_replayed" not in first.json
    assert again.status == 202
    assert again.json == {**first.json, "task_replayed": True}
    assert again.headers["location"] == first.headers["location"]
    assert gateway.task_count() == 1
    assert await gateway.held() == 500_000


async def test_order_of_members_escapes_and_blanks_do_not_matter(gateway: Gateway) -> None:
    first = await gateway.create(idempotency_key="k")
    members = reversed(
        [f"{orjson.dumps(k).decode()} : {orjson.dumps(v).decode()}" for k, v in body().items()]
    )
    text = "{ " + ",\n".join(members).replace("a cat", "\\u0061 cat") + " }"
    again = await gateway.create(text.encode(), idempotency_key="k")
    assert again.json == {**first.json, "task_replayed": True}


@pytest.mark.parametrize(
    "changes", [{"prompt": "b"}, {"reference_image_urls": ["https://example.com/a.png"] * 2}]
)
async def test_different_input_is_409(gateway: Gateway, changes: dict[str, object]) -> None:
    first = await gateway.create(idempotency_key="k")
    answer = await gateway.create(body(**changes), idempotency_key="k")
    assert answer.status == 409
    assert answer.json == {"error": "Idempotency-Key was already used with different input"}
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-task-id"] == first.json["id"]
    assert gateway.task_count() == 1


async def test_task_id_header_has_the_name_of_the_setting() -> None:
    gateway = Gateway(task_id_header="X-Brand-Task")
    await gateway.create(idempotency_key="k")
    answer = await gateway.create(body(prompt="b"), idempotency_key="k")
    assert answer.headers["x-brand-task"].startswith("task_")


async def test_scope_is_account_path_and_key(gateway: Gateway) -> None:
    gateway.put_model("other", service="other")
    sent = body(model="other")
    ids = {
        (await gateway.create(idempotency_key="k")).json["id"],
        (await gateway.create(idempotency_key="K")).json["id"],
        (await gateway.create(idempotency_key="k", key=gateway.other_key)).json["id"],
        (
            await gateway.create(sent, idempotency_key="k", path="/api/v1/other/reference_to_video")
        ).json["id"],
    }
    assert len(ids) == 4


async def test_keys_of_one_account_share_the_operation(gateway: Gateway) -> None:
    await gateway.create(idempotency_key="k")
    again = await gateway.create(idempotency_key="k", key=gateway.put_key("demo"))
    assert again.json["task_replayed"] is True


async def test_two_idempotency_keys_are_refused(gateway: Gateway) -> None:
    answer = await gateway.create(idempotency_key="a", headers=[("Idempotency-Key", "b")])
    assert answer.status == 400


async def test_concurrent_equal_calls_make_one_task(gateway: Gateway) -> None:
    answers = await asyncio.gather(*(gateway.create(idempotency_key="k") for _ in range(50)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert sum("task_replayed" not in answer.json for answer in answers) == 1
    assert gateway.task_count() == 1
    assert await gateway.held() == 500_000


async def test_concurrent_calls_with_other_input_make_one_task(gateway: Gateway) -> None:
    answers = await asyncio.gather(
        *(gateway.create(body(prompt=f"{n % 2}"), idempotency_key="k") for n in range(20))
    )
    assert sorted({answer.status for answer in answers}) == [202, 409]
    assert gateway.task_count() == 1
    assert await gateway.held() == 500_000


async def test_large_inputs_in_a_race_do_not_mix(gateway: Gateway) -> None:
    answers = await asyncio.gather(
        *(gateway.create(body(prompt=f"{n}" * 9000), idempotency_key="k") for n in range(4))
    )
    [winner] = [n for n, answer in enumerate(answers) if answer.status == 202]
    request = gateway.task_object(answers[winner].json["id"])["spec"]["request"]
    stored = orjson.loads(gateway.store.contents[request["inputRef"]["key"]])
    assert stored["prompt"] == f"{winner}" * 9000


@pytest.mark.parametrize("status", [COMPLETED, FAILED], ids=["completed", "failed"])
async def test_replay_is_processing_even_after_the_end(
    gateway: Gateway, status: dict[str, object]
) -> None:
    first = await gateway.create(idempotency_key="k")
    gateway.end_task(first.json["id"], status)
    again = await gateway.create(idempotency_key="k")
    assert again.json == {**first.json, "task_replayed": True}


async def test_archived_task_keeps_the_key_bound(gateway: Gateway) -> None:
    first = await gateway.create(idempotency_key="k")
    gateway.end_task(first.json["id"], {**COMPLETED, "completionTime": "2999-01-01T00:00:00Z"})
    obj = gateway.task_object(first.json["id"])
    await archive_task(gateway.store, obj)
    gateway.kube.remove("gatewaytasks", obj["metadata"]["name"])
    again = await gateway.create(idempotency_key="k")
    assert again.json == {**first.json, "task_replayed": True}
    assert (await gateway.create(body(prompt="b"), idempotency_key="k")).status == 409
    assert gateway.task_count() == 0


async def test_refused_call_does_not_bind_its_key(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 0})
    assert (await gateway.create(idempotency_key="k")).status == 402
    assert (await gateway.create(body(prompt=""), idempotency_key="k")).status == 400
    gateway.put_account("demo", funds={"paidMicros": 10_000_000})
    answer = await gateway.create(body(prompt="other"), idempotency_key="k")
    assert answer.status == 202
    assert "task_replayed" not in answer.json


async def test_failed_lookup_is_503_and_makes_nothing(gateway: Gateway) -> None:
    gateway.kube.order_faults("get", Fault(KubernetesUnavailable("x")))
    answer = await gateway.create(idempotency_key="k")
    assert answer.status == 503
    assert "x-ratelimit-limit-rpm" in answer.headers
    assert gateway.task_count() == 0
    gateway.store.away = True
    assert (await gateway.create(idempotency_key="k")).status == 503


async def test_task_of_kubectl_under_the_name_of_the_key_is_a_conflict(gateway: Gateway) -> None:
    task_id = gateway.mint.mint_keyed("task", "demo", PATH, "k")
    gateway.put_task(task_id, modelId=MODEL)
    assert (await gateway.create(idempotency_key="k")).status == 409
