"""Rates of calls that cost nothing: management calls, creates of files (contract §12.1a, I11)."""

import pytest

from tests.unit.apiserver.filing import Cabinet, form
from tests.unit.apiserver.gateway import Answer, Gateway
from tests.unit.apiserver.management import Office
from tests.unit.apiserver.temporary_files import Bench
from tests.unit.apiserver.uploads import Uploader


def check_refusal(answer: Answer) -> None:
    """A 429 that says when to come back and nothing of the paid rate."""
    assert answer.status == 429, answer.body
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert not any(name.startswith("x-ratelimit") for name in answer.headers)


async def test_management_calls_share_one_rate_of_the_account() -> None:
    office = Office(Gateway(management_calls_per_minute=5))
    await office.make()
    await office.show("/keys")
    await office.show("/guardrails")
    assert (await office.ask("POST", "/keys", {"name": 1})).status == 400
    assert (await office.ask("DELETE", "/keys/key_nothing")).status == 404
    for _ in range(3):
        check_refusal(await office.ask("GET", "/keys"))
    assert set((await office.ask("GET", "/members")).json) == {"error"}
    # an unknown route, a bad credential and another account are not concerned
    assert (await office.ask("GET", "/nothing")).status == 404
    assert (await office.ask("GET", "/keys", key="nonsense")).status == 401
    assert (await office.ask("GET", "/keys", key=office.other_key)).status == 200
    office.gateway.counters.now += 60
    assert (await office.ask("GET", "/keys")).status == 200


async def test_calls_that_are_refused_by_class_do_not_count() -> None:
    office = Office(Gateway(management_calls_per_minute=1))
    for _ in range(3):
        assert (await office.ask("GET", "/keys", key=office.gateway.key)).status == 403
    assert (await office.ask("GET", "/keys")).status == 200


async def test_creates_of_files_uploads_and_temporary_files_share_one_rate() -> None:
    bench = Bench(file_creates_per_minute=4)
    gateway = bench.gateway
    cabinet, uploader = Cabinet(gateway), Uploader(gateway)
    await cabinet.make()
    assert (await uploader.create()).status == 200
    assert (await bench.create()).status == 201
    assert (await bench.ask_to_put()).status == 201
    refused = await cabinet.send(form())
    check_refusal(refused)
    assert refused.json["error"]["code"] == "rate_limit_exceeded"
    assert refused.json["error"]["type"] == "rate_limit_error"
    check_refusal(await uploader.create())
    check_refusal(await bench.create())
    check_refusal(await bench.ask_to_put())
    # reads, and what is done with files that are there, go on
    assert (await cabinet.ask("GET", "/v1/files")).status == 200
    assert (await bench.post({"signed_id": "x"}, "/api/v1/files/confirm")).status != 429
    assert (await Cabinet(gateway, gateway.other_key).send(form())).status == 200


async def test_refused_create_reads_no_body() -> None:
    gateway = Gateway(file_creates_per_minute=1)
    cabinet = Cabinet(gateway)
    await cabinet.make()
    check_refusal(await cabinet.send(form(), chunks=[b"not a form"]))


@pytest.mark.parametrize("replicas", [1, 3, 6])
async def test_without_the_counters_each_process_counts_its_part(replicas: int) -> None:
    gateway = Gateway(management_calls_per_minute=6, replicas=replicas)
    office = Office(gateway)
    made = await office.make()
    gateway.counters.away = True
    answers = [await office.ask("DELETE", f"/keys/{made['id']}") for _ in range(8)]
    assert [answer.status for answer in answers].count(200) == 6 // replicas
    check_refusal(answers[-1])
    gateway.counters.away = False
    assert (await office.ask("GET", "/keys")).status == 200
