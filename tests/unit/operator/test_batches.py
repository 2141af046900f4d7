"""Batches from their creation to their end: what is run, told, charged and left."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from gateway_core.api.ids import BATCH_FINALIZER, FOLDED_LABEL
from gateway_core.providers.upstream import (
    UpstreamBusy,
    UpstreamDenied,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamUnclear,
)
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.batch_harness import (
    BATCHES,
    PRICE,
    BatchStage,
    Judge,
    make_line,
    make_lines,
    write_lines,
)


@in_virtual_time
async def test_every_line_is_run_once_and_told_in_the_order_of_the_input() -> None:
    stage = BatchStage()
    await stage.boot()
    name = await stage.submit(make_lines(500))
    status = await stage.finish_batch(name)
    assert status["phase"] == "Completed"
    assert status["counts"] == {"total": 500, "completed": 500, "failed": 0, "sent": 500}
    assert status["modelId"] == "judge"
    output, errors = await stage.read_results(name)
    assert [line["custom_id"] for line in output] == [f"r-{n}" for n in range(500)]
    assert errors == []
    assert "errorFileName" not in status
    assert set(stage.judge.asked.values()) == {1}
    first = output[0]
    assert first["id"].startswith("batch_req_")
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    assert first["response"]["request_id"].startswith("req_")
    assert first["response"]["body"]["model"] == "judge"
    assert len({line["id"] for line in output}) == 500


@in_virtual_time
async def test_what_completed_is_charged_and_the_rest_is_released() -> None:
    judge = Judge()
    judge.errors_of = lambda text, _: UpstreamRejected("no") if text.endswith("7") else None
    stage = BatchStage(judge)
    await stage.boot()
    name = await stage.submit(make_lines(100))
    status = await stage.finish_batch(name)
    assert status["counts"] == {"total": 100, "completed": 90, "failed": 10, "sent": 100}
    assert status["reservedMicros"] == 100 * PRICE
    assert status["chargedMicros"] == 90 * PRICE
    assert await stage.balance() == (90 * PRICE, 0)
    await stage.open_books("demo")
    assert await stage.balance() == (90 * PRICE, 0)
    output, errors = await stage.read_results(name)
    assert len(output) == 90
    [fault] = {json.dumps(line["response"]["body"]) for line in errors}
    assert json.loads(fault)["error"]["code"] == "invalid_value"
    assert all(line["response"]["status_code"] == 400 for line in errors)
    obj = await stage.kube.get(BATCHES, name)
    assert obj["metadata"]["finalizers"] == []
    assert FOLDED_LABEL in obj["metadata"]["labels"]
    assert not [key for key in stage.store.contents if key.startswith("batches/")]


@in_virtual_time
async def test_the_money_stands_in_the_record_while_it_runs() -> None:
    stage = BatchStage(Judge(latency=10.0))
    await stage.boot()
    name = await stage.submit(make_lines(10))
    await stage.wait(lambda: stage.batch_status(name).get("phase") == "InProgress")
    assert await stage.balance() == (0, 10 * PRICE)
    stage.counters.lose()
    await stage.open_books("demo")
    assert await stage.balance() == (0, 10 * PRICE)
    await stage.finish_batch(name)
    assert await stage.balance() == (10 * PRICE, 0)


@in_virtual_time
async def test_a_hold_is_nobodys_to_end_while_its_batch_is_open() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, _times: UpstreamBusy("away")
    stage = BatchStage(judge)
    operator = await stage.boot()
    name = await stage.submit(make_lines(3))
    await stage.pass_time(600)
    await operator.resync.sweep_holds()
    assert await stage.balance() == (0, 3 * PRICE)
    judge.errors_of = lambda _text, _times: None
    await stage.finish_batch(name)
    assert await stage.balance() == (3 * PRICE, 0)


@in_virtual_time
async def test_all_problems_of_a_file_are_told_and_nothing_is_run() -> None:
    stage = BatchStage()
    await stage.boot()
    good = make_line("a", "x")
    data = b"\n".join(
        [
            json.dumps(good).encode(),
            b"{nope",
            json.dumps({**good, "custom_id": "a"}).encode(),
            json.dumps({**good, "custom_id": "b", "method": "GET"}).encode(),
        ]
    )
    name = await stage.submit(data)
    status = await stage.finish_batch(name)
    assert status["phase"] == "Failed"
    assert [(e["code"], e["line"]) for e in status["errors"]] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("invalid_method", 4),
    ]
    assert status["errors"][1]["message"] == "Line 3 repeats the custom_id of line 1."
    assert status["counts"] == {"total": 4, "completed": 0, "failed": 0}
    assert status["chargedMicros"] == 0
    assert await stage.balance() == (0, 0)
    assert stage.judge.bodies == []


@in_virtual_time
async def test_an_account_that_cannot_pay_for_all_lines_pays_for_none() -> None:
    stage = BatchStage()
    stage.put_account(funds={"paidMicros": 9 * PRICE})
    await stage.boot()
    status = await stage.finish_batch(await stage.submit(make_lines(10)))
    assert status["phase"] == "Failed"
    assert [e["code"] for e in status["errors"]] == ["insufficient_balance"]
    status = await stage.finish_batch(await stage.submit(make_lines(9)))
    assert status["phase"] == "Completed"


@in_virtual_time
async def test_a_key_that_may_not_spend_as_much_fails_the_batch() -> None:
    stage = BatchStage()
    stage.put_key(limit={"micros": 5 * PRICE, "window": "lifetime"})
    await stage.boot()
    name = await stage.submit(make_lines(6), keyName="key-a")
    status = await stage.finish_batch(name)
    assert [e["code"] for e in status["errors"]] == ["credit_limit_exceeded"]
    name = await stage.submit(make_lines(5), keyName="key-a")
    assert (await stage.finish_batch(name))["phase"] == "Completed"


@in_virtual_time
async def test_a_guardrail_that_does_not_allow_the_model_fails_the_batch() -> None:
    stage = BatchStage()
    stage.put_key()
    stage.put_guardrail("grd-strict", "key-a", allowedModels=["other"])
    await stage.boot()
    name = await stage.submit(make_lines(2), keyName="key-a", guardrailNames=["grd-strict"])
    status = await stage.finish_batch(name)
    assert [e["code"] for e in status["errors"]] == ["model_not_allowed"]
    assert stage.judge.bodies == []


@in_virtual_time
async def test_an_unknown_model_fails_the_batch() -> None:
    stage = BatchStage()
    await stage.boot()
    name = await stage.submit([make_line("a", "x", model="nobody")])
    status = await stage.finish_batch(name)
    assert [(e["code"], e["param"], e["line"]) for e in status["errors"]] == [
        ("model_not_found", "body.model", 1)
    ]


@in_virtual_time
async def test_a_cancelled_batch_tells_what_it_has_run() -> None:
    stage = BatchStage(Judge(latency=1.0))
    await stage.boot()
    name = await stage.submit(make_lines(200))
    await stage.wait(lambda: len(stage.judge.bodies) > 20)
    await stage.cancel_batch(name)
    status = await stage.finish_batch(name, seconds=60)
    assert status["phase"] == "Cancelled"
    assert "cancellingTime" in status
    counts = status["counts"]
    assert counts["completed"] + counts["failed"] == counts["total"] == 200
    assert counts["completed"] == counts["sent"] == len(stage.judge.bodies)
    (usage,) = stage.kube.list_objects("gatewayusages")
    sums = [usage["status"], *usage["status"]["rows"]]
    assert [(part["requests"], part["failed"]) for part in sums] == [(counts["sent"], 0)] * 2
    output, errors = await stage.read_results(name)
    assert {e["error"]["code"] for e in errors} == {"batch_cancelled"}
    assert all(e["response"] is None for e in errors)
    assert sorted(line["custom_id"] for line in output + errors) == sorted(
        f"r-{n}" for n in range(200)
    )
    assert await stage.balance() == (counts["completed"] * PRICE, 0)


@in_virtual_time
async def test_a_batch_that_is_cancelled_before_it_runs_has_no_files() -> None:
    stage = BatchStage()
    name = await stage.submit(make_lines(5))
    await stage.cancel_batch(name)
    await stage.boot()
    status = await stage.finish_batch(name)
    assert status["phase"] == "Cancelled"
    assert not {"outputFileName", "errorFileName", "startTime"} & status.keys()
    assert await stage.balance() == (0, 0)


@in_virtual_time
async def test_a_deleted_batch_is_brought_to_its_end_and_goes() -> None:
    stage = BatchStage(Judge(latency=1.0))
    await stage.boot()
    name = await stage.submit(make_lines(200))
    await stage.wait(lambda: len(stage.judge.bodies) > 20)
    await stage.kube.delete(BATCHES, name)
    await stage.finish_batch(name, seconds=60)
    await stage.wait(lambda: not stage.is_batch_there(name))
    spending, held = await stage.balance()
    assert (spending, held) == (len(stage.judge.bodies) * PRICE, 0)
    await stage.open_books("demo")
    assert await stage.balance() == (spending, 0)


@in_virtual_time
async def test_after_a_day_what_is_left_has_expired() -> None:
    # ten minutes stand for the day: 86,400 looks at the clock tell no more
    with patch("gateway_core.batches.lifecycle.WINDOW_SECONDS", 600):
        await _expire()


async def _expire() -> None:
    judge = Judge(latency=1.0)
    judge.errors_of = lambda text, _: UpstreamLimited("full") if text > "text 5" else None
    stage = BatchStage(judge)
    await stage.boot()
    name = await stage.submit([make_line(f"r-{n}", f"text {n}") for n in range(10)])
    status = await stage.finish_batch(name, seconds=900)
    assert status["phase"] == "Expired"
    assert "finalizingTime" not in status
    output, errors = await stage.read_results(name)
    assert {e["error"]["code"] for e in errors} == {"batch_expired"}
    assert (len(output), len(errors)) == (6, 4)
    assert await stage.balance() == (len(output) * PRICE, 0)


@in_virtual_time
async def test_an_outage_of_the_provider_is_waited_out() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, _times: UpstreamUnclear("500")
    stage = BatchStage(judge)
    await stage.boot()
    name = await stage.submit(make_lines(300))
    await stage.pass_time(3600)
    # it is asked ever less
    assert sum(judge.asked.values()) < 1000
    told = stage.batch_status(name)["conditions"][0]
    assert told["reason"] == "ProviderUnavailable"
    judge.errors_of = lambda _text, _times: None
    status = await stage.finish_batch(name)
    assert status["counts"] == {"total": 300, "completed": 300, "failed": 0, "sent": 300}


@in_virtual_time
async def test_refused_credentials_are_reported_and_waited_out() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, _times: UpstreamDenied("The provider refuses the credentials.")
    stage = BatchStage(judge)
    await stage.boot()
    name = await stage.submit(make_lines(5))
    await stage.pass_time(300)
    assert ("simulated", "CredentialsRefused") in [e[:2] for e in stage.kube.events]
    judge.errors_of = lambda _text, _times: None
    assert (await stage.finish_batch(name))["counts"]["completed"] == 5


@in_virtual_time
async def test_a_line_that_alone_fails_for_ever_ends_with_its_error() -> None:
    judge = Judge()
    judge.errors_of = lambda text, _: UpstreamUnclear("500") if text == "text 3" else None
    stage = BatchStage(judge)
    await stage.boot()
    name = await stage.submit(make_lines(5000))
    status = await stage.finish_batch(name, seconds=600)
    assert status["counts"] == {"total": 5000, "completed": 4999, "failed": 1, "sent": 5000}
    _, [error] = await stage.read_results(name)
    assert error["custom_id"] == "r-3"
    assert error["response"]["status_code"] == 502
    assert error["response"]["body"]["error"]["code"] == "upstream_error"


@in_virtual_time
async def test_a_429_is_repeated_and_slows_down() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, times: (
        UpstreamLimited("full", retry_after=1) if times < 1 else None
    )
    stage = BatchStage(judge)
    await stage.boot()
    name = await stage.submit(make_lines(50))
    status = await stage.finish_batch(name, seconds=300)
    assert status["counts"]["completed"] == 50
    assert set(judge.asked.values()) == {2}


@in_virtual_time
async def test_what_is_declared_is_never_exceeded() -> None:
    stage = BatchStage(Judge(latency=0.2))
    stage.put_provider(requestsPerSecond=50, maxConcurrentRequests=30)
    await stage.boot()
    names = [await stage.submit(make_lines(200, prefix=p)) for p in "ab"]
    for name in names:
        await stage.finish_batch(name)
    times = stage.judge.times
    worst = max(sum(1 for t in times if a <= t < a + 1) for a in times)
    assert worst <= 50
    assert stage.judge.most_at_once <= 30
    # and it is used: 400 calls at 50 a second
    assert max(times) - min(times) < 8.8


@in_virtual_time
async def test_a_long_batch_holds_up_no_short_one() -> None:
    stage = BatchStage(Judge(latency=0.1))
    stage.put_provider(requestsPerSecond=20)
    await stage.boot()
    long = await stage.submit(make_lines(2000, prefix="long"))
    await stage.wait(lambda: len(stage.judge.bodies) > 50)
    begun = len(stage.judge.bodies)
    short = await stage.submit(make_lines(10, prefix="short"))
    await stage.finish_batch(short, seconds=20)
    assert len(stage.judge.bodies) - begun < 200
    assert stage.batch_status(long)["phase"] == "InProgress"
    await stage.kill()


@in_virtual_time
async def test_writes_are_bounded() -> None:
    stage = BatchStage(Judge(latency=0.1))
    stage.put_provider(requestsPerSecond=50)
    await stage.boot()
    stage.kube.calls.clear()
    name = await stage.submit(make_lines(5000))
    await stage.finish_batch(name, seconds=200)
    patches = [c for c in stage.kube.calls if c[0].startswith("patch") and c[1] == BATCHES]
    # 100 seconds: one each five, and those that begin and end it
    assert len(patches) <= 20 + 6


@in_virtual_time
async def test_one_that_was_made_with_kubectl_is_taken_in() -> None:
    stage = BatchStage()
    await stage.boot()
    file = await stage.put_input(write_lines(make_lines(5)))
    name = await stage.apply_batch(file["metadata"]["name"])
    status = await stage.finish_batch(name)
    assert status["phase"] == "Completed"
    assert await stage.balance() == (5 * PRICE, 0)
    assert any(
        BATCH_FINALIZER in o["metadata"]["finalizers"] for o in stage.batch_history[name][1:]
    )


@pytest.mark.parametrize(
    ("changes", "request_", "code"),
    [
        ({"account": "other"}, {}, "file_not_found"),
        ({"purpose": "user_data"}, {}, "invalid_file_purpose"),
        ({}, {"keyName": "key-nobody"}, "invalid_value"),
        ({}, {"accountName": "nobody"}, "invalid_value"),
    ],
)
def test_one_that_was_made_with_kubectl_is_held_to_the_rules(
    changes: dict[str, Any], request_: dict[str, Any], code: str
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = BatchStage()
        await stage.boot()
        file = await stage.put_input(
            write_lines(make_lines(5)),
            **{**changes, "account": request_.get("accountName", changes.get("account", "demo"))},
        )
        name = await stage.apply_batch(file["metadata"]["name"], **request_)
        status = await stage.finish_batch(name)
        assert [e["code"] for e in status["errors"]] == [code]
        assert stage.judge.bodies == []

    run()


@in_virtual_time
async def test_segments_that_somebody_wrote_down_are_not_believed() -> None:
    stage = BatchStage()
    await stage.boot()
    mine = await stage.put_input(write_lines(make_lines(1)))
    other = await stage.put_input(write_lines(make_lines(3, prefix="secret")), account="other")
    name = await stage.apply_batch(
        mine["metadata"]["name"],
        segments=other["spec"]["request"]["segments"],
        fingerprint="f" * 64,
    )
    status = await stage.finish_batch(name)
    assert status["counts"]["total"] == 1
    assert [body["input"] for body in stage.judge.bodies] == ["text 0"]


@in_virtual_time
async def test_a_file_of_many_parts_is_read_by_name_also_while_it_is_being_deleted() -> None:
    stage = BatchStage()
    await stage.open_storage()
    data = write_lines(make_lines(4))
    file = await stage.put_input(data)
    request = {"inputFileName": file["metadata"]["name"], "segments": None}
    name = await stage.submit(b"", **request)
    await stage.kube.delete("gatewayfiles", file["metadata"]["name"])
    await stage.boot()
    status = await stage.finish_batch(name)
    assert (status["phase"], status["counts"]["completed"]) == ("Completed", 4)
