"""The report of usage by REST: which days, what is told apart, and nothing twice (contract §9)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from gateway_core.billing.charges import Charge, read_charge
from gateway_core.billing.reports import UsageDay, UsageReader, read_usage_day
from gateway_core.billing.usage import add_charges
from gateway_core.kube.repository import ListLimiter
from tests.unit.apiserver.gateway import COMPLETED, Gateway
from tests.unit.apiserver.management import Office

pytestmark = pytest.mark.usefixtures("one_day")


def day(back: int) -> str:
    return (datetime.now(UTC).date() - timedelta(days=back)).isoformat()


def describe_row(key: str | None, model: str | None, micros: int, **more: Any) -> dict[str, Any]:
    names = {"keyName": key, "modelId": model, "operation": "sim/reference_to_video"}
    kept = {name: value for name, value in names.items() if value is not None}
    return {**kept, "requests": 1, "chargedMicros": micros, **more}


@pytest.fixture
async def office(gateway: Gateway) -> Office:
    return Office(gateway)


def put_day(office: Office, when: str, *rows: dict[str, Any], pending: Any = ()) -> dict[str, Any]:
    obj = {
        "metadata": {
            "name": f"demo-{when}",
            "labels": {"modelgateway.dev/account": "demo"},
        },
        "spec": {"accountName": "demo", "day": when},
        "status": {"rows": list(rows), "pending": list(pending)},
    }
    return office.gateway.kube.put("gatewayusages", obj)


def put_task(office: Office, name: str, micros: int, when: str) -> dict[str, Any]:
    status = {**COMPLETED, "chargedMicros": micros, "completionTime": f"{when}T00:00:00Z"}
    obj = office.gateway.put_task(name, keyName="key-a", status=status)
    labelled = {**obj["metadata"], "labels": {"modelgateway.dev/account": "demo"}}
    return office.gateway.kube.put("gatewaytasks", {**obj, "metadata": labelled})


def make_reader(office: Office) -> UsageReader:
    return UsageReader(office.gateway.kube, office.gateway.store, ListLimiter())


async def report(office: Office, query: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await office.show("/usage", query))["data"]
    return rows


async def test_usage_is_summed_by_each_dimension(office: Office) -> None:
    put_day(
        office,
        day(1),
        describe_row("key-a", "m1", 10_000, inputTokens=3, outputTokens=4),
        describe_row("key-a", "m2", 25_000),
        describe_row(None, None, 5),
    )
    put_day(office, day(0), describe_row("key-a", "m1", 100_000), describe_row("key-b", "m1", 1))
    assert await report(office) == [
        {
            "requests": 5,
            "input_tokens": 3,
            "output_tokens": 4,
            "cost_cents": 13,
            "cost_micros": 135_006,
        }
    ]
    by_day = await report(office, "group_by=day")
    assert [(row["day"], row["cost_micros"]) for row in by_day] == [
        (day(1), 35_005),
        (day(0), 100_001),
    ]
    by_key = await report(office, "group_by=key")
    assert [(row["key_id"], row["cost_micros"]) for row in by_key] == [
        (None, 5),
        ("key_a", 135_000),
        ("key_b", 1),
    ]
    one = await report(office, "group_by=model,operation&key_id=key_a")
    assert [(row["model"], row["operation"], row["requests"]) for row in one] == [
        ("m1", "sim/reference_to_video", 2),
        ("m2", "sim/reference_to_video", 1),
    ]
    assert await report(office, "group_by=model&group_by=operation&key_id=key_a") == one
    for unknown in ("key_nobody", "key-a", ""):
        assert await report(office, f"group_by=day&key_id={unknown}") == []


async def test_start_and_end_days_are_inclusive(office: Office) -> None:
    for back in range(40):
        put_day(office, day(back), describe_row("key-a", "m", 1))
    assert (await report(office))[0]["requests"] == 30
    for query, days in (
        (f"start={day(39)}&end={day(0)}", 40),
        (f"start={day(3)}", 4),
        (f"end={day(35)}", 5),
        (f"start={day(5)}&end={day(5)}", 1),
        (f"start={day(5)}T00:00:00Z&end={day(3)}T00:00:00Z", 2),
        (f"start={day(5)}T23:00:00-02:00&end={day(3)}T00:00:01Z", 2),
    ):
        assert (await report(office, query))[0]["requests"] == days, query
    shown = await office.show("/usage", f"start={day(3)}&group_by=model,day")
    assert {name: shown[name] for name in ("object", "start", "end", "group_by")} == {
        "object": "usage",
        "start": day(3),
        "end": day(0),
        "group_by": ["day", "model"],
    }


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("start=2026-02-30", "start"),
        ("start=2026-11-21T00:00:00", "start"),
        ("end=", "end"),
        ("start=2026-11-21&end=2026-11-20", "start"),
        ("start=2026-01-01&end=2026-04-04", "end"),
        ("group_by=colour", "group_by"),
        ("group_by=key,key,key,key,key", "group_by"),
        ("key_id=a&key_id=b", "key_id"),
        ("limit=5", "limit"),
    ],
)
async def test_bad_queries_are_400(office: Office, query: str, name: str) -> None:
    answer = await office.ask("GET", "/usage", query=query)
    assert answer.status == 400
    assert list(answer.json["errors"]) == [name]


async def test_usage_covers_at_most_93_days(office: Office) -> None:
    assert (
        await office.ask("GET", "/usage", query="start=2026-01-01&end=2026-04-03")
    ).status == 200
    assert (await office.ask("GET", "/usage", query="end=0001-01-01")).status == 200


async def test_ended_call_is_in_usage_at_once_and_once(office: Office) -> None:
    task = put_task(office, "task_a", 700, day(0))
    put_task(office, "task_b", 40, day(50))
    assert (await report(office))[0]["cost_micros"] == 700
    named = {"name": "task-a", "uid": task["metadata"]["uid"]}
    put_day(office, day(0), describe_row("key-a", "m", 700), pending=[named])
    assert (await report(office))[0]["cost_micros"] == 700
    labels = {**task["metadata"]["labels"], "modelgateway.dev/folded": "x"}
    metadata = {**task["metadata"], "labels": labels}
    office.gateway.kube.put("gatewaytasks", {**task, "metadata": metadata})
    put_day(office, day(0), describe_row("key-a", "m", 700))
    assert (await report(office))[0]["cost_micros"] == 700
    assert (await report(office, "group_by=key"))[0]["key_id"] == "key_a"


async def test_archived_days_are_read_once_from_store(
    office: Office,
) -> None:
    for back in (60, 20, 10):
        moved = put_day(office, day(back), describe_row("key-a", "m", back))
        meta = moved["metadata"]
        key = f"usage/demo/{day(back)}.{meta['uid']}.json"
        await office.gateway.store.put(key, orjson.dumps(moved))
        if back != 10:
            # the last one has been kept, and its object is not gone yet
            office.gateway.kube.remove("gatewayusages", meta["name"])
    by_day = await report(office, f"group_by=day&start={day(30)}")
    assert [(row["day"], row["cost_micros"]) for row in by_day] == [(day(20), 20), (day(10), 10)]
    assert (await report(office, f"start={day(60)}"))[0]["cost_micros"] == 90


async def test_archived_day_is_parsed_once_and_changed_days_anew(office: Office) -> None:
    reader, today = make_reader(office), datetime.now(UTC).date()
    moved = put_day(office, day(20), describe_row("key-a", "m", 20))
    key = f"usage/demo/{day(20)}.{moved['metadata']['uid']}.json"
    await office.gateway.store.put(key, orjson.dumps(moved))
    office.gateway.kube.remove("gatewayusages", moved["metadata"]["name"])
    for micros in (5, 7):
        put_day(office, day(0), describe_row("key-a", "m", micros))
        lines = await reader.read("demo", today - timedelta(30), today)
        assert [line.micros for line in lines] == [micros, 20]
        await office.gateway.store.put(key, b"is read no more")


def find_day(obj: dict[str, Any]) -> UsageDay:
    found = read_usage_day(obj)
    assert found is not None
    return found


async def test_lines_are_the_same_of_known_days_and_owed_charges(office: Office) -> None:
    reader, today = make_reader(office), datetime.now(UTC).date()
    owed = put_task(office, "task_a", 700, day(0))
    named = put_task(office, "task_c", 9, day(0))
    added = put_task(office, "task_b", 40, day(0))
    labels = {**added["metadata"]["labels"], "modelgateway.dev/folded": "x"}
    metadata = {**added["metadata"], "labels": labels}
    office.gateway.kube.put("gatewaytasks", {**added, "metadata": metadata})
    pending = [{"name": "task-c", "uid": named["metadata"]["uid"]}]
    known = find_day(put_day(office, day(0), describe_row("key-a", "m", 5), pending=pending))
    old = find_day(put_day(office, day(9), describe_row("key-a", "m", 3)))
    listed = list(await reader.read("demo", today, today))
    assert sorted(line.micros for line in listed) == [5, 700]
    charges = [read_charge(owed), read_charge(named)]
    found = await reader.read_known("demo", today, today, [known, old], charges, 1)
    assert list(found) == listed
    assert [line.micros for line in found.sum("key")] == [705]


async def test_usage_of_other_accounts_is_not_shown(office: Office) -> None:
    put_day(office, day(0), describe_row("key-a", "m", 5))
    put_task(office, "task_a", 700, day(0))
    answer = await office.ask("GET", "/usage", query="key_id=key_a", key=office.other_key)
    assert answer.json["data"][0]["requests"] == 0


async def test_outage_of_kubernetes_or_store_is_503(office: Office) -> None:
    office.gateway.store.away = True
    assert (await office.ask("GET", "/usage")).status == 503
    office.gateway.store.away = False
    office.gateway.kube.away = True
    assert (await office.ask("GET", "/usage")).status == 503


async def test_keys_beyond_the_rows_of_a_day_are_grouped_by_cost(
    office: Office,
) -> None:
    charges = [
        Charge(
            name=f"t{n}",
            uid=str(n),
            account="demo",
            day=day(0),
            minute=1,
            micros=10_000 + n % 300,
            failed=False,
            key_name=f"key-{n % 300}",
            model_id=f"m{n // 300}",
            operation="sim/a",
            subjects=(f"key/key-{n % 300}",),
        )
        for n in range(600)
    ]
    usage = put_day(office, day(0))
    status = add_charges({}, day(0), charges, datetime.now(UTC))
    office.gateway.kube.put("gatewayusages", {**usage, "status": status})
    for n in (5, 250):
        (line,) = await report(office, f"key_id=key_{n}")
        assert line["cost_micros"] == 2 * (10_000 + n)
    for query in ("group_by=key", "group_by=day,key"):
        lines = await report(office, query)
        costs = {line["key_id"]: line["cost_micros"] for line in lines}
        assert costs == {None: 0} | {f"key_{n}": 2 * (10_000 + n) for n in range(300)}
        assert sum(line["requests"] for line in lines) == 600
    (total,) = await report(office)
    assert total["cost_micros"] == sum(charge.micros for charge in charges)
