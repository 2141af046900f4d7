"""Two calls with one Idempotency-Key at once (contract §2.2): each is paid for by its own hold."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.api.limits import list_subjects
from gateway_core.billing.counters import AdmissionAnswer, AdmissionCall, Hold
from gateway_core.kube import retries
from gateway_core.storage.objects import StoreUnavailable
from tests.unit.apiserver.gateway import Answer, Gateway, body

LARGE = "a" * 9000
"""A prompt whose input goes to the object store, before its task is recorded."""


class HaltedPut:
    """Has the first input wait on its way to the store, then arrive or fail."""

    def __init__(self, gateway: Gateway, *, fails: bool = False, goes_on: bool = False) -> None:
        self.reached, self.goes_on, self._fails = asyncio.Event(), asyncio.Event(), fails
        if goes_on:
            self.goes_on.set()
        self._put = gateway.store.put
        gateway.store.put = self._wait  # type: ignore[method-assign]

    async def _wait(self, *args: Any) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            await self.goes_on.wait()
            if self._fails:
                raise StoreUnavailable("x")
        return await self._put(*args)


async def start_first(
    gateway: Gateway, sent: dict[str, Any], *, fails: bool = False
) -> tuple[asyncio.Task[Answer], HaltedPut]:
    """A call under the Idempotency-Key whose input is on its way to the store."""
    put = HaltedPut(gateway, fails=fails)
    first = asyncio.create_task(gateway.create(sent, idempotency_key="k"))
    await put.reached.wait()
    return first, put


async def held(gateway: Gateway) -> Counter[str]:
    """What is held, in all and by subject, as the counters have it."""
    return _add_up(await gateway.counters.list_holds("demo", 0))


def recorded(gateway: Gateway) -> Counter[str]:
    """What should be held, as the tasks in the record have it."""
    requests = [task["spec"]["request"] for task in gateway.kube.list_objects("gatewaytasks")]
    return _add_up([Hold("", r["reservedMicros"], list_subjects(r)) for r in requests])


async def start_waiting(
    gateway: Gateway, sent: dict[str, Any], key: str | None = None
) -> asyncio.Task[Answer]:
    """A call with the same Idempotency-Key that waits for the first."""
    asked, admit = list[AdmissionCall](), gateway.counters.admit
    waits = asyncio.Event()

    async def note(call: AdmissionCall) -> AdmissionAnswer:
        asked.append(call)
        if len(asked) > 1:
            waits.set()
        return await admit(call)

    gateway.counters.admit = note  # type: ignore[method-assign]
    options = {} if key is None else {"key": key}
    task = asyncio.create_task(gateway.create(sent, idempotency_key="k", **options))
    await waits.wait()
    assert gateway.task_count() == 0
    return task


def _add_up(holds: list[Hold]) -> Counter[str]:
    sums = Counter[str]()
    for hold in holds:
        for name in ("", *hold.subjects):
            sums[name] += hold.micros
    return sums


async def test_dearer_call_does_not_use_the_hold_of_the_first(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 600_000})
    first, put = await start_first(gateway, body(prompt=LARGE))
    dearer = body(prompt="b", duration_seconds=10)
    second = await start_waiting(gateway, dearer)
    put.goes_on.set()
    assert ((await first).status, (await second).status) == (202, 409)
    assert (await held(gateway))[""] == 500_000
    assert await held(gateway) == recorded(gateway)


async def test_call_of_a_spent_key_replays_without_a_hold_of_its_own(gateway: Gateway) -> None:
    spent = gateway.put_key("demo", limit={"micros": 0, "window": "weekly"})
    sent = body(prompt=LARGE)
    first, put = await start_first(gateway, sent)
    second = await start_waiting(gateway, sent, spent)
    put.goes_on.set()
    made = await first
    assert (await second).json == {**made.json, "task_replayed": True}
    assert await held(gateway) == recorded(gateway)
    assert set(recorded(gateway)) == {"", f"key/key-{gateway.key[3:11]}"}


async def test_waiting_call_goes_on_when_the_first_failed(gateway: Gateway) -> None:
    first, put = await start_first(gateway, body(prompt=LARGE), fails=True)
    second = await start_waiting(gateway, body(prompt="b", duration_seconds=10))
    put.goes_on.set()
    assert (await first).status == 503
    [hold] = await gateway.counters.list_holds("demo", 0)
    # as the sweeper does
    await gateway.counters.settle("demo", hold.task, 0, datetime.now(UTC))
    assert (await second).status == 202
    assert await held(gateway) == recorded(gateway)


async def test_wait_for_an_undecided_first_call_is_bounded(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GIVE_UP_SECONDS", 0.5)
    gateway.put_account("demo", requestsPerMinute=2)
    first, put = await start_first(gateway, body(prompt=LARGE))
    # counted once however often it asks, or the rate would be spent by it
    second = await gateway.create(body(duration_seconds=10), idempotency_key="k")
    assert (second.status, second.headers["retry-after"]) == (503, "1")
    assert gateway.task_count() == 0
    put.goes_on.set()
    assert (await first).status == 202


async def test_failed_equal_call_leaves_the_hold_to_the_task(
    gateway: Gateway,
) -> None:
    sent = body(prompt=LARGE)
    first, put = await start_first(gateway, sent, fails=True)
    assert (await gateway.create(sent, idempotency_key="k")).status == 202
    put.goes_on.set()
    assert (await first).status == 503
    assert (await held(gateway))[""] == 500_000
    assert await held(gateway) == recorded(gateway)


async def test_repetition_after_a_failure_uses_the_hold_that_is_left(
    gateway: Gateway,
) -> None:
    gateway.put_account("demo", funds={"paidMicros": 500_000})
    sent = body(prompt=LARGE)
    HaltedPut(gateway, fails=True, goes_on=True)
    assert (await gateway.create(sent, idempotency_key="k")).status == 503
    assert await gateway.held() == 500_000
    assert (await gateway.create(sent, idempotency_key="k")).status == 202
    assert await held(gateway) == recorded(gateway)


async def test_failed_call_without_a_key_releases_its_hold(gateway: Gateway) -> None:
    HaltedPut(gateway, fails=True, goes_on=True)
    assert (await gateway.create(body(prompt=LARGE))).status == 503
    assert await gateway.held() == 0
