"""Intake stops while the record is full: creates are 503, everything else goes on."""

import asyncio
from typing import Any

import pytest

from gateway_core.admission.intake import FULL_SECONDS, LOOK_SECONDS, TRUSTED_SECONDS, Intake
from gateway_core.api.errors import Unavailable
from gateway_core.kube.errors import NoSpaceLeft
from tests.fakes.clock import in_virtual_time
from tests.fakes.intake import FakeIntakeStop
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Answer, Gateway, call

CREATES = [
    ("/api/v1/sim/reference_to_video", "{}"),
    ("/api/v1/files", "{}"),
    ("/api/v1/files/prepare", "{}"),
    ("/v1/files", ""),
    ("/v1/uploads", "{}"),
    ("/v1/uploads/upload_aaaaaaaaaaaaaaaaaaaaaaaaaa/parts", ""),
    ("/v1/uploads/upload_aaaaaaaaaaaaaaaaaaaaaaaaaa/complete", "{}"),
    ("/v1/batches", "{}"),
    ("/api/v1/management/keys", "{}"),
    ("/api/v1/management/guardrails", "{}"),
]


def is_open(intake: Intake) -> bool:
    try:
        intake.check()
    except Unavailable:
        return False
    return True


def count_clock() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_refused_write_stops_intake_for_a_moment() -> None:
    intake = Intake(clock=count_clock)
    assert is_open(intake)
    intake.note_full()
    assert intake.stops == {"maintenance": False, "quota": False, "refused": True}
    await asyncio.sleep(FULL_SECONDS - 0.1)
    assert not is_open(intake)
    await asyncio.sleep(0.2)
    assert is_open(intake)


@in_virtual_time
async def test_operators_mark_stops_intake_until_it_is_cleared() -> None:
    intake, stop = Intake(clock=count_clock), FakeIntakeStop()
    following = asyncio.create_task(intake.follow(stop))
    await asyncio.sleep(1)
    assert is_open(intake)
    await stop.set(10_000)
    await asyncio.sleep(LOOK_SECONDS)
    assert not is_open(intake)
    assert intake.stops["quota"]
    await asyncio.sleep(10 * TRUSTED_SECONDS)
    assert not is_open(intake)
    await stop.clear()
    await asyncio.sleep(LOOK_SECONDS)
    assert is_open(intake)
    following.cancel()


@in_virtual_time
async def test_mark_that_cannot_be_read_is_trusted_for_a_time() -> None:
    intake, stop = Intake(clock=count_clock), FakeIntakeStop()
    await stop.set(10_000)
    following = asyncio.create_task(intake.follow(stop))
    await asyncio.sleep(1)
    stop.away = True
    await asyncio.sleep(TRUSTED_SECONDS - LOOK_SECONDS)
    assert not is_open(intake)
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert is_open(intake)
    following.cancel()


def check_refusal(path: str, answer: Answer) -> None:
    assert answer.status == 503, (path, answer.body)
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    if path.startswith("/api"):
        assert isinstance(answer.json["error"], str), path
    else:
        assert answer.json["error"]["code"] == "service_unavailable", path


@pytest.mark.parametrize(("path", "body"), CREATES)
async def test_create_is_refused_in_its_dialect(gateway: Gateway, path: str, body: str) -> None:
    gateway.intake.note_full()
    headers = [("Authorization", f"Bearer {gateway.key}"), ("Content-Type", "application/json")]
    check_refusal(
        path, await call(gateway.app, "POST", path, content=body.encode(), headers=headers)
    )
    assert gateway.kube.calls == []


async def test_only_maintenance_stops_calls_that_write_no_object() -> None:
    for maintenance in (False, True):
        gateway = Gateway(maintenance=maintenance)
        gateway.intake.note_full()
        headers = [("Authorization", f"Bearer {gateway.key}"), ("Content-Type", "application/json")]
        answer = await call(gateway.app, "POST", "/v1/moderations", content=b"{}", headers=headers)
        assert answer.status == (503 if maintenance else 400)


async def test_reads_and_cancels_go_on(gateway: Gateway) -> None:
    gateway.intake.note_full()
    headers = [("Authorization", f"Bearer {gateway.key}")]
    for path in ("/v1/files", "/v1/batches", "/api/v1/me", "/api/v1/me/balance"):
        assert (await call(gateway.app, "GET", path, headers=headers)).status == 200, path
    unknown = "/v1/batches/batch_aaaaaaaaaaaaaaaaaaaaaaaaaa/cancel"
    assert (await call(gateway.app, "POST", unknown, headers=headers)).status == 404


async def test_task_refused_by_a_full_record_is_503_and_holds_nothing(gateway: Gateway) -> None:
    gateway.kube.order_faults("create", *[Fault(NoSpaceLeft("no space")) for _ in range(20)])
    before: Any = (await gateway.get("/api/v1/me/balance")).json
    answer = await gateway.create()
    check_refusal("/api/v1/sim/reference_to_video", answer)
    assert gateway.kube.list_objects("gatewaytasks") == []
    assert (await gateway.get("/api/v1/me/balance")).json == before
