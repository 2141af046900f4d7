"""Limits of keys and guardrails as they are when a task's job may start, and not at admission."""

from collections.abc import Sequence
from typing import Any

from gateway_core.api.ids import name_to_id
from gateway_core.billing.counters import Budget, BudgetState
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.environment import TickingCounters
from tests.unit.operator.harness import QUOTE, Stage

URL = "https://client.example/hook"


def limit(calls: float, window: str = "weekly") -> dict[str, Any]:
    """A limit of so many calls."""
    return {"limit": {"micros": int(calls * QUOTE), "window": window}}


async def held_under(stage: Stage, subject: str) -> int:
    [state] = await stage.counters.read_budgets("demo", [Budget(subject)])
    return state.held


class LoggingCounters(TickingCounters):
    """Counters that tell how often budgets were asked for."""

    reads = 0

    async def read_budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetState]:
        self.reads += 1
        return await super().read_budgets(account, budgets)


@in_virtual_time
async def test_a_task_that_waits_fails_once_its_keys_limit_is_lowered() -> None:
    stage = Stage()
    stage.put_key(**limit(1))
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    name = await stage.admit(keyName="key-a", callbackUrl=URL)
    await stage.pass_time(20)
    assert not stage.is_ended(name)
    stage.put_key(limit={"micros": 10_000, "window": "weekly"})
    await stage.wait(lambda: stage.is_ended(name), seconds=5)
    await stage.pass_time(0.1)
    assert await stage.balance() == (0, 0), "its hold is released with its end"
    status = await stage.finish(name)
    assert status["failure"]["code"] == "credit_limit_exceeded"
    assert status["failure"]["limit"] == {
        "limitCents": 1,
        "usedCents": 0,
        "window": "weekly",
        "resetTime": "2026-11-23T00:00:00Z",
    }
    text = status["failure"]["message"]
    assert text == (
        "The credit limit of this key, 0.01 USD a week (from Monday, UTC), does not cover this"
        " call: it needs 0.30 USD, 0.01 USD are left, 0.00 USD are spent. It resets at"
        " 2026-11-23T00:00:00Z."
    )
    [attempt] = stage.receivers.attempts
    assert (
        attempt.body
        == (
            f'{{"id":"{name_to_id(name)}","status":"failed","error":{{"code":"credit_limit_exceeded",'
            f'"message":"{text}","limit_cents":1,"used_cents":0,'
            '"reset_at":"2026-11-23T00:00:00Z","window":"weekly"}}'
        ).encode()
    )
    conditions = {entry["type"]: entry for entry in status["conditions"]}
    assert conditions["Succeeded"]["reason"] == "CreditLimitExceeded"


@in_virtual_time
async def test_so_does_one_whose_provider_is_busy() -> None:
    upstream = FakeUpstream()
    upstream.submissions.extend([Outcome.BUSY] * 100)
    stage = Stage(upstream)
    stage.put_guardrail("grd-team", "key-a", **limit(1, "lifetime"))
    await stage.boot()
    name = await stage.admit(keyName="key-a", guardrailNames=["grd-team"])
    await stage.wait(lambda: stage.upstream.count("submit") == 4)
    stage.put_guardrail("grd-team", "key-a", **limit(0.5, "lifetime"))
    status = await stage.finish(name)
    assert status["failure"]["limit"] == {"limitCents": 15, "usedCents": 0, "window": "lifetime"}
    assert status["failure"]["message"].startswith('The credit limit of guardrail "team", 0.15 USD')
    assert not stage.upstream.jobs
    assert await stage.balance() == (0, 0)


@in_virtual_time
async def test_a_task_that_may_have_a_job_is_not_failed() -> None:
    upstream = FakeUpstream()
    upstream.submissions.append(Outcome.UNCLEAR_WITH_JOB)
    upstream.submissions.extend([Outcome.BUSY] * 4)
    stage = Stage(upstream)
    stage.put_key(**limit(1))
    await stage.boot()
    name = await stage.admit(keyName="key-a")
    await stage.wait(lambda: stage.upstream.count("submit") == 3)
    stage.put_key(**limit(0))
    assert (await stage.finish(name))["phase"] == "Completed"
    assert await stage.balance() == (QUOTE, 0)
    assert len(stage.upstream.jobs) == 1


@in_virtual_time
async def test_nor_is_one_that_runs() -> None:
    stage = Stage(FakeUpstream(seconds=20))
    stage.put_key(**limit(1))
    await stage.boot()
    name = await stage.admit(keyName="key-a")
    await stage.wait(lambda: stage.status(name).get("phase") == "Running")
    stage.put_key(**limit(0))
    assert (await stage.finish(name))["phase"] == "Completed"


@in_virtual_time
async def test_no_more_fail_than_are_too_many() -> None:
    stage = Stage()
    stage.put_guardrail("grd-team", "key-a", "key-b", **limit(5))
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    names = [
        await stage.admit(keyName=key, guardrailNames=["grd-team"]) for key in ("key-a", "key-b")
    ]
    names += [await stage.admit(keyName="key-a", guardrailNames=["grd-team"]) for _ in range(3)]
    await stage.pass_time(20)
    stage.put_guardrail("grd-team", "key-a", "key-b", **limit(2))
    await stage.wait(lambda: sum(map(stage.is_ended, names)) == 3, seconds=5)
    await stage.pass_time(20)
    assert sum(map(stage.is_ended, names)) == 3
    assert await held_under(stage, "guardrail/grd-team") == 2 * QUOTE
    stage.put_provider()
    phases = [(await stage.finish(name))["phase"] for name in names]
    assert sorted(phases) == ["Completed"] * 2 + ["Failed"] * 3
    assert await stage.balance() == (2 * QUOTE, 0)


@in_virtual_time
async def test_what_others_have_taken_is_told_and_what_it_needs_itself_is_not() -> None:
    stage = Stage()
    stage.put_key(**limit(3))
    await stage.boot()
    await stage.finish(await stage.admit(keyName="key-a"))
    stage.kube.remove("gatewayproviders", "simulated")
    name = await stage.admit(keyName="key-a")
    await stage.pass_time(10)
    stage.put_key(**limit(1.5))
    failure = (await stage.finish(name))["failure"]
    assert failure["limit"]["usedCents"] == 30
    assert "it needs 0.30 USD, 0.15 USD are left, 0.30 USD are spent." in failure["message"]


@in_virtual_time
async def test_it_counts_in_the_pools_that_it_was_let_in_with() -> None:
    stage = Stage()
    stage.put_guardrail("grd-old", "key-a", **limit(9))
    stage.put_guardrail("grd-gone", "key-a", **limit(9))
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    names = ["grd-gone", "grd-old"]
    name = await stage.admit(keyName="key-a", guardrailNames=names)
    await stage.pass_time(10)
    stage.put_guardrail("grd-new", "key-a", **limit(0))
    stage.put_guardrail("grd-old", **limit(9))
    stage.kube.remove("gatewayguardrails", "grd-gone")
    await stage.pass_time(10)
    assert not stage.is_ended(name), "a pool that it never counted in restricts it as little"
    stage.put_guardrail("grd-old", **limit(0))
    assert (await stage.finish(name))["failure"]["code"] == "credit_limit_exceeded"


@in_virtual_time
async def test_a_name_that_changed_hands_restricts_no_stranger() -> None:
    stage = Stage()
    stage.put_key()
    stage.put_guardrail("grd-a", "key-a", **limit(9))
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    name = await stage.admit(keyName="key-a", guardrailNames=["grd-a"])
    await stage.pass_time(10)
    stage.put_key(accountName="guest", **limit(0))
    stage.put_guardrail("grd-a", "key-a", accountName="guest", **limit(0))
    await stage.pass_time(10)
    assert not stage.is_ended(name)


@in_virtual_time
async def test_a_task_that_does_not_wait_costs_no_look() -> None:
    stage = Stage(FakeUpstream(seconds=20))
    stage.counters = counters = LoggingCounters()
    stage.put_key(**limit(9))
    await stage.boot()
    await stage.finish(await stage.admit(keyName="key-a"))
    assert counters.reads == 0


@in_virtual_time
async def test_nor_does_one_without_limits_that_waits() -> None:
    stage = Stage()
    stage.counters = counters = LoggingCounters()
    stage.put_key()
    stage.put_guardrail("grd-a", "key-a", requestsPerMinute=1)
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    await stage.admit(keyName="key-a", guardrailNames=["grd-a"])
    await stage.pass_time(30)
    assert counters.reads == 0


@in_virtual_time
async def test_without_counters_it_goes_on_as_it_was_let_in() -> None:
    stage = Stage()
    stage.put_key(**limit(1))
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    name = await stage.admit(keyName="key-a")
    await stage.pass_time(10)
    stage.counters.away = True
    stage.put_key(**limit(0))
    stage.put_provider()
    await stage.wait(lambda: stage.upstream.jobs)
    stage.counters.away = False
    assert (await stage.finish(name))["phase"] == "Completed"


@in_virtual_time
async def test_what_is_made_by_hand_and_waits_is_told_what_it_needs() -> None:
    stage = Stage()
    stage.put_key(**limit(1))
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    name = await stage.apply(keyName="key-a")
    await stage.pass_time(10)
    stage.put_key(**limit(0.5))
    failure = (await stage.finish(name))["failure"]
    assert failure["limit"]["usedCents"] == 0
    assert "it needs 0.30 USD, 0.15 USD are left, 0.00 USD are spent." in failure["message"]
    assert await stage.balance() == (0, 0)


@in_virtual_time
async def test_what_is_made_by_hand_keeps_within_its_keys_limit() -> None:
    stage = Stage()
    stage.put_key(**limit(1.5))
    await stage.boot()
    first = await stage.apply("task-first", keyName="key-a")
    assert (await stage.finish(first))["phase"] == "Completed"
    second = await stage.apply("task-second", keyName="key-a")
    status = await stage.finish(second)
    assert status["failure"]["code"] == "credit_limit_exceeded"
    assert status["failure"]["limit"]["limitCents"] == 45
    assert status["failure"]["limit"]["usedCents"] == 30
    assert await stage.balance() == (QUOTE, 0)
