"""Limits of keys and guardrails as they are when a task's job may start, and not at admission."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway_core.billing.counters import Budget, BudgetState
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.environment import TickingCounters
from tests.unit.operator.harness import QUOTE, Simulation

URL = "https://client.example/hook"


def limit(calls: float, window: str = "weekly") -> dict[str, Any]:
    return {"limit": {"micros": int(calls * QUOTE), "window": window}}


async def boot_waiting(sim: Simulation) -> None:
    """Start the operator without the provider."""
    sim.kube.remove("gatewayproviders", "simulated")
    await sim.boot()


async def held_under(sim: Simulation, subject: str) -> int:
    [state] = await sim.counters.read_budgets("demo", [Budget(subject)])
    return state.held


class LoggingCounters(TickingCounters):
    """Counters that tell how often budgets were asked for."""

    reads = 0

    async def read_budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetState]:
        self.reads += 1
        return await super().read_budgets(account, budgets)


@in_virtual_time
async def test_waiting_task_fails_when_key_limit_is_lowered() -> None:
    sim = Simulation()
    sim.put_key(**limit(1))
    await boot_waiting(sim)
    name = await sim.admit(keyName="key-a", callbackUrl=URL)
    await sim.pass_time(20)
    assert not sim.is_ended(name)
    sim.put_key(limit={"micros": 10_000, "window": "weekly"})
    await sim.wait(lambda: sim.is_ended(name), seconds=5)
    await sim.pass_time(0.1)
    assert await sim.balance() == (0, 0), "its hold is released with its end"
    status = await sim.finish(name)
    assert status["failure"]["code"] == "credit_limit_exceeded"
    assert status["failure"]["limit"] == {
        "limitCents": 1,
        "usedCents": 0,
        "window": "weekly",
        "resetTime": "2026-11-23T00:00:00Z",
    }
    [attempt] = sim.receivers.attempts
    error = json.loads(attempt.body)["error"]
    assert error.pop("message") == status["failure"]["message"]
    assert error == {
        "code": "credit_limit_exceeded",
        "limit_cents": 1,
        "used_cents": 0,
        "reset_at": "2026-11-23T00:00:00Z",
        "window": "weekly",
    }
    conditions = {entry["type"]: entry for entry in status["conditions"]}
    assert conditions["Succeeded"]["reason"] == "CreditLimitExceeded"


@in_virtual_time
async def test_task_of_busy_provider_fails_when_key_limit_is_lowered() -> None:
    upstream = FakeUpstream()
    upstream.submissions.extend([Outcome.BUSY] * 100)
    sim = Simulation(upstream)
    sim.put_guardrail("grd-team", "key-a", **limit(1, "lifetime"))
    await sim.boot()
    name = await sim.admit(keyName="key-a", guardrailNames=["grd-team"])
    await sim.wait(lambda: sim.upstream.count("submit") == 4)
    sim.put_guardrail("grd-team", "key-a", **limit(0.5, "lifetime"))
    status = await sim.finish(name)
    assert status["failure"]["limit"] == {"limitCents": 15, "usedCents": 0, "window": "lifetime"}
    assert status["failure"]["message"].startswith('The credit limit of guardrail "team", 0.15 USD')
    assert not sim.upstream.jobs
    assert await sim.balance() == (0, 0)


@in_virtual_time
async def test_task_that_may_have_a_job_is_not_failed() -> None:
    upstream = FakeUpstream()
    upstream.submissions.append(Outcome.UNCLEAR_WITH_JOB)
    upstream.submissions.extend([Outcome.BUSY] * 4)
    sim = Simulation(upstream)
    sim.put_key(**limit(1))
    await sim.boot()
    name = await sim.admit(keyName="key-a")
    await sim.wait(lambda: sim.upstream.count("submit") == 3)
    sim.put_key(**limit(0))
    assert (await sim.finish(name))["phase"] == "Completed"
    assert await sim.balance() == (QUOTE, 0)
    assert len(sim.upstream.jobs) == 1


@in_virtual_time
async def test_running_task_does_not_fail_by_lowered_limit() -> None:
    sim = Simulation(FakeUpstream(seconds=20))
    sim.put_key(**limit(1))
    await sim.boot()
    name = await sim.run(keyName="key-a")
    sim.put_key(**limit(0))
    assert (await sim.finish(name))["phase"] == "Completed"


@in_virtual_time
async def test_only_tasks_beyond_the_limit_fail() -> None:
    sim = Simulation()
    sim.put_guardrail("grd-team", "key-a", "key-b", **limit(5))
    await boot_waiting(sim)
    names = [
        await sim.admit(keyName=key, guardrailNames=["grd-team"]) for key in ("key-a", "key-b")
    ]
    names += [await sim.admit(keyName="key-a", guardrailNames=["grd-team"]) for _ in range(3)]
    await sim.pass_time(20)
    settle = sim.counters.settle

    async def settle_slowly(*given: Any) -> bool:
        await asyncio.sleep(1)
        return await settle(*given)

    # so that none is judged while the hold of one that has failed is still there
    sim.counters.settle = settle_slowly  # type: ignore[method-assign]
    sim.put_guardrail("grd-team", "key-a", "key-b", **limit(2))
    await sim.wait(lambda: sum(map(sim.is_ended, names)) == 3, seconds=5)
    await sim.pass_time(20)
    assert sum(map(sim.is_ended, names)) == 3
    assert await held_under(sim, "guardrail/grd-team") == 2 * QUOTE
    sim.put_provider()
    phases = [(await sim.finish(name))["phase"] for name in names]
    assert sorted(phases) == ["Completed"] * 2 + ["Failed"] * 3
    assert await sim.balance() == (2 * QUOTE, 0)


@pytest.mark.parametrize("way", [Simulation.admit, Simulation.apply], ids=["rest", "kubectl"])
@in_virtual_time
async def test_failure_names_usage_of_others_only(way: Callable[..., Any]) -> None:
    sim = Simulation()
    sim.put_key(**limit(3))
    await sim.boot()
    await sim.finish(await sim.admit(keyName="key-a"))
    sim.kube.remove("gatewayproviders", "simulated")
    name = await way(sim, keyName="key-a")
    await sim.pass_time(10)
    sim.put_key(**limit(1.5))
    failure = (await sim.finish(name))["failure"]
    assert failure["limit"]["usedCents"] == 30
    assert "it needs 0.30 USD, 0.15 USD are left, 0.30 USD are spent." in failure["message"]


@in_virtual_time
async def test_recorded_guardrails_count() -> None:
    sim = Simulation()
    sim.put_guardrail("grd-old", "key-a", **limit(9))
    sim.put_guardrail("grd-gone", "key-a", **limit(9))
    await boot_waiting(sim)
    names = ["grd-gone", "grd-old"]
    name = await sim.admit(keyName="key-a", guardrailNames=names)
    await sim.pass_time(10)
    sim.put_guardrail("grd-new", "key-a", **limit(0))
    sim.put_guardrail("grd-old", **limit(9))
    sim.kube.remove("gatewayguardrails", "grd-gone")
    await sim.pass_time(10)
    assert not sim.is_ended(name), "a pool that it never counted in restricts it as little"
    sim.put_guardrail("grd-old", **limit(0))
    assert (await sim.finish(name))["failure"]["code"] == "credit_limit_exceeded"


@in_virtual_time
async def test_guardrail_recreated_in_another_account_does_not_restrict() -> None:
    sim = Simulation()
    sim.put_key()
    sim.put_guardrail("grd-a", "key-a", **limit(9))
    await boot_waiting(sim)
    name = await sim.admit(keyName="key-a", guardrailNames=["grd-a"])
    await sim.pass_time(10)
    sim.put_key(accountName="guest", **limit(0))
    sim.put_guardrail("grd-a", "key-a", accountName="guest", **limit(0))
    await sim.pass_time(10)
    assert not sim.is_ended(name)


@in_virtual_time
async def test_task_that_does_not_wait_reads_no_budgets() -> None:
    sim = Simulation(FakeUpstream(seconds=20))
    sim.counters = counters = LoggingCounters()
    sim.put_key(**limit(9))
    await sim.boot()
    await sim.finish(await sim.admit(keyName="key-a"))
    assert counters.reads == 0


@in_virtual_time
async def test_waiting_task_without_limits_reads_no_budgets() -> None:
    sim = Simulation()
    sim.counters = counters = LoggingCounters()
    sim.put_key()
    sim.put_guardrail("grd-a", "key-a", requestsPerMinute=1)
    await boot_waiting(sim)
    await sim.admit(keyName="key-a", guardrailNames=["grd-a"])
    await sim.pass_time(30)
    assert counters.reads == 0


@in_virtual_time
async def test_task_continues_without_counters() -> None:
    sim = Simulation()
    sim.put_key(**limit(1))
    await boot_waiting(sim)
    name = await sim.admit(keyName="key-a")
    await sim.pass_time(10)
    sim.counters.away = True
    sim.put_key(**limit(0))
    sim.put_provider()
    await sim.wait(lambda: sim.upstream.jobs)
    sim.counters.away = False
    assert (await sim.finish(name))["phase"] == "Completed"


@in_virtual_time
async def test_task_from_kubectl_is_bound_by_key_limit() -> None:
    sim = Simulation()
    sim.put_key(**limit(1.5))
    await sim.boot()
    first = await sim.apply("task-first", keyName="key-a")
    assert (await sim.finish(first))["phase"] == "Completed"
    second = await sim.apply("task-second", keyName="key-a")
    status = await sim.finish(second)
    assert status["failure"]["code"] == "credit_limit_exceeded"
    assert status["failure"]["limit"]["limitCents"] == 45
    assert status["failure"]["limit"]["usedCents"] == 30
    assert await sim.balance() == (QUOTE, 0)
