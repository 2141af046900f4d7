"""Batches run to their end by REST, as an unmodified OpenAI client sees them; what they cost."""

import json
import secrets

import openai
import pytest

from tests.integration.sdk import MODERATION_MICROS as MICROS
from tests.integration.sdk import MODERATION_MODEL as MODEL
from tests.integration.sdk import open_openai, read_charged
from tests.servers.world import wait_for

LINES = 140
"""Enough that what they cost is some cents."""
FUNDS = 100_000_000
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
async def sdk(client):
    async with open_openai(client) as made:
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


async def test_batch_is_run_to_its_end(world, client, sdk, simulate):
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
        lambda: is_charged(client, len(good) * MICROS),
        seconds=30,
        what="the charge of the good ones",
    )
    await wait_for(lambda: is_settled(client, len(good) * MICROS), what="the hold's settlement")


async def is_charged(client, micros):
    return await read_charged(client) == micros


async def is_settled(client, micros):
    """Whether the balance shows the charge, and nothing held beside it."""
    balance = (await client.request("GET", "/api/v1/me/balance")).body
    shown = (balance["spent_cents_total"], balance["balance_cents"])
    return shown == (micros // 10_000, (FUNDS - micros) // 10_000)
