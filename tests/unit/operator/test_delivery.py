"""Callbacks of tasks that have ended: sent once each, by the schedule, whatever happens between."""

import asyncio
import base64
import hashlib
import hmac
import json
import random
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from gateway_core.api.ids import TASK_FINALIZER, name_to_id
from gateway_core.callbacks.schedule import SCHEDULE
from gateway_core.callbacks.signing import make_message_id
from gateway_core.kube.errors import KubernetesUnavailable, WriteConflict
from gateway_core.tasks.archive import read_archived
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.callbacks.signing import READ_SECONDS, UNUSED_SECONDS, Keyring
from tests.fakes.callbacks import make_answer
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.environment import read_now
from tests.unit.operator.harness import QUOTE, TASKS, WEBHOOK_SECRET, Operator, Stage

URL = "https://hooks.example.com/done?token=1"
DAY = 24 * 3600


async def begin(**account: Any) -> tuple[Stage, Operator]:
    stage = Stage()
    if account:
        stage.put_account(**account)
    return stage, await stage.boot()


def callback(stage: Stage, name: str) -> dict[str, Any]:
    return dict(stage.status(name).get("callback") or {})


def condition(stage: Stage, name: str) -> dict[str, Any]:
    found = stage.status(name)["conditions"]
    return next(dict(c) for c in found if c["type"] == "CallbackDelivered")


async def finish_late(stage: Stage, name: str) -> dict[str, Any]:
    """As `finish`, over a day and a half."""
    await stage.wait(lambda: stage.is_closed(name), seconds=1.5 * DAY, step=1)
    return stage.status(name)


@in_virtual_time
async def test_the_end_is_told_once_and_in_one_write_more() -> None:
    stage, operator = await begin()
    name = await stage.admit(callbackUrl=URL)
    status = await stage.finish(name)
    (attempt,) = stage.receivers.attempts
    assert attempt.url == URL
    body = json.loads(attempt.body)
    assert body["id"] == name_to_id(name)
    assert list(body) == ["id", "status", "videos", "usage"]
    assert attempt.headers["webhook-id"] == make_message_id(stage.uid(name))
    assert status["work"] == "Settled"
    recorded = callback(stage, name)
    assert (recorded["state"], recorded["attempts"]) == ("Delivered", 1)
    assert (recorded["lastStatus"], recorded["lastAnswer"]) == (200, "answered 200")
    assert "nextAttemptTime" not in recorded
    assert condition(stage, name)["status"] == "True"
    writes = [call for call in stage.kube.calls if call == ("replace_status", TASKS)]
    assert len(writes) == 4, "three to the terminal state, one for the callback"
    stage.check_history()
    await stage.check_archive()
    assert operator.failure is None


@in_virtual_time
async def test_a_task_without_a_callback_is_settled_at_its_end() -> None:
    stage, _ = await begin()
    name = await stage.admit()
    status = await stage.finish(name)
    assert status["work"] == "Settled"
    assert "callback" not in status
    assert not stage.receivers.attempts


@in_virtual_time
async def test_the_terminal_state_is_recorded_before_the_first_attempt() -> None:
    stage, _ = await begin()
    stage.receivers.receivers[URL].seconds = 3
    name = await stage.admit(callbackUrl=URL)
    await stage.wait(lambda: stage.receivers.under_way)
    status = stage.status(name)
    assert status["phase"] == "Completed"
    assert "work" not in status
    assert callback(stage, name)["state"] == "Pending"
    assert condition(stage, name)["status"] == "Unknown"
    assert await stage.balance() == (QUOTE, 0), "money does not wait for a receiver"
    assert stage.is_there(name)
    await stage.finish(name)


@in_virtual_time
async def test_a_failure_is_told_with_its_code() -> None:
    stage = Stage(FakeUpstream(seconds=100))
    await stage.boot()
    name = await stage.admit(callbackUrl=URL)
    await stage.wait(lambda: stage.status(name).get("phase") == "Running")
    await stage.cancel(name)
    await stage.finish(name)
    (attempt,) = stage.receivers.attempts
    assert json.loads(attempt.body)["error"] == {
        "code": "cancelled",
        "message": "The task was cancelled.",
    }


@in_virtual_time
async def test_failures_are_repeated_by_the_schedule_with_one_id_and_body() -> None:
    stage, _ = await begin()
    stage.receivers.receivers[URL].will(*[500] * 20)
    name = await stage.admit(callbackUrl=URL)
    status = await finish_late(stage, name)
    attempts = stage.receivers.attempts
    assert len(attempts) == 9
    gaps = [after.at - before.at for before, after in pairwise(attempts)]
    for gap, delay in zip(gaps, SCHEDULE[1:], strict=True):
        assert 0.9 * delay <= gap <= 1.1 * delay + 0.1
    assert len({a.headers["webhook-id"] for a in attempts}) == 1
    assert len({a.body for a in attempts}) == 1
    assert len({a.headers["webhook-timestamp"] for a in attempts}) == 9
    assert status["work"] == "Settled"
    assert callback(stage, name)["state"] == "Undelivered"
    assert condition(stage, name)["status"] == "False"
    assert condition(stage, name)["message"] == "attempt 9 of 9: answered 500"


@in_virtual_time
async def test_an_answer_at_last_ends_it() -> None:
    stage, _ = await begin()
    stage.receivers.receivers[URL].will(500, 302, 404)
    name = await stage.admit(callbackUrl=URL)
    await stage.finish(name, seconds=600)
    assert len(stage.receivers.attempts) == 4
    assert callback(stage, name)["attempts"] == 4
    assert callback(stage, name)["state"] == "Delivered"


@in_virtual_time
async def test_410_ends_it_at_once() -> None:
    stage, _ = await begin()
    stage.receivers.receivers[URL].will(410)
    name = await stage.admit(callbackUrl=URL)
    await stage.finish(name)
    await stage.pass_time(DAY)
    assert len(stage.receivers.attempts) == 1
    assert callback(stage, name)["state"] == "Undelivered"


@in_virtual_time
async def test_retry_after_is_waited_for() -> None:
    stage, _ = await begin()
    stage.receivers.receivers[URL].will(make_answer(503, 60), make_answer(429, 1))
    name = await stage.admit(callbackUrl=URL)
    await stage.finish(name, seconds=600)
    first, second, third = (attempt.at for attempt in stage.receivers.attempts)
    assert 60 <= second - first < 61
    assert 27 <= third - second < 34, "one that is shorter replaces nothing"


@in_virtual_time
async def test_a_restart_goes_on_in_the_schedule() -> None:
    stage, _ = await begin()
    stage.receivers.receivers[URL].will(*[500] * 20)
    name = await stage.admit(callbackUrl=URL)
    for expected in (2, 3, 4):
        await stage.wait(lambda n=expected: callback(stage, name).get("attempts") == n, seconds=300)
        await stage.restart()
    due = callback(stage, name)["nextAttemptTime"]
    await stage.pass_time(60)
    assert callback(stage, name)["nextAttemptTime"] == due
    await finish_late(stage, name)
    assert len(stage.receivers.attempts) == 9


@in_virtual_time
async def test_what_an_attempt_came_to_is_not_asked_again_if_its_write_does_not_land() -> None:
    stage, _ = await begin()
    stage.receivers.receivers[URL].seconds = 1
    name = await stage.admit(callbackUrl=URL)
    await stage.wait(lambda: stage.receivers.under_way)
    away = Fault(KubernetesUnavailable("away"))
    stage.kube.order_faults("replace_status", Fault(WriteConflict("x")), away, away)
    await stage.change(name, {"metadata": {"labels": {"seen": "yes"}}})
    await stage.finish(name)
    assert len(stage.receivers.attempts) == 1
    assert callback(stage, name)["attempts"] == 1


class TestSecrets:
    @in_virtual_time
    async def test_nothing_is_sent_until_there_is_one(self) -> None:
        stage, _ = await begin(webhookSecretRef=None)
        name = await stage.admit(callbackUrl=URL)
        await stage.wait(lambda: stage.kube.events)
        await stage.pass_time(60)
        assert not stage.receivers.attempts
        assert stage.kube.events == [
            (
                "demo",
                "WebhookSecretMissing",
                "callbacks are waiting: GatewayAccount demo has no spec.webhookSecretRef",
            )
        ]
        assert callback(stage, name)["attempts"] == 0
        assert callback(stage, name)["lastAnswer"].endswith("no spec.webhookSecretRef")
        writes = len(stage.history[name])
        await stage.pass_time(60)
        assert len(stage.history[name]) == writes, "waiting writes nothing"
        stage.put_account()
        await stage.finish(name)
        assert len(stage.receivers.attempts) == 1

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (None, "there is no Secret demo-webhook"),
            ({}, "must hold a value for key secret"),
            ({"secret": b"swordfish"}, "must be whsec_"),
        ],
    )
    def test_what_is_wrong_with_it_is_told_without_it(self, content: Any, problem: str) -> None:
        async def run() -> None:
            stage, _ = await begin()
            stage.kube.secrets.pop("demo-webhook")
            if content is not None:
                stage.kube.secrets["demo-webhook"] = content
            name = await stage.admit(callbackUrl=URL)
            await stage.wait(lambda: "lastAnswer" in callback(stage, name))
            assert problem in callback(stage, name)["lastAnswer"]
            assert "swordfish" not in json.dumps(stage.history[name]) + str(stage.kube.events)
            stage.kube.secrets["demo-webhook"] = {"secret": WEBHOOK_SECRET.encode()}
            await stage.finish(name)

        in_virtual_time(run)()

    @in_virtual_time
    async def test_a_day_without_one_is_enough(self) -> None:
        stage, _ = await begin(webhookSecretRef=None)
        name = await stage.admit(callbackUrl=URL)
        await finish_late(stage, name)
        assert callback(stage, name)["state"] == "Undelivered"
        assert not stage.receivers.attempts

    @in_virtual_time
    async def test_two_sign_while_one_is_rotated_out(self) -> None:
        stage, _ = await begin()
        new = "whsec_" + base64.b64encode(b"new" * 10).decode()
        stage.kube.secrets["next"] = {"secret": new.encode()}
        stage.put_account(
            webhookSecretRef={"name": "next", "key": "secret"},
            previousWebhookSecretRef={
                "name": "demo-webhook",
                "key": "secret",
                "expirationTime": "2026-11-21T11:00:00Z",
            },
        )
        await stage.finish(await stage.admit(callbackUrl=URL))
        await stage.pass_time(3600)
        await stage.finish(await stage.admit(callbackUrl=URL))
        first, second = stage.receivers.attempts
        signatures = first.headers["webhook-signature"].split(" ")
        assert len(signatures) == 2
        assert len(second.headers["webhook-signature"].split(" ")) == 1
        assert _sign(new, first) == signatures[0]
        assert _sign(WEBHOOK_SECRET, first) == signatures[1]
        assert _sign(new, second) == second.headers["webhook-signature"]

    @in_virtual_time
    async def test_one_of_an_account_looks_for_it_and_wakes_the_others(self) -> None:
        stage, _ = await begin()
        secret = stage.kube.secrets.pop("demo-webhook")
        check_keys = CallbackClient.check_keys
        names = [await stage.admit(callbackUrl=URL) for _ in range(20)]
        await stage.wait(lambda: all("lastAnswer" in callback(stage, name) for name in names))
        await stage.pass_time(3600)
        with patch.object(
            CallbackClient, "check_keys", autospec=True, side_effect=check_keys
        ) as looks:
            await stage.pass_time(3600)
        assert looks.call_count <= 60, "of twenty one looks, and that each minute"
        await stage.kube.delete(TASKS, names[0])
        await stage.wait(lambda: not stage.is_there(names[0]), seconds=35)
        stage.kube.secrets["demo-webhook"] = secret
        for name in names[1:]:
            await stage.finish(name, seconds=65)
        assert len(stage.receivers.attempts) == 19

    @in_virtual_time
    async def test_an_account_that_gets_one_is_looked_at_at_once(self) -> None:
        stage, _ = await begin(webhookSecretRef=None)
        name = await stage.admit(callbackUrl=URL)
        await stage.wait(lambda: "lastAnswer" in callback(stage, name))
        await stage.pass_time(3 * 3600 + 7)
        stage.put_account()
        await stage.finish(name, seconds=1)

    @in_virtual_time
    async def test_what_is_due_together_reads_it_once(self) -> None:
        stage, _ = await begin()
        keyring = Keyring(stage.accounts, stage.kube, read_now)
        await asyncio.gather(*(keyring.find("demo") for _ in range(50)))
        assert len(_list_looks(stage)) == 1
        await stage.pass_time(READ_SECONDS + 1)
        await asyncio.gather(*(keyring.find("demo") for _ in range(50)))
        assert len(_list_looks(stage)) == 2

    @in_virtual_time
    async def test_one_that_nobody_asks_for_is_forgotten(self) -> None:
        stage, _ = await begin()
        stage.put_account("old", webhookSecretRef={"name": "demo-webhook", "key": "secret"})
        stage.kube.secrets["new"] = {"secret": WEBHOOK_SECRET.encode()}
        keyring = Keyring(stage.accounts, stage.kube, read_now)
        await keyring.find("old")
        stage.put_account("demo", webhookSecretRef={"name": "new", "key": "secret"})
        await stage.pass_time(UNUSED_SECONDS + 1)
        await keyring.find("demo")
        assert list(keyring._known) == list(keyring._locks) == [("new", "secret")]


class TestRedelivery:
    @pytest.mark.parametrize("first", [200, 410])
    def test_raising_it_delivers_a_settled_one_once_more(self, first: int) -> None:
        async def run() -> None:
            stage, _ = await begin()
            stage.receivers.receivers[URL].will(first)
            name = await stage.admit(callbackUrl=URL)
            await stage.finish(name)
            for count in (1, 2):
                await stage.change(name, {"spec": {"redeliveries": count}})
                await stage.wait(lambda n=count: _is_done(stage, name, n))
            attempts = stage.receivers.attempts
            assert len(attempts) == 3
            assert len({a.headers["webhook-id"] for a in attempts}) == 1
            assert len({a.body for a in attempts}) == 1
            assert callback(stage, name)["state"] == "Delivered"
            archived = await read_archived(stage.store, "demo", name)
            assert archived is not None
            assert archived["status"]["callback"]["redeliveries"] == 2
            stage.check_history()
            assert await stage.balance() == (QUOTE, 0)

        in_virtual_time(run)()

    @in_virtual_time
    async def test_its_schedule_begins_anew_and_survives_a_restart(self) -> None:
        stage, _ = await begin()
        name = await stage.admit(callbackUrl=URL)
        await stage.finish(name)
        stage.receivers.receivers[URL].will(500, 500)
        await stage.kill()
        await stage.change(name, {"spec": {"redeliveries": 1}})
        await stage.restart()
        await stage.wait(lambda: callback(stage, name)["attempts"] == 2, seconds=60)
        assert TASK_FINALIZER in stage.history[name][-1]["metadata"]["finalizers"]
        await stage.restart()
        await stage.wait(lambda: _is_done(stage, name, 1), seconds=60)
        assert len(stage.receivers.attempts) == 4

    @in_virtual_time
    async def test_one_that_was_settled_again_is_closed_again_whoever_died(self) -> None:
        stage, _ = await begin()
        name = await stage.admit(callbackUrl=URL)
        await stage.finish(name)
        await stage.change(name, {"spec": {"redeliveries": 1}})

        def is_settled() -> bool:
            recorded = callback(stage, name)
            return recorded["redeliveries"] == 1 and stage.status(name).get("work") == "Settled"

        await stage.wait(is_settled, step=0.001)
        await stage.kill()
        assert TASK_FINALIZER in stage.history[name][-1]["metadata"]["finalizers"]
        await stage.restart()
        await stage.finish(name, seconds=5)
        assert await stage.balance() == (QUOTE, 0)
        assert len(stage.receivers.attempts) == 2

    @in_virtual_time
    async def test_one_that_is_pending_begins_anew_at_once(self) -> None:
        stage, _ = await begin()
        stage.receivers.receivers[URL].will(*[500] * 4)
        name = await stage.admit(callbackUrl=URL)
        await stage.wait(lambda: callback(stage, name).get("attempts") == 4, seconds=300)
        await stage.change(name, {"spec": {"redeliveries": 1}})
        await stage.finish(name, seconds=5)
        assert callback(stage, name)["attempts"] == 1

    @in_virtual_time
    async def test_what_was_raised_before_the_end_is_no_second_delivery(self) -> None:
        stage, _ = await begin()
        name = await stage.admit(callbackUrl=URL)
        await stage.change(name, {"spec": {"redeliveries": 3}})
        await stage.finish(name)
        await stage.pass_time(700)
        assert len(stage.receivers.attempts) == 1


class TestDeletion:
    @in_virtual_time
    async def test_a_deleted_task_does_not_stay_for_its_receiver(self) -> None:
        stage, _ = await begin()
        stage.receivers.receivers[URL].will(*[500] * 20)
        name = await stage.admit(callbackUrl=URL)
        await stage.wait(lambda: callback(stage, name).get("attempts") == 4, seconds=300)
        await stage.kube.delete(TASKS, name)
        await stage.wait(lambda: not stage.is_there(name), seconds=35)
        archived = await read_archived(stage.store, "demo", name)
        assert archived is not None
        assert archived["status"]["callback"]["state"] == "Undelivered"
        assert "deleted" in archived["status"]["callback"]["lastAnswer"]

    @in_virtual_time
    async def test_a_running_task_that_is_deleted_tells_so(self) -> None:
        stage = Stage(FakeUpstream(seconds=100))
        await stage.boot()
        name = await stage.admit(callbackUrl=URL)
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        await stage.kube.delete(TASKS, name)
        await stage.wait(lambda: not stage.is_there(name), seconds=35)
        assert json.loads(stage.receivers.attempts[0].body)["error"]["code"] == "cancelled"

    @in_virtual_time
    async def test_many_of_one_dead_receiver_leave_their_lane(self) -> None:
        stage, names = await _fill_lane()
        for name in names:
            await stage.kube.delete(TASKS, name)
        # 30 s, and what is on its way then
        await stage.wait(lambda: not any(stage.is_there(n) for n in names), seconds=47, step=0.5)

    @in_virtual_time
    async def test_one_that_is_raised_in_its_lane_begins_anew(self) -> None:
        stage, names = await _fill_lane()
        tried = {json.loads(attempt.body)["id"] for attempt in stage.receivers.attempts}
        waiting = next(name for name in names if name_to_id(name) not in tried)
        await stage.change(waiting, {"spec": {"redeliveries": 1}})
        await stage.wait(lambda: callback(stage, waiting)["redeliveries"] == 1, seconds=5)


class TestDraining:
    @in_virtual_time
    async def test_an_attempt_under_way_is_recorded_and_none_is_begun(self) -> None:
        stage, operator = await begin()
        stage.receivers.receivers[URL].seconds = 12
        names = [await stage.admit(callbackUrl=URL) for _ in range(20)]
        await stage.wait(lambda: stage.receivers.under_way == 8)
        await stage.wait(lambda: all(stage.is_ended(name) for name in names))
        await operator.end()
        assert len(stage.receivers.attempts) == 8
        assert sum(stage.status(name).get("work") == "Settled" for name in names) == 8
        stage.receivers.receivers[URL].seconds = 0.1
        await stage.boot_without_books()
        for name in names:
            await stage.finish(name)
        assert len(stage.receivers.attempts) == 20, "nobody is told twice"

    @in_virtual_time
    async def test_a_record_that_did_not_land_at_first_is_written_before_the_end(self) -> None:
        stage, operator = await begin()
        stage.receivers.receivers[URL].seconds = 5
        name = await stage.admit(callbackUrl=URL)
        await stage.wait(lambda: stage.receivers.under_way)
        stage.kube.order_faults("replace_status", Fault(WriteConflict("x")))
        await operator.end()
        assert callback(stage, name)["state"] == "Delivered"


@in_virtual_time
async def test_a_dead_receiver_holds_up_nobody_else() -> None:
    stage, _ = await begin(unlimited=True)
    dead = [f"https://dead-{n}.example.com/" for n in range(10)]
    for url in dead:
        stage.receivers.receivers[url].seconds = 1e9
    names = [await stage.admit(callbackUrl=random.choice(dead)) for _ in range(300)]
    quick = [await stage.admit(callbackUrl=f"https://quick-{n}.example.com/") for n in range(50)]
    await stage.wait(lambda: all(stage.is_ended(name) for name in names + quick), seconds=60)
    await stage.wait(lambda: all(stage.is_closed(name) for name in quick), seconds=2)
    assert stage.receivers.under_way <= 80


async def _fill_lane() -> tuple[Stage, list[str]]:
    """Forty tasks of one receiver that never answers, all waiting for it, one at a time."""
    stage, _ = await begin(unlimited=True)
    stage.receivers.receivers[URL].seconds = 1e9
    names = [await stage.admit(callbackUrl=URL) for _ in range(40)]
    await stage.wait(lambda: all(stage.is_ended(name) for name in names), seconds=120)
    await stage.pass_time(20)
    assert stage.receivers.under_way == 1
    return stage, names


def _list_looks(stage: Stage) -> list[Any]:
    return [call for call in stage.kube.calls if call[0] == "read_secret"]


def _is_done(stage: Stage, name: str, redeliveries: int) -> bool:
    return stage.is_closed(name) and (
        stage.status(name).get("work") == "Settled"
        and callback(stage, name)["redeliveries"] == redeliveries
    )


def _sign(secret: str, attempt: Any) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    head = f"{attempt.headers['webhook-id']}.{attempt.headers['webhook-timestamp']}."
    digest = hmac.digest(key, head.encode() + attempt.body, hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()
