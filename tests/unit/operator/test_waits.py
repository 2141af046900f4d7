"""A task that waits says for what and until when: in a condition, written once, and in an Event."""

from datetime import datetime
from typing import Any

import pytest

from gateway_core.api.times import format_time
from gateway_core.providers.upstream import UpstreamUnclear
from gateway_core.tasks.lifecycle import deadline
from gateway_operator.outages import LEDGER, STORE
from gateway_operator.tasks.submission import DENIED_SECONDS, LONGEST_PAUSE
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.harness import ROUTE, TASKS, Simulation


def read_progress(sim: Simulation, name: str) -> tuple[str, str, str]:
    """Phase, reason and message, as `kubectl get` shows them."""
    status = sim.status(name)
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    shown = conditions.get("Succeeded", {})
    if shown:
        assert shown["status"] == "Unknown"
        assert conditions["Finished"]["status"] == "False"
    return status.get("phase", ""), shown.get("reason", ""), shown.get("message", "")


def list_events(sim: Simulation, name: str, reason: str) -> list[str]:
    found = (*sim.kube.progress, *sim.kube.events)
    return [text for subject, why, text in found if (subject, why) == (name, reason)]


def count_writes(sim: Simulation) -> int:
    return sim.kube.calls.count(("replace_status", TASKS))


def end_of(sim: Simulation, name: str) -> str:
    controller = sim.running.controller
    return format_time(deadline(controller.cache.get(name)))


def delete_provider(sim: Simulation) -> None:
    sim.kube.remove("gatewayproviders", "simulated")


def delete_model(sim: Simulation) -> None:
    sim.kube.remove("gatewaymodels", "sim-q4")


def lose_credential(sim: Simulation) -> None:
    sim.put_provider(credentialsSecretRef={"name": "nosuch", "key": "token"})


def break_adapter(sim: Simulation) -> None:
    sim.set_problem("its library is missing")


def mend_provider(sim: Simulation) -> None:
    sim.set_problem(None)


def mend_model(sim: Simulation) -> None:
    sim.put_model()


OBSTACLES = {
    "deleted provider": (delete_provider, "no GatewayProvider is called simulated"),
    "no credential": (lose_credential, "Secret nosuch"),
    "broken adapter": (break_adapter, "library is missing"),
}


@in_virtual_time
@pytest.mark.parametrize("case", OBSTACLES)
@pytest.mark.parametrize("request_", [{}, {"route": ROUTE}], ids=["chosen route", "named route"])
async def test_obstacle_is_named_until_it_is_gone(case: str, request_: dict[str, Any]) -> None:
    hinder, text = OBSTACLES[case]
    reason = "WaitingForProvider"
    sim = await Simulation.start()
    hinder(sim)
    name = await sim.admit(**request_)
    await sim.pass_time(60)
    phase, shown, message = read_progress(sim, name)
    assert (phase, shown) == ("Submitting" if request_ else "Pending", reason)
    assert message.startswith("provider simulated: ")
    assert text in message
    assert message.endswith(f"the task waits until {end_of(sim, name)}")
    assert list_events(sim, name, reason) == [message]
    assert count_writes(sim) == 1
    mend_provider(sim)
    await sim.wait(lambda: sim.status(name).get("phase") == "Running")
    assert read_progress(sim, name)[1:] == ("Running", "simulated runs the job")
    assert (await sim.finish(name))["phase"] == "Completed"
    sim.check_history()


@in_virtual_time
async def test_deleted_model_is_waited_for() -> None:
    sim = await Simulation.start()
    delete_model(sim)
    name = await sim.admit()
    await sim.pass_time(30)
    phase, reason, message = read_progress(sim, name)
    assert (phase, reason) == ("Pending", "WaitingForModel")
    assert "sim-q4 at sim/reference_to_video" in message
    mend_model(sim)
    assert (await sim.finish(name))["phase"] == "Completed"


@in_virtual_time
async def test_provider_deleted_after_the_intent_is_named() -> None:
    sim = await Simulation.start()
    sim.upstream.retry_after = 5.0
    sim.upstream.submissions.append(Outcome.BUSY)
    name = await sim.admit()
    await sim.wait(lambda: sim.status(name).get("phase") == "Submitting")
    delete_provider(sim)
    await sim.pass_time(30)
    phase, reason, message = read_progress(sim, name)
    assert (phase, reason) == ("Submitting", "WaitingForProvider")
    assert "no GatewayProvider is called simulated" in message


@in_virtual_time
async def test_refused_credentials_are_waited_for_until_the_task_fails() -> None:
    sim = await Simulation.start()
    sim.upstream.submissions.extend([Outcome.DENIED] * 20)
    name = await sim.admit()
    await sim.wait(lambda: read_progress(sim, name)[1] == "WaitingForProvider")
    message = read_progress(sim, name)[2]
    end = datetime.fromisoformat(message.rpartition("the task waits until ")[2])
    created = datetime.fromisoformat(
        sim.running.controller.cache.get(name).metadata.creation_timestamp
    )
    assert DENIED_SECONDS - 5 <= (end - created).total_seconds() <= DENIED_SECONDS + 5
    await sim.pass_time(DENIED_SECONDS + LONGEST_PAUSE)
    assert sim.status(name)["phase"] == "Failed"


@in_virtual_time
async def test_busy_provider_is_waited_for_with_one_write() -> None:
    sim = await Simulation.start()
    sim.upstream.submissions.extend([Outcome.BUSY] * 8)
    name = await sim.admit()
    await sim.pass_time(30)
    phase, reason, message = read_progress(sim, name)
    assert (phase, reason) == ("Submitting", "WaitingForProvider")
    assert message.startswith("provider simulated: ")
    assert count_writes(sim) == 2
    status = await sim.finish(name, seconds=300)
    assert status["phase"] == "Completed"


@in_virtual_time
async def test_silent_provider_of_a_running_job_is_named_until_it_answers() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=200.0))
    name = await sim.run()
    sim.upstream.polls.extend([UpstreamUnclear("The provider responded with 503.")] * 5)
    await sim.wait(lambda: read_progress(sim, name)[1] == "WaitingForProvider", seconds=60)
    assert read_progress(sim, name)[0] == "Running"
    assert "provider simulated: The provider responded with 503;" in read_progress(sim, name)[2]
    await sim.wait(lambda: read_progress(sim, name)[1] == "Running", seconds=100)
    assert count_writes(sim) == 4
    assert (await sim.finish(name, seconds=400))["phase"] == "Completed"
    sim.check_history()


@in_virtual_time
async def test_provider_deleted_while_the_job_runs_is_named() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=60.0))
    name = await sim.run()
    delete_provider(sim)
    await sim.pass_time(20)
    phase, reason, message = read_progress(sim, name)
    assert (phase, reason) == ("Running", "WaitingForProvider")
    assert "no GatewayProvider is called simulated" in message


@in_virtual_time
async def test_store_that_is_away_is_named() -> None:
    sim = await Simulation.start()
    name = await sim.admit_stored(b'{"prompt": "a cat"}')
    sim.store.away = True
    await sim.pass_time(60)
    assert read_progress(sim, name)[1] == "WaitingForStore"
    assert STORE in read_progress(sim, name)[2]
    assert len(list_events(sim, name, "WaitingForStore")) == 1


@in_virtual_time
async def test_money_that_is_not_known_is_named() -> None:
    sim = Simulation()
    await sim.boot_without_books()
    sim.counters.away = True
    name = await sim.apply()
    await sim.pass_time(40)
    phase, reason, message = read_progress(sim, name)
    assert (phase, reason) == ("Pending", "WaitingForLedger")
    assert LEDGER in message


@in_virtual_time
async def test_waiting_task_fails_at_its_deadline() -> None:
    sim = await Simulation.start()
    delete_provider(sim)
    name = await sim.admit(deadline=60)
    status = await sim.finish(name, seconds=120)
    assert status["failure"]["code"] == "provider_unavailable"
    assert 60 <= sim.age_at_end(name) <= 75


@in_virtual_time
async def test_successor_writes_a_shown_wait_no_more() -> None:
    sim = await Simulation.start()
    delete_provider(sim)
    name = await sim.admit()
    await sim.pass_time(10)
    await sim.restart()
    await sim.pass_time(30)
    assert read_progress(sim, name)[0] == "Pending"
    assert count_writes(sim) == 1
