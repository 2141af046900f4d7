"""Creates of tasks through real processes: the record, and what faults leave (contract §2.1)."""

import json

import pytest
import yaml

from tests.servers.replica import run_linked_api
from tests.servers.tenants import list_objects, read_balance, wait_known


async def test_input_over_8_kib_is_kept_in_the_store_and_read_from_there(client):
    prompt = "\u6d77" * 20_000
    task = (await client.create(prompt=prompt, duration_seconds=3)).body["id"]
    (obj,) = list_objects(client)
    assert "input" not in obj["spec"]["request"]
    assert obj["spec"]["request"]["inputRef"]["bytes"] > 60_000
    ended = await client.wait_terminal([task])
    assert ended[task]["status"] == "completed"


@pytest.mark.full
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
