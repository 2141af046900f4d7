"""A task made with kubectl: checked, quoted and held as REST does, and then run like any other."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    FOLDED_LABEL,
    SHARD_LABEL,
    TASK_FINALIZER,
    shard_of,
)
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import read_ledger
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.harness import QUOTE, TASKS, Simulation


@in_virtual_time
async def test_kubectl_task_is_priced_reserved_labelled_and_run() -> None:
    sim = await Simulation.start()
    name = await sim.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
    await sim.wait(lambda: sim.upstream.jobs)
    assert await sim.balance() == (0, QUOTE)
    metadata = sim.history[name][-1]["metadata"]
    assert metadata["labels"] == {ACCOUNT_LABEL: "demo", SHARD_LABEL: str(shard_of(name))}
    assert metadata["finalizers"] == [TASK_FINALIZER]
    status = await sim.finish(name)
    assert status["phase"] == "Completed"
    assert status["reservedMicros"] == QUOTE
    assert await sim.balance() == (QUOTE, 0)
    writes = [call for call in sim.kube.calls if call[1] == TASKS]
    assert writes.count(("replace_status", TASKS)) == 3


@in_virtual_time
async def test_provider_receives_input_with_defaults() -> None:
    sim = await Simulation.start()
    name = await sim.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
    await sim.finish(name)
    [job] = sim.upstream.jobs
    assert job.input == {
        "prompt": "x",
        "reference_image_urls": ["http://a.example"],
        "aspect_ratio": "16:9",
        "audio": True,
        "duration_seconds": 5,
        "output_resolution": "720p",
    }


@pytest.mark.parametrize("made", [0.0, 2.0, 5.0])
@pytest.mark.parametrize(
    "change",
    [{"prices": [{"perSecond": [{"micros": 250_000}]}]}, {"disabled": True}, None],
    ids=["edited", "disabled", "removed"],
)
@pytest.mark.parametrize("way", [Simulation.admit, Simulation.apply], ids=["rest", "kubectl"])
@in_virtual_time
async def test_charge_is_share_of_reservation_if_model_is_gone(
    way: Callable[[Simulation], Any], change: dict[str, Any] | None, made: float
) -> None:
    sim = await Simulation.start(FakeUpstream(made_seconds=made))
    name = await way(sim)
    await sim.wait(lambda: sim.upstream.jobs)
    if change is None:
        sim.kube.remove("gatewaymodels", "sim-q4")
    else:
        sim.put_model(**change)
    assert (await sim.finish(name))["chargedMicros"] == made * 60_000
    assert await sim.balance() == (made * 60_000, 0)


@in_virtual_time
async def test_late_provider_does_not_change_the_price() -> None:
    sim = Simulation()
    sim.kube.remove("gatewayproviders", "simulated")
    await sim.boot()
    name = await sim.apply()
    await sim.pass_time(10)
    sim.put_provider()
    assert (await sim.finish(name))["chargedMicros"] == QUOTE
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_kill_during_adoption_does_not_change_the_price() -> None:
    sim = await Simulation.start()
    name = await sim.apply()
    await sim.wait(lambda: SHARD_LABEL in sim.history[name][-1]["metadata"].get("labels", {}))
    assert not sim.status(name)
    await sim.restart()
    assert (await sim.finish(name))["chargedMicros"] == QUOTE
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_price_is_that_of_creation_time() -> None:
    sim = Simulation()
    prices = [
        {"perCallMicros": 100},
        {"perCallMicros": 900, "effectiveTime": "2026-11-21T10:00:05Z"},
    ]
    sim.put_model(prices=prices)
    sim.counters.away = True
    await sim.boot_without_books()
    name = await sim.apply()
    await sim.pass_time(20)
    sim.counters.away = False
    assert (await sim.finish(name))["chargedMicros"] == 100


@in_virtual_time
async def test_account_missing_in_counters_is_rebuilt() -> None:
    sim = Simulation()
    await sim.boot_without_books()
    name = await sim.apply()
    assert (await sim.finish(name))["phase"] == "Completed"
    assert await sim.balance() == (QUOTE, 0)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"accountName": "nobody"}, "invalid_request", "Account nobody does not exist."),
        ({"modelId": "nothing"}, "invalid_request", "Model nothing is not offered"),
        ({"service": "other"}, "invalid_request", "is not offered at other/"),
        ({"service": "other"}, "invalid_request", "It is a model of POST /api/v1/sim/"),
        ({"modelId": "sim-q5"}, "invalid_request", "Did you mean sim-q4? kubectl get"),
        ({"modelId": "y" * 253}, "invalid_request", "kubectl get gatewaymodels lists the models."),
        ({"input": "nonsense"}, "invalid_request", "The input is unusable"),
        ({"input": "{}"}, "invalid_request", "prompt is required"),
        (
            {"callbackUrl": "https://user:pw@example.com"},
            "invalid_request",
            "callback_url must not contain a user name or password",
        ),
    ],
)
@in_virtual_time
async def test_task_that_rest_refuses_fails(change: dict[str, Any], code: str, text: str) -> None:
    sim = await Simulation.start()
    name = await sim.apply(**change)
    status = await sim.finish(name)
    assert status["failure"]["code"] == code
    assert text in status["failure"]["message"]
    assert sim.upstream.calls == []
    assert await sim.balance() == (0, 0)
    sim.check_history()


@in_virtual_time
async def test_missing_stored_input_fails_the_task() -> None:
    sim = await Simulation.start()
    ref = {"key": "inputs/demo/x.json", "bytes": 2, "sha256": "0" * 64}
    status = await sim.finish(await sim.apply(input=None, inputRef=ref))
    assert status["failure"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda sim: sim.put_account(funds={"paidMicros": 1}), "insufficient_balance"),
        (lambda sim: sim.put_account(suspended=True), "invalid_request"),
        (
            lambda sim: sim.put_model(
                prices=[{"perCallMicros": 1, "effectiveTime": "2099-01-01T00:00:00Z"}]
            ),
            "invalid_request",
        ),
        (
            lambda sim: sim.put_model(
                fields=[{"name": "audio", "supported": False}],
            ),
            "invalid_request",
        ),
    ],
    ids=["no funds", "suspended", "no price yet", "field the model lacks"],
)
@in_virtual_time
async def test_suspended_account_or_disabled_model_fails_the_task(
    prepare: Callable[[Simulation], None], code: str
) -> None:
    sim = Simulation()
    prepare(sim)
    await sim.boot()
    status = await sim.finish(await sim.apply())
    assert status["failure"]["code"] == code
    assert sim.upstream.calls == []
    assert await sim.balance() == (0, 0)


@in_virtual_time
async def test_unlimited_account_needs_no_funds() -> None:
    sim = Simulation()
    sim.put_account(funds={"paidMicros": 0}, unlimited=True)
    await sim.boot()
    assert (await sim.finish(await sim.apply()))["phase"] == "Completed"


@in_virtual_time
async def test_invalid_shard_label_is_replaced() -> None:
    sim = Simulation()
    operator = await sim.boot()
    obj = {
        "metadata": {"name": "task-odd", "labels": {SHARD_LABEL: "nonsense"}},
        "spec": sim.spec(),
    }
    await sim.kube.create(TASKS, obj)
    other = await sim.admit()
    assert (await sim.finish(other))["phase"] == "Completed"
    await sim.pass_time(200)
    assert operator.is_running, operator.failure
    assert sim.is_ended("task-odd")


@in_virtual_time
async def test_labels_and_amounts_of_kubectl_task_are_replaced() -> None:
    """As `kubectl get -o yaml`, an edit and `kubectl create` bring along."""
    sim = await Simulation.start()
    labels = {ACCOUNT_LABEL: "demo", SHARD_LABEL: "3"}
    metadata = {"name": "task-copied", "labels": labels, "finalizers": [TASK_FINALIZER]}
    spec = sim.spec(reservedMicros=0, fingerprint="f" * 64)
    await sim.kube.create(TASKS, {"metadata": metadata, "spec": spec})
    assert (await sim.finish("task-copied"))["chargedMicros"] == QUOTE
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_archived_name_is_refused() -> None:
    """Its result is in the archive, and stays what it was."""
    sim = await Simulation.start()
    name = await sim.apply()
    await sim.finish(name)
    await sim.kube.delete(TASKS, name)
    await sim.pass_time(5)
    before = dict(sim.store.contents)
    await sim.apply(name, input='{"prompt": "another"}')
    await sim.pass_time(30)
    assert sim.is_closed(name)
    assert sim.status(name)["failure"]["code"] == "invalid_request"
    assert "was there before" in sim.status(name)["failure"]["message"]
    assert {k: v for k, v in sim.store.contents.items() if k in before} == before
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_objects_applied_together_with_the_task_are_awaited() -> None:
    sim = Simulation()
    sim.kube.remove("gatewaymodels", "sim-q4")
    await sim.boot()
    name = await sim.apply()
    await sim.pass_time(5)
    assert not sim.is_ended(name)
    sim.put_model()
    assert (await sim.finish(name))["phase"] == "Completed"


@in_virtual_time
async def test_copy_of_ended_task_is_charged() -> None:
    """kubectl keeps labels, so the copy says from the start that it is folded."""
    sim = await Simulation.start()
    labels = {FOLDED_LABEL: "20261120T100000Z"}
    copy = {"metadata": {"name": "task-copy", "labels": labels}, "spec": sim.spec()}
    await sim.kube.create(TASKS, copy)
    await sim.wait(lambda: sim.upstream.jobs)
    assert (await read_ledger(sim.kube, JournalStore(sim.store), "demo")).holds == {
        "task-copy": QUOTE
    }
    await sim.finish("task-copy")
    await sim.pass_time(30)
    [usage] = sim.kube.list_objects("gatewayusages")
    assert usage["status"]["chargedMicros"] == QUOTE
    assert (await read_ledger(sim.kube, JournalStore(sim.store), "demo")).charged == QUOTE
    assert sim.history["task-copy"][-1]["metadata"]["labels"][FOLDED_LABEL] not in labels.values()


@in_virtual_time
async def test_running_task_with_aggregation_label_is_charged() -> None:
    sim = await Simulation.start()
    name = await sim.apply()
    await sim.wait(lambda: sim.upstream.jobs)
    obj = await sim.kube.get(TASKS, name)
    mark = {"metadata": {"labels": {FOLDED_LABEL: "20261120T100000Z"}}}
    await sim.kube.patch(TASKS, obj, mark)
    await sim.finish(name)
    await sim.pass_time(30)
    assert (await read_ledger(sim.kube, JournalStore(sim.store), "demo")).charged == QUOTE
