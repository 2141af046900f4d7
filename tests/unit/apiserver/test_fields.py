"""A create's body on the wire (contract §2.1); `unit/tasks/test_validation` has every rule."""

from typing import Any

import orjson
import pytest

from tests.unit.apiserver.gateway import Gateway, body


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "😀" * 20000},
        # image and audio URLs are fetched by the provider, so their hosts are not judged
        {"reference_image_urls": ["http://127.0.0.1/a.png", "http://[::1]"]},
        {"reference_audio_urls": None, "audio": None, "duration_seconds": 5.0},
    ],
)
@pytest.mark.parametrize("content_type", ["Application/JSON ;x=y; charset=utf-8"])
async def test_good_body_makes_a_task(
    gateway: Gateway, changes: dict[str, Any], content_type: str
) -> None:
    key = " " + "x" * 512 + " "
    answer = await gateway.create(body(**changes), content_type=content_type, idempotency_key=key)
    assert answer.status == 202, answer.body


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("model", ..., "is required"),
        ("model", "", "must not be blank"),
        ("model", "gpt-1", "is not a supported model"),
        ("prompt", "x" * 20001, "must have 1 to 20000 characters"),
        ("reference_image_urls", ["https://e.com/a", "x"], "[1] must be an absolute"),
        ("callback_url", "mailto:x@example.com", "must be an absolute"),
        ("callback_url", "http://127.0.0.1/hook", "must not name a loopback address"),
        ("callbackUrl", None, "is not a known field"),
    ],
)
async def test_400_names_field_and_problem(
    gateway: Gateway, name: str, value: Any, text: str
) -> None:
    answer = await gateway.create(body(**{name: value}))
    assert answer.status == 400
    assert set(answer.json) == {"error", "errors"}
    assert isinstance(answer.json["error"], str)
    [(field, texts)] = answer.json["errors"].items()
    assert field == name
    assert text in texts[0]
    assert gateway.task_count() == 0


@pytest.mark.parametrize("raw", [b"", b"[]"])
async def test_body_without_json_object_is_400_in_simple_form(gateway: Gateway, raw: bytes) -> None:
    answer = await gateway.create(raw)
    assert answer.status == 400
    assert set(answer.json) == {"error"}


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
async def test_unsupported_content_type_is_415(gateway: Gateway, content_type: str | None) -> None:
    answer = await gateway.create(content_type=content_type)
    assert answer.status == 415
    assert answer.headers["accept"] == "application/json"
    assert set(answer.json) == {"error"}


async def test_body_of_one_mebibyte_is_read_and_one_byte_more_is_413(gateway: Gateway) -> None:
    small = orjson.dumps(body())
    at_limit = small + b" " * (1024 * 1024 - len(small))
    assert (await gateway.create(at_limit)).status == 202
    answer = await gateway.create(at_limit + b" ")
    assert answer.status == 413
    assert set(answer.json) == {"error"}
    declared = [("Content-Length", str(1024 * 1024 + 1))]
    assert (await gateway.create(b"", headers=declared)).status == 413


@pytest.mark.parametrize("key", ["", "   ", "x" * 513])
async def test_bad_idempotency_key_is_400(gateway: Gateway, key: str) -> None:
    answer = await gateway.create(idempotency_key=key)
    assert answer.status == 400
    assert set(answer.json) == {"error"}


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ({"name": "reference_audio_urls", "supported": False}, {"reference_audio_urls": []}),
        ({"name": "audio", "supported": False}, {"audio": True}),
        ({"name": "output_resolution", "allowed": ["720p"]}, {"output_resolution": "1080p"}),
        ({"name": "duration_seconds", "maximum": 8}, {"duration_seconds": 9}),
        (
            {"name": "reference_image_urls", "maxItems": 1},
            {"reference_image_urls": ["http://e.co"] * 2},
        ),
        ({"name": "prompt", "maxLength": 10}, {"prompt": "x" * 11}),
    ],
)
async def test_value_that_model_does_not_support_is_409(
    gateway: Gateway, rule: dict[str, Any], changes: dict[str, Any]
) -> None:
    gateway.put_model(fields=[rule])
    assert (await gateway.create()).status == 202
    answer = await gateway.create(body(**changes))
    assert answer.status == 409
    assert set(answer.json) == {"error"}
    assert rule["name"] in answer.json["error"]
    assert answer.headers["x-should-retry"] == "false"
    assert "x-task-id" not in answer.headers


async def test_models_default_replaces_operations(gateway: Gateway) -> None:
    gateway.put_model(fields=[{"name": "output_resolution", "default": '"1080p"'}])
    answer = await gateway.create()
    stored = orjson.loads(gateway.task_object(answer.json["id"])["spec"]["request"]["input"])
    assert stored["output_resolution"] == "1080p"


async def test_task_object_records_the_request(gateway: Gateway) -> None:
    answer = await gateway.create(
        body(callback_url="HTTPS://Example.com/A://h"), headers=[("X-Request-Id", "req_mine")]
    )
    obj = gateway.task_object(answer.json["id"])
    request = obj["spec"]["request"]
    assert obj["metadata"]["labels"]["modelgateway.dev/account"] == "demo"
    assert 0 <= int(obj["metadata"]["labels"]["modelgateway.dev/shard"]) < 16
    assert obj["metadata"]["finalizers"] == ["modelgateway.dev/upstream-job"]
    assert request["callbackUrl"] == "https://Example.com/A://h", "the scheme in lower case"
    assert request["keyName"] == "key-" + gateway.key[3:11]
    assert request["reservedMicros"] == 500_000
    assert obj["spec"]["deadlineSeconds"] == 3600
    assert orjson.loads(request["input"]) == {
        "prompt": "a cat",
        "reference_image_urls": ["https://example.com/a.png"],
        "aspect_ratio": "16:9",
        "audio": True,
        "duration_seconds": 5,
        "output_resolution": "720p",
    }


async def test_input_over_8_kib_is_stored_outside_the_object(gateway: Gateway) -> None:
    answer = await gateway.create(body(prompt="x" * 9000))
    request = gateway.task_object(answer.json["id"])["spec"]["request"]
    assert "input" not in request
    stored = gateway.store.contents[request["inputRef"]["key"]]
    assert len(stored) == request["inputRef"]["bytes"] > 8192


async def test_store_outage_leaves_no_task_and_no_reservation(gateway: Gateway) -> None:
    await gateway.create()
    gateway.store.away = True
    answer = await gateway.create(body(prompt="x" * 9000))
    assert answer.status == 503
    assert gateway.task_count() == 1
    assert await gateway.held() == 500_000
