"""Batches from their creation to their end: what is run, told, charged and left."""

import json
from collections.abc import Callable
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
    BatchSimulation,
    Judge,
    make_line,
    make_lines,
    write_lines,
)


@in_virtual_time
async def test_results_are_in_input_order_and_each_line_runs_once() -> None:
    sim = await BatchSimulation.start()
    name = await sim.submit(make_lines(500))
    status = await sim.finish_batch(name)
    assert status["phase"] == "Completed"
    assert status["counts"] == {"total": 500, "completed": 500, "failed": 0, "sent": 500}
    assert status["modelId"] == "judge"
    output, errors = await sim.read_results(name)
    assert [line["custom_id"] for line in output] == [f"r-{n}" for n in range(500)]
    assert errors == []
    assert "errorFileName" not in status
    assert set(sim.judge.asked.values()) == {1}
    first = output[0]
    assert first["id"].startswith("batch_req_")
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    assert first["response"]["request_id"].startswith("req_")
    assert first["response"]["body"]["model"] == "judge"
    assert len({line["id"] for line in output}) == 500


@in_virtual_time
async def test_completed_lines_are_charged_and_the_rest_released() -> None:
    judge = Judge()
    judge.errors_of = lambda text, _: UpstreamRejected("no") if text.endswith("7") else None
    sim = await BatchSimulation.start(judge)
    name = await sim.submit(make_lines(100))
    status = await sim.finish_batch(name)
    assert status["counts"] == {"total": 100, "completed": 90, "failed": 10, "sent": 100}
    assert status["reservedMicros"] == 100 * PRICE
    assert status["chargedMicros"] == 90 * PRICE
    assert await sim.balance() == (90 * PRICE, 0)
    await sim.open_books("demo")
    assert await sim.balance() == (90 * PRICE, 0)
    output, errors = await sim.read_results(name)
    assert len(output) == 90
    [fault] = {json.dumps(line["response"]["body"]) for line in errors}
    assert json.loads(fault)["error"]["code"] == "invalid_value"
    assert all(line["response"]["status_code"] == 400 for line in errors)
    obj = await sim.kube.get(BATCHES, name)
    assert obj["metadata"]["finalizers"] == []
    assert FOLDED_LABEL in obj["metadata"]["labels"]
    assert not [key for key in sim.store.contents if key.startswith("batches/")]


@in_virtual_time
async def test_reserved_amount_is_in_the_status_while_it_runs() -> None:
    sim = await BatchSimulation.start(Judge(latency=10.0))
    name = await sim.submit(make_lines(10))
    await sim.wait(lambda: sim.batch_status(name).get("phase") == "InProgress")
    assert await sim.balance() == (0, 10 * PRICE)
    sim.counters.lose()
    await sim.open_books("demo")
    assert await sim.balance() == (0, 10 * PRICE)
    await sim.finish_batch(name)
    assert await sim.balance() == (10 * PRICE, 0)


@in_virtual_time
async def test_sweep_keeps_reservation_of_open_batch() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, _times: UpstreamBusy("away")
    sim = BatchSimulation(judge)
    operator = await sim.boot()
    name = await sim.submit(make_lines(3))
    await sim.pass_time(600)
    await operator.resync.sweep_holds()
    assert await sim.balance() == (0, 3 * PRICE)
    judge.errors_of = lambda _text, _times: None
    await sim.finish_batch(name)
    assert await sim.balance() == (3 * PRICE, 0)


@in_virtual_time
async def test_all_problems_are_listed_and_no_line_runs() -> None:
    sim = await BatchSimulation.start()
    good = make_line("a", "x")
    data = b"\n".join(
        [
            json.dumps(good).encode(),
            b"{nope",
            json.dumps({**good, "custom_id": "a"}).encode(),
            json.dumps({**good, "custom_id": "b", "method": "GET"}).encode(),
        ]
    )
    name = await sim.submit(data)
    status = await sim.finish_batch(name)
    assert status["phase"] == "Failed"
    assert [(e["code"], e["line"]) for e in status["errors"]] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("invalid_method", 4),
    ]
    assert status["errors"][1]["message"] == "Line 3 repeats the custom_id of line 1."
    assert status["counts"] == {"total": 4, "completed": 0, "failed": 0}
    assert status["chargedMicros"] == 0
    assert await sim.balance() == (0, 0)
    assert sim.judge.bodies == []


@pytest.mark.parametrize(
    ("prepare", "lines", "code"),
    [
        (lambda sim: sim.put_account(funds={"paidMicros": 9 * PRICE}), 10, "insufficient_balance"),
        (
            lambda sim: sim.put_key(limit={"micros": 9 * PRICE, "window": "lifetime"}),
            10,
            "credit_limit_exceeded",
        ),
        (
            lambda sim: sim.put_guardrail("grd-a", "key-a", allowedModels=["other"]),
            1,
            "model_not_allowed",
        ),
        (lambda sim: sim.kube.remove("gatewaymodels", "judge"), 1, "model_not_found"),
    ],
    ids=["balance", "limit of key", "guardrail", "unknown model"],
)
@in_virtual_time
async def test_batch_that_is_not_admitted_fails_and_no_line_runs(
    prepare: Callable[[BatchSimulation], None], lines: int, code: str
) -> None:
    sim = BatchSimulation()
    sim.put_key()
    prepare(sim)
    await sim.boot()
    guardrails = ["grd-a"] if code == "model_not_allowed" else None
    request = {"keyName": "key-a", "guardrailNames": guardrails}
    status = await sim.finish_batch(await sim.submit(make_lines(lines), **request))
    assert status["phase"] == "Failed"
    assert [e["code"] for e in status["errors"]] == [code]
    assert sim.judge.bodies == []
    if lines > 1:
        status = await sim.finish_batch(await sim.submit(make_lines(lines - 1), **request))
        assert status["phase"] == "Completed"


@in_virtual_time
async def test_cancelled_batch_reports_lines_it_ran() -> None:
    sim = await BatchSimulation.start(Judge(latency=1.0))
    name = await sim.submit(make_lines(200))
    await sim.wait(lambda: len(sim.judge.bodies) > 20)
    await sim.cancel_batch(name)
    status = await sim.finish_batch(name, seconds=60)
    assert status["phase"] == "Cancelled"
    assert "cancellingTime" in status
    counts = status["counts"]
    assert counts["completed"] + counts["failed"] == counts["total"] == 200
    assert counts["completed"] == counts["sent"] == len(sim.judge.bodies)
    (usage,) = sim.kube.list_objects("gatewayusages")
    sums = [usage["status"], *usage["status"]["rows"]]
    assert [(part["requests"], part["failed"]) for part in sums] == [(counts["sent"], 0)] * 2
    output, errors = await sim.read_results(name)
    assert {e["error"]["code"] for e in errors} == {"batch_cancelled"}
    assert all(e["response"] is None for e in errors)
    assert sorted(line["custom_id"] for line in output + errors) == sorted(
        f"r-{n}" for n in range(200)
    )
    assert await sim.balance() == (counts["completed"] * PRICE, 0)


@in_virtual_time
async def test_batch_that_is_cancelled_before_it_runs_has_no_files() -> None:
    sim = BatchSimulation()
    name = await sim.submit(make_lines(5))
    await sim.cancel_batch(name)
    await sim.boot()
    status = await sim.finish_batch(name)
    assert status["phase"] == "Cancelled"
    assert not {"outputFileName", "errorFileName", "startTime"} & status.keys()
    assert await sim.balance() == (0, 0)


@in_virtual_time
async def test_deleted_batch_is_ended_and_removed() -> None:
    sim = await BatchSimulation.start(Judge(latency=1.0))
    name = await sim.submit(make_lines(200))
    await sim.wait(lambda: len(sim.judge.bodies) > 20)
    await sim.kube.delete(BATCHES, name)
    await sim.finish_batch(name, seconds=60)
    await sim.wait(lambda: not sim.is_batch_there(name))
    spending, held = await sim.balance()
    assert (spending, held) == (len(sim.judge.bodies) * PRICE, 0)
    await sim.open_books("demo")
    assert await sim.balance() == (spending, 0)


@in_virtual_time
async def test_remaining_lines_expire_after_a_day() -> None:
    # ten minutes stand for the day: 86,400 looks at the clock tell no more
    with patch("gateway_core.batches.lifecycle.WINDOW_SECONDS", 600):
        await _expire()


async def _expire() -> None:
    judge = Judge(latency=1.0)
    judge.errors_of = lambda text, _: UpstreamLimited("full") if text > "text 5" else None
    sim = await BatchSimulation.start(judge)
    name = await sim.submit([make_line(f"r-{n}", f"text {n}") for n in range(10)])
    status = await sim.finish_batch(name, seconds=900)
    assert status["phase"] == "Expired"
    assert "finalizingTime" not in status
    output, errors = await sim.read_results(name)
    assert {e["error"]["code"] for e in errors} == {"batch_expired"}
    assert (len(output), len(errors)) == (6, 4)
    assert await sim.balance() == (len(output) * PRICE, 0)


@in_virtual_time
async def test_outage_of_the_provider_is_waited_out() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, _times: UpstreamUnclear("500")
    sim = await BatchSimulation.start(judge)
    name = await sim.submit(make_lines(100))
    await sim.pass_time(1200)
    # it is asked ever less
    assert sum(judge.asked.values()) < 400
    told = sim.batch_status(name)["conditions"][0]
    assert told["reason"] == "WaitingForProvider"
    assert told["message"].startswith("provider simulated: 500; the batch waits until 20")
    assert (name, "WaitingForProvider", told["message"]) in sim.kube.progress
    judge.errors_of = lambda _text, _times: None
    status = await sim.finish_batch(name)
    assert status["counts"] == {"total": 100, "completed": 100, "failed": 0, "sent": 100}


@in_virtual_time
async def test_refused_credentials_are_reported_and_waited_out() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, _times: UpstreamDenied("The provider refuses the credentials.")
    sim = await BatchSimulation.start(judge)
    name = await sim.submit(make_lines(5))
    await sim.pass_time(300)
    assert ("simulated", "CredentialsRefused") in [e[:2] for e in sim.kube.events]
    judge.errors_of = lambda _text, _times: None
    assert (await sim.finish_batch(name))["counts"]["completed"] == 5


@in_virtual_time
async def test_line_that_always_fails_ends_with_its_error() -> None:
    judge = Judge()
    judge.errors_of = lambda text, _: UpstreamUnclear("500") if text == "text 3" else None
    sim = await BatchSimulation.start(judge)
    name = await sim.submit(make_lines(500))
    status = await sim.finish_batch(name, seconds=600)
    assert status["counts"] == {"total": 500, "completed": 499, "failed": 1, "sent": 500}
    _, [error] = await sim.read_results(name)
    assert error["custom_id"] == "r-3"
    assert error["response"]["status_code"] == 502
    assert error["response"]["body"]["error"]["code"] == "upstream_error"


@in_virtual_time
async def test_limited_line_is_repeated_and_slows_down() -> None:
    judge = Judge()
    judge.errors_of = lambda _text, times: (
        UpstreamLimited("full", retry_after=1) if times < 1 else None
    )
    sim = await BatchSimulation.start(judge)
    name = await sim.submit(make_lines(50))
    status = await sim.finish_batch(name, seconds=300)
    assert status["counts"]["completed"] == 50
    assert set(judge.asked.values()) == {2}


@in_virtual_time
async def test_declared_rate_is_never_exceeded() -> None:
    sim = BatchSimulation(Judge(latency=0.2))
    sim.put_provider(requestsPerSecond=50, maxConcurrentRequests=30)
    await sim.boot()
    names = [await sim.submit(make_lines(200, prefix=p)) for p in "ab"]
    for name in names:
        await sim.finish_batch(name)
    times = sim.judge.times
    worst = max(sum(1 for t in times if a <= t < a + 1) for a in times)
    assert worst <= 50
    assert sim.judge.most_at_once <= 30
    # and it is used: 400 calls at 50 a second
    assert max(times) - min(times) < 8.8


@in_virtual_time
async def test_long_batch_does_not_delay_short_one() -> None:
    sim = BatchSimulation(Judge(latency=0.1))
    sim.put_provider(requestsPerSecond=20)
    await sim.boot()
    long = await sim.submit(make_lines(2000, prefix="long"))
    await sim.wait(lambda: len(sim.judge.bodies) > 50)
    begun = len(sim.judge.bodies)
    short = await sim.submit(make_lines(10, prefix="short"))
    await sim.finish_batch(short, seconds=20)
    assert len(sim.judge.bodies) - begun < 200
    assert sim.batch_status(long)["phase"] == "InProgress"


@in_virtual_time
async def test_writes_are_bounded() -> None:
    sim = BatchSimulation(Judge(latency=0.1))
    sim.put_provider(requestsPerSecond=5)
    await sim.boot()
    sim.kube.calls.clear()
    name = await sim.submit(make_lines(500))
    await sim.finish_batch(name, seconds=200)
    patches = [c for c in sim.kube.calls if c[0].startswith("patch") and c[1] == BATCHES]
    # 100 seconds: one each five, and those that begin and end it
    assert len(patches) <= 20 + 6


@in_virtual_time
async def test_batch_from_kubectl_is_adopted() -> None:
    sim = await BatchSimulation.start()
    file = await sim.put_input(write_lines(make_lines(5)))
    name = await sim.apply_batch(file["metadata"]["name"])
    status = await sim.finish_batch(name)
    assert status["phase"] == "Completed"
    assert await sim.balance() == (5 * PRICE, 0)
    assert any(BATCH_FINALIZER in o["metadata"]["finalizers"] for o in sim.batch_history[name][1:])


@pytest.mark.parametrize(
    ("changes", "request_", "code"),
    [
        ({"account": "other"}, {}, "file_not_found"),
        ({"purpose": "user_data"}, {}, "invalid_file_purpose"),
        ({}, {"keyName": "key-nobody"}, "invalid_value"),
        ({}, {"accountName": "nobody"}, "invalid_value"),
    ],
)
@in_virtual_time
async def test_batch_from_kubectl_is_validated(
    changes: dict[str, Any], request_: dict[str, Any], code: str
) -> None:
    sim = await BatchSimulation.start()
    file = await sim.put_input(
        write_lines(make_lines(5)),
        **{**changes, "account": request_.get("accountName", changes.get("account", "demo"))},
    )
    name = await sim.apply_batch(file["metadata"]["name"], **request_)
    status = await sim.finish_batch(name)
    assert [e["code"] for e in status["errors"]] == [code]
    assert sim.judge.bodies == []


@in_virtual_time
async def test_segments_of_batch_from_kubectl_are_ignored() -> None:
    sim = await BatchSimulation.start()
    mine = await sim.put_input(write_lines(make_lines(1)))
    other = await sim.put_input(write_lines(make_lines(3, prefix="secret")), account="other")
    name = await sim.apply_batch(
        mine["metadata"]["name"],
        segments=other["spec"]["request"]["segments"],
        fingerprint="f" * 64,
    )
    status = await sim.finish_batch(name)
    assert status["counts"]["total"] == 1
    assert [body["input"] for body in sim.judge.bodies] == ["text 0"]


@in_virtual_time
async def test_file_of_many_parts_is_read_by_name_also_while_it_is_being_deleted() -> None:
    sim = BatchSimulation()
    await sim.open_storage()
    data = write_lines(make_lines(4))
    file = await sim.put_input(data)
    request = {"inputFileName": file["metadata"]["name"], "segments": None}
    name = await sim.submit(b"", **request)
    await sim.kube.delete("gatewayfiles", file["metadata"]["name"])
    await sim.boot()
    status = await sim.finish_batch(name)
    assert (status["phase"], status["counts"]["completed"]) == ("Completed", 4)
