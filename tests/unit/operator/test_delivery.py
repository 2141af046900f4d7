"""Callbacks of tasks that have ended: sent once each, by the schedule, whatever happens between."""

import asyncio
import base64
import hashlib
import hmac
import json
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import TASK_FINALIZER, name_to_id
from gateway_core.callbacks.schedule import SCHEDULE
from gateway_core.callbacks.signing import make_message_id
from gateway_core.kube.errors import KubernetesUnavailable, WriteConflict
from gateway_core.tasks.archive import read_archived
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.callbacks.signing import (
    READ_SECONDS,
    UNUSED_SECONDS,
    AwaitingSecret,
    Keyring,
)
from tests.fakes.callbacks import make_answer
from tests.fakes.clock import in_virtual_time
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.environment import read_now
from tests.unit.operator.harness import QUOTE, TASKS, WEBHOOK_SECRET, Operator, Simulation

URL = "https://hooks.example.com/done?token=1"
DAY = 24 * 3600


async def begin(**account: Any) -> tuple[Simulation, Operator]:
    sim = Simulation()
    if account:
        sim.put_account(**account)
    return sim, await sim.boot()


def callback(sim: Simulation, name: str) -> dict[str, Any]:
    return dict(sim.status(name).get("callback") or {})


def condition(sim: Simulation, name: str) -> dict[str, Any]:
    found = sim.status(name)["conditions"]
    return next(dict(c) for c in found if c["type"] == "CallbackDelivered")


async def finish_late(sim: Simulation, name: str) -> dict[str, Any]:
    await sim.wait(lambda: sim.is_closed(name), seconds=1.5 * DAY)
    return sim.status(name)


@in_virtual_time
async def test_callback_is_sent_once_with_one_more_write() -> None:
    sim, operator = await begin()
    name = await sim.admit(callbackUrl=URL)
    status = await sim.finish(name)
    (attempt,) = sim.receivers.attempts
    assert attempt.url == URL
    body = json.loads(attempt.body)
    assert body["id"] == name_to_id(name)
    assert list(body) == ["id", "status", "videos", "usage"]
    assert attempt.headers["webhook-id"] == make_message_id(sim.uid(name))
    assert status["work"] == "Settled"
    recorded = callback(sim, name)
    assert (recorded["state"], recorded["attempts"]) == ("Delivered", 1)
    assert (recorded["lastStatus"], recorded["lastAnswer"]) == (200, "answered 200")
    assert "nextAttemptTime" not in recorded
    assert condition(sim, name)["status"] == "True"
    writes = [call for call in sim.kube.calls if call == ("replace_status", TASKS)]
    assert len(writes) == 4, "three to the terminal state, one for the callback"
    sim.check_history()
    await sim.check_archive()
    assert operator.failure is None


@in_virtual_time
async def test_terminal_state_is_recorded_before_the_first_attempt() -> None:
    sim, _ = await begin()
    sim.receivers.receivers[URL].seconds = 3
    name = await sim.admit(callbackUrl=URL)
    await sim.wait(lambda: sim.receivers.under_way)
    status = sim.status(name)
    assert status["phase"] == "Completed"
    assert "work" not in status
    assert callback(sim, name)["state"] == "Pending"
    assert condition(sim, name)["status"] == "Unknown"
    assert await sim.balance() == (QUOTE, 0), "money does not wait for a receiver"
    assert sim.is_there(name)
    await sim.finish(name)


@in_virtual_time
async def test_failures_are_repeated_by_the_schedule_with_one_id_and_body() -> None:
    sim, _ = await begin()
    sim.receivers.receivers[URL].will(*[500] * 20)
    name = await sim.admit(callbackUrl=URL)
    status = await finish_late(sim, name)
    attempts = sim.receivers.attempts
    assert len(attempts) == 9
    gaps = [after.at - before.at for before, after in pairwise(attempts)]
    for gap, delay in zip(gaps, SCHEDULE[1:], strict=True):
        assert 0.9 * delay <= gap <= 1.1 * delay + 0.1
    assert len({a.headers["webhook-id"] for a in attempts}) == 1
    assert len({a.body for a in attempts}) == 1
    assert len({a.headers["webhook-timestamp"] for a in attempts}) == 9
    assert status["work"] == "Settled"
    assert callback(sim, name)["state"] == "Undelivered"
    assert condition(sim, name)["status"] == "False"
    assert condition(sim, name)["message"] == "attempt 9 of 9: answered 500"


@in_virtual_time
async def test_retry_after_is_waited_for() -> None:
    sim, _ = await begin()
    sim.receivers.receivers[URL].will(make_answer(503, 60), make_answer(429, 1))
    name = await sim.admit(callbackUrl=URL)
    await sim.finish(name, seconds=600)
    assert (callback(sim, name)["state"], callback(sim, name)["attempts"]) == ("Delivered", 3)
    first, second, third = (attempt.at for attempt in sim.receivers.attempts)
    assert 60 <= second - first < 61
    assert 27 <= third - second < 34, "one that is shorter replaces nothing"


@in_virtual_time
async def test_restart_continues_the_schedule() -> None:
    sim, _ = await begin()
    sim.receivers.receivers[URL].will(*[500] * 20)
    name = await sim.admit(callbackUrl=URL)
    for expected in (2, 3, 4):
        await sim.wait(lambda n=expected: callback(sim, name).get("attempts") == n, seconds=300)
        await sim.restart()
    due = callback(sim, name)["nextAttemptTime"]
    await sim.pass_time(60)
    assert callback(sim, name)["nextAttemptTime"] == due
    await finish_late(sim, name)
    assert len(sim.receivers.attempts) == 9


@in_virtual_time
async def test_attempt_is_not_repeated_if_its_write_does_not_land() -> None:
    sim, _ = await begin()
    sim.receivers.receivers[URL].seconds = 1
    name = await sim.admit(callbackUrl=URL)
    await sim.wait(lambda: sim.receivers.under_way)
    away = Fault(KubernetesUnavailable("away"))
    sim.kube.order_faults("replace_status", Fault(WriteConflict("x")), away, away)
    await sim.change(name, {"metadata": {"labels": {"seen": "yes"}}})
    await sim.finish(name)
    assert len(sim.receivers.attempts) == 1
    assert callback(sim, name)["attempts"] == 1


class TestSecrets:
    @in_virtual_time
    async def test_callback_waits_until_account_has_a_secret(self) -> None:
        sim, _ = await begin(webhookSecretRef=None)
        name = await sim.admit(callbackUrl=URL)
        await sim.wait(lambda: sim.kube.events)
        await sim.pass_time(60)
        assert not sim.receivers.attempts
        assert sim.kube.events == [
            (
                "demo",
                "WebhookSecretMissing",
                "callbacks are waiting: GatewayAccount demo has no spec.webhookSecretRef",
            )
        ]
        assert callback(sim, name)["attempts"] == 0
        assert callback(sim, name)["lastAnswer"].endswith("no spec.webhookSecretRef")
        writes = len(sim.history[name])
        await sim.pass_time(60)
        assert len(sim.history[name]) == writes, "waiting writes nothing"
        sim.put_account()
        await sim.finish(name)
        assert len(sim.receivers.attempts) == 1

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (None, "there is no Secret demo-webhook"),
            ({}, "must hold a value for key secret"),
            ({"secret": b"swordfish"}, "must be whsec_"),
        ],
    )
    @in_virtual_time
    async def test_bad_secret_is_reported_without_its_content(
        self, content: Any, problem: str
    ) -> None:
        sim, _ = await begin()
        sim.kube.secrets.pop("demo-webhook")
        if content is not None:
            sim.kube.secrets["demo-webhook"] = content
        name = await sim.admit(callbackUrl=URL)
        await sim.wait(lambda: "lastAnswer" in callback(sim, name))
        assert problem in callback(sim, name)["lastAnswer"]
        assert "swordfish" not in json.dumps(sim.history[name]) + str(sim.kube.events)
        sim.kube.secrets["demo-webhook"] = {"secret": WEBHOOK_SECRET.encode()}
        await sim.finish(name)

    @in_virtual_time
    async def test_delivery_is_given_up_after_a_day_without_secret(self) -> None:
        sim, _ = await begin(webhookSecretRef=None)
        name = await sim.admit(callbackUrl=URL)
        await finish_late(sim, name)
        assert callback(sim, name)["state"] == "Undelivered"
        assert not sim.receivers.attempts

    @in_virtual_time
    async def test_both_secrets_sign_during_rotation(self) -> None:
        sim, _ = await begin()
        new = "whsec_" + base64.b64encode(b"new" * 10).decode()
        sim.kube.secrets["next"] = {"secret": new.encode()}
        sim.put_account(
            webhookSecretRef={"name": "next", "key": "secret"},
            previousWebhookSecretRef={
                "name": "demo-webhook",
                "key": "secret",
                "expirationTime": "2026-11-21T11:00:00Z",
            },
        )
        await sim.finish(await sim.admit(callbackUrl=URL))
        await sim.pass_time(3600)
        await sim.finish(await sim.admit(callbackUrl=URL))
        first, second = sim.receivers.attempts
        signatures = first.headers["webhook-signature"].split(" ")
        assert len(signatures) == 2
        assert len(second.headers["webhook-signature"].split(" ")) == 1
        assert _sign(new, first) == signatures[0]
        assert _sign(WEBHOOK_SECRET, first) == signatures[1]
        assert _sign(new, second) == second.headers["webhook-signature"]

    @in_virtual_time
    async def test_one_waiting_task_checks_secret_and_wakes_others(self) -> None:
        sim, _ = await begin()
        secret = sim.kube.secrets.pop("demo-webhook")
        check_keys = CallbackClient.check_keys
        names = [await sim.admit(callbackUrl=URL) for _ in range(20)]
        await sim.wait(lambda: all("lastAnswer" in callback(sim, name) for name in names))
        await sim.pass_time(3600)
        with patch.object(
            CallbackClient, "check_keys", autospec=True, side_effect=check_keys
        ) as looks:
            await sim.pass_time(3600)
        assert looks.call_count <= 60, "of twenty one looks, and that each minute"
        await sim.kube.delete(TASKS, names[0])
        await sim.wait(lambda: not sim.is_there(names[0]), seconds=35)
        sim.kube.secrets["demo-webhook"] = secret
        for name in names[1:]:
            await sim.finish(name, seconds=65)
        assert len(sim.receivers.attempts) == 19

    def test_task_that_leaves_hands_the_check_of_the_secret_to_the_next(self) -> None:
        woken: list[str] = []
        accounts = FakeInformer(FakeKubernetes(), "gatewayaccounts", GatewayAccount.model_validate)
        awaiting = AwaitingSecret(accounts, woken.append)
        assert [awaiting.join(name, "demo") for name in "abc"] == [True, False, False]
        awaiting.leave("b")
        assert not woken
        awaiting.leave("a")
        assert woken == ["c"]

    @in_virtual_time
    async def test_new_secret_of_account_is_used_at_once(self) -> None:
        sim, _ = await begin(webhookSecretRef=None)
        name = await sim.admit(callbackUrl=URL)
        await sim.wait(lambda: "lastAnswer" in callback(sim, name))
        await sim.pass_time(3 * 3600 + 7)
        sim.put_account()
        await sim.finish(name, seconds=1)

    @in_virtual_time
    async def test_concurrent_lookups_read_the_secret_once(self) -> None:
        sim, _ = await begin()
        keyring = Keyring(sim.accounts, sim.kube, read_now)
        await asyncio.gather(*(keyring.find("demo") for _ in range(50)))
        assert len(_list_looks(sim)) == 1
        await sim.pass_time(READ_SECONDS + 1)
        await asyncio.gather(*(keyring.find("demo") for _ in range(50)))
        assert len(_list_looks(sim)) == 2

    @in_virtual_time
    async def test_unused_secret_is_forgotten(self) -> None:
        sim, _ = await begin()
        sim.put_account("old", webhookSecretRef={"name": "demo-webhook", "key": "secret"})
        sim.kube.secrets["new"] = {"secret": WEBHOOK_SECRET.encode()}
        keyring = Keyring(sim.accounts, sim.kube, read_now)
        await keyring.find("old")
        sim.put_account("demo", webhookSecretRef={"name": "new", "key": "secret"})
        await sim.pass_time(UNUSED_SECONDS + 1)
        await keyring.find("demo")
        assert list(keyring._known) == list(keyring._locks) == [("new", "secret")]


class TestRedelivery:
    @pytest.mark.parametrize("first", [200, 410])
    @in_virtual_time
    async def test_raised_redeliveries_deliver_settled_task_again(self, first: int) -> None:
        sim, _ = await begin()
        sim.receivers.receivers[URL].will(first)
        name = await sim.admit(callbackUrl=URL)
        await sim.finish(name)
        for count in (1, 2):
            await sim.change(name, {"spec": {"redeliveries": count}})
            await sim.wait(lambda n=count: _is_done(sim, name, n))
        attempts = sim.receivers.attempts
        assert len(attempts) == 3
        assert len({a.headers["webhook-id"] for a in attempts}) == 1
        assert len({a.body for a in attempts}) == 1
        assert callback(sim, name)["state"] == "Delivered"
        archived = await read_archived(sim.store, "demo", name)
        assert archived is not None
        assert archived["status"]["callback"]["redeliveries"] == 2
        sim.check_history()
        assert await sim.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_redelivery_has_new_schedule_that_survives_restart(self) -> None:
        sim, _ = await begin()
        name = await sim.admit(callbackUrl=URL)
        await sim.finish(name)
        sim.receivers.receivers[URL].will(500, 500)
        await sim.kill()
        await sim.change(name, {"spec": {"redeliveries": 1}})
        await sim.restart()
        await sim.wait(lambda: callback(sim, name)["attempts"] == 2, seconds=60)
        assert TASK_FINALIZER in sim.history[name][-1]["metadata"]["finalizers"]
        await sim.restart()
        await sim.wait(lambda: _is_done(sim, name, 1), seconds=60)
        assert len(sim.receivers.attempts) == 4

    @in_virtual_time
    async def test_redelivered_task_is_closed_again_after_kill(self) -> None:
        sim, _ = await begin()
        name = await sim.admit(callbackUrl=URL)
        await sim.finish(name)
        await sim.change(name, {"spec": {"redeliveries": 1}})

        def is_settled() -> bool:
            recorded = callback(sim, name)
            return recorded["redeliveries"] == 1 and sim.status(name).get("work") == "Settled"

        await sim.wait(is_settled)
        await sim.kill()
        assert TASK_FINALIZER in sim.history[name][-1]["metadata"]["finalizers"]
        await sim.restart()
        await sim.finish(name, seconds=5)
        assert await sim.balance() == (QUOTE, 0)
        assert len(sim.receivers.attempts) == 2

    @in_virtual_time
    async def test_redelivery_of_pending_callback_starts_at_once(self) -> None:
        sim, _ = await begin()
        sim.receivers.receivers[URL].will(*[500] * 4)
        name = await sim.admit(callbackUrl=URL)
        await sim.wait(lambda: callback(sim, name).get("attempts") == 4, seconds=300)
        await sim.change(name, {"spec": {"redeliveries": 1}})
        await sim.finish(name, seconds=5)
        assert callback(sim, name)["attempts"] == 1

    @in_virtual_time
    async def test_redeliveries_raised_before_the_end_add_no_delivery(self) -> None:
        sim, _ = await begin()
        name = await sim.admit(callbackUrl=URL)
        await sim.change(name, {"spec": {"redeliveries": 3}})
        await sim.finish(name)
        await sim.pass_time(700)
        assert len(sim.receivers.attempts) == 1


class TestDeletion:
    @in_virtual_time
    async def test_deleted_task_does_not_wait_for_its_receiver(self) -> None:
        sim, _ = await begin()
        sim.receivers.receivers[URL].will(*[500] * 20)
        name = await sim.admit(callbackUrl=URL)
        await sim.wait(lambda: callback(sim, name).get("attempts") == 4, seconds=300)
        await sim.kube.delete(TASKS, name)
        await sim.wait(lambda: not sim.is_there(name), seconds=35)
        archived = await read_archived(sim.store, "demo", name)
        assert archived is not None
        assert archived["status"]["callback"]["state"] == "Undelivered"
        assert "deleted" in archived["status"]["callback"]["lastAnswer"]

    @in_virtual_time
    async def test_deleted_running_task_sends_cancelled_callback(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=100))
        name = await sim.run(callbackUrl=URL)
        await sim.kube.delete(TASKS, name)
        await sim.wait(lambda: not sim.is_there(name), seconds=35)
        assert json.loads(sim.receivers.attempts[0].body)["error"]["code"] == "cancelled"

    @in_virtual_time
    async def test_deleted_tasks_of_dead_receiver_stop_waiting(self) -> None:
        sim, names = await _fill_lane()
        for name in names:
            await sim.kube.delete(TASKS, name)
        # 30 s, and what is on its way then
        await sim.wait(lambda: not any(sim.is_there(n) for n in names), seconds=47)

    @in_virtual_time
    async def test_redelivery_of_task_waiting_for_receiver_starts_anew(self) -> None:
        sim, names = await _fill_lane()
        tried = {json.loads(attempt.body)["id"] for attempt in sim.receivers.attempts}
        waiting = next(name for name in names if name_to_id(name) not in tried)
        await sim.change(waiting, {"spec": {"redeliveries": 1}})
        await sim.wait(lambda: callback(sim, waiting)["redeliveries"] == 1, seconds=5)


class TestDraining:
    @in_virtual_time
    async def test_drain_records_running_attempt_and_begins_none(self) -> None:
        sim, operator = await begin()
        sim.receivers.receivers[URL].seconds = 12
        names = [await sim.admit(callbackUrl=URL) for _ in range(20)]
        await sim.wait(lambda: sim.receivers.under_way == 8)
        await sim.wait(lambda: all(sim.is_ended(name) for name in names))
        # the attempts end in the first moment of the drain, and make room for others
        await sim.pass_time(10)
        await operator.end()
        assert len(sim.receivers.attempts) == 8
        assert sum(sim.status(name).get("work") == "Settled" for name in names) == 8
        sim.receivers.receivers[URL].seconds = 0.1
        await sim.boot_without_books()
        for name in names:
            await sim.finish(name)
        assert len(sim.receivers.attempts) == 20, "nobody is told twice"

    @in_virtual_time
    async def test_drain_retries_write_of_outcome(self) -> None:
        sim, operator = await begin()
        sim.receivers.receivers[URL].seconds = 5
        name = await sim.admit(callbackUrl=URL)
        await sim.wait(lambda: sim.receivers.under_way)
        sim.kube.order_faults("replace_status", Fault(WriteConflict("x")))
        await operator.end()
        assert callback(sim, name)["state"] == "Delivered"


@in_virtual_time
async def test_dead_receiver_delays_no_other() -> None:
    sim, _ = await begin(unlimited=True)
    dead = [f"https://dead-{n}.example.com/" for n in range(4)]
    for url in dead:
        sim.receivers.receivers[url].seconds = 1e9
    names = [await sim.admit(callbackUrl=dead[n % 4]) for n in range(60)]
    quick = [await sim.admit(callbackUrl=f"https://quick-{n}.example.com/") for n in range(10)]
    await sim.wait(lambda: all(sim.is_ended(name) for name in names + quick), seconds=60)
    await sim.wait(lambda: all(sim.is_closed(name) for name in quick), seconds=2)
    assert sim.receivers.under_way <= 32


async def _fill_lane() -> tuple[Simulation, list[str]]:
    """Forty tasks of one receiver that never answers, all waiting for it, one at a time."""
    sim, _ = await begin(unlimited=True)
    sim.receivers.receivers[URL].seconds = 1e9
    names = [await sim.admit(callbackUrl=URL) for _ in range(40)]
    await sim.wait(lambda: all(sim.is_ended(name) for name in names), seconds=120)
    await sim.pass_time(20)
    assert sim.receivers.under_way == 1
    return sim, names


def _list_looks(sim: Simulation) -> list[Any]:
    return [call for call in sim.kube.calls if call[0] == "read_secret"]


def _is_done(sim: Simulation, name: str, redeliveries: int) -> bool:
    return sim.is_closed(name) and (
        sim.status(name).get("work") == "Settled"
        and callback(sim, name)["redeliveries"] == redeliveries
    )


def _sign(secret: str, attempt: Any) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    head = f"{attempt.headers['webhook-id']}.{attempt.headers['webhook-timestamp']}."
    digest = hmac.digest(key, head.encode() + attempt.body, hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()
