"""Batches run to their end by REST, as an unmodified OpenAI client sees them; what they cost."""

import json
import secrets

import openai
import pytest

from tests.integration.batches.test_openai_client import MODEL, PRICE, open_sdk, read_charged
from tests.servers.world import wait_for

pytestmark = pytest.mark.full

LINES = 240
"""Enough that what they cost is some cents."""
FUNDS = 100_000_000
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
async def sdk(world, client):
    async with open_sdk(world, client) as made:
        yield made


def write_line(number, text):
    body = {"model": MODEL, "input": text}
    line = {"custom_id": f"ä-{number}", "method": "POST", "url": "/v1/moderations", "body": body}
    return json.dumps(line, ensure_ascii=False).encode()


async def begin(sdk, data, **options):
    file = await sdk.files.create(file=("requests.jsonl", data), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/moderations", completion_window="24h", **options
    )


async def finish(sdk, batch, seconds=60):
    """The batch once it has ended; what was told on the way never went back."""
    words = []

    async def look():
        found = await sdk.batches.retrieve(batch.id)
        words.append(found.status)
        return found if found.status in ENDED else None

    ended = await wait_for(look, seconds=seconds, what=f"{batch.id}'s end")
    order = ("validating", "in_progress", "finalizing", "cancelling", *ENDED)
    assert words == sorted(words, key=order.index)
    return ended


async def read_lines(sdk, file_id):
    if file_id is None:
        return []
    content = await sdk.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def test_a_batch_is_run_to_its_end(world, client, sdk, simulate):
    word = secrets.token_hex(4)
    on = {"on": "moderate", "prompt_contains": f"bad {word}"}
    await simulate(
        {"behaviour": "status", "status": 400, "match": on},
        {
            "behaviour": "status",
            "status": 429,
            "count": 3,
            "match": {"on": "moderate", "prompt_contains": word},
        },
    )
    bad = [n for n in range(LINES) if n % 7 == 3]
    lines = [write_line(n, f"{'bad' if n in bad else 'good'} {word} {n}") for n in range(LINES)]
    data = b"\xef\xbb\xbf" + b"\r\n".join([*lines[:10], b"", *lines[10:]])
    batch = await begin(
        sdk,
        data,
        metadata={"case": word},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (batch.status, batch.request_counts.total) == ("validating", 0)
    ended = await finish(sdk, batch)
    assert ended.status == "completed", ended.errors
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (LINES, LINES - len(bad), len(bad))
    assert (ended.model, ended.metadata, ended.errors) == (MODEL, {"case": word}, None)
    times = (ended.created_at, ended.in_progress_at, ended.finalizing_at, ended.completed_at)
    assert list(times) == sorted(times)
    assert (ended.cancelling_at, ended.cancelled_at, ended.failed_at, ended.expired_at) == (
        None,
    ) * 4

    output = await read_lines(sdk, ended.output_file_id)
    errors = await read_lines(sdk, ended.error_file_id)
    good = [n for n in range(LINES) if n not in bad]
    assert [line["custom_id"] for line in output] == [f"ä-{n}" for n in good]
    assert [line["custom_id"] for line in errors] == [f"ä-{n}" for n in bad]
    for line in output:
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        openai.types.ModerationCreateResponse.model_validate(line["response"]["body"])
    for line in errors:
        assert line["error"] is None
        assert line["response"]["status_code"] == 400
        assert line["response"]["body"]["error"]["code"] == "invalid_value"
    ids = [line["id"] for line in output + errors]
    assert len({*ids}) == LINES
    assert all(i.startswith("batch_req_") for i in ids)
    calls = {line["response"]["request_id"] for line in output + errors}
    assert len(calls) == LINES

    for file_id, kind in ((ended.output_file_id, "output"), (ended.error_file_id, "error")):
        file = await sdk.files.retrieve(file_id)
        assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_{kind}.jsonl")
        assert file.expires_at == file.created_at + 3600
        assert file.bytes == len((await sdk.files.content(file_id)).content)
    asked = (await client.read_simulator(f"/control/moderations?contains={word}"))["inputs"]
    assert len(asked) == LINES
    assert sum(each["asked"] for each in asked.values()) == LINES + 3, "only the 429s are repeated"
    await wait_for(
        lambda: is_charged(client, len(good) * PRICE),
        seconds=30,
        what="the charge of the good ones",
    )
    await wait_for(lambda: is_settled(client, len(good) * PRICE), what="the hold's settlement")


async def test_a_broken_file_fails_its_batch_at_no_cost(client, sdk):
    lines = [
        write_line(0, "a cat"),
        b'{"custom_id": ',
        b"",
        write_line(0, "another cat"),
        write_line(5, "\x00").replace(b"POST", b"GET"),
        write_line(6, "a").replace(b"\xc3\xa4-6", b"\xff"),
    ]
    batch = await finish(sdk, await begin(sdk, b"\n".join(lines)))
    assert batch.status == "failed"
    assert [(e.code, e.param, e.line) for e in batch.errors.data] == [
        ("invalid_json_line", None, 2),
        ("duplicate_custom_id", "custom_id", 4),
        ("invalid_method", "method", 5),
        ("invalid_json_line", None, 6),
    ]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.failed_at is not None
    assert batch.request_counts.total == 5
    assert await read_charged(client) == 0


async def test_a_cancelled_batch_tells_every_line_and_costs_what_was_answered(
    world, client, sdk, simulate
):
    word = secrets.token_hex(4)
    on = {"on": "moderate", "prompt_contains": f"slow {word}"}
    await simulate({"behaviour": "hang", "seconds": 3, "match": on})
    lines = [write_line(n, f"{'slow' if n >= 20 else 'fast'} {word} {n}") for n in range(1500)]
    batch = await begin(sdk, b"\n".join(lines))
    await wait_for(lambda: has_answers(client, word), seconds=60, what="answers")
    assert (await sdk.batches.cancel(batch.id)).status == "cancelling"
    ended = await finish(sdk, batch)
    assert ended.status == "cancelled"
    assert ended.cancelling_at <= ended.cancelled_at
    output = await read_lines(sdk, ended.output_file_id)
    errors = await read_lines(sdk, ended.error_file_id)
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (1500, len(output), len(errors))
    wanted = [f"ä-{n}" for n in range(1500)]
    assert sorted((e["custom_id"] for e in output + errors), key=wanted.index) == wanted
    assert len(output) >= 20
    assert {e["error"]["code"] for e in errors} == {"batch_cancelled"}
    assert {e["response"] for e in errors} == {None}
    assert (await sdk.batches.cancel(batch.id)).status == "cancelled"
    await wait_for(lambda: is_charged(client, len(output) * PRICE), seconds=30, what="the charge")


async def has_answers(client, word):
    inputs = (await client.read_simulator(f"/control/moderations?contains={word}"))["inputs"]
    return len(inputs) > 25


async def is_charged(client, micros):
    return await read_charged(client) == micros


async def is_settled(client, micros):
    """Whether the balance shows the charge, and nothing held beside it."""
    balance = (await client.request("GET", "/api/v1/me/balance")).body
    shown = (balance["spent_cents_total"], balance["balance_cents"])
    return shown == (micros // 10_000, (FUNDS - micros) // 10_000)
