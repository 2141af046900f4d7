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
from tests.unit.operator.harness import QUOTE, TASKS, Stage


@in_virtual_time
async def test_it_is_quoted_held_labelled_and_run() -> None:
    stage = Stage()
    await stage.boot()
    name = await stage.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
    await stage.wait(lambda: stage.upstream.jobs)
    assert await stage.balance() == (0, QUOTE)
    metadata = stage.history[name][-1]["metadata"]
    assert metadata["labels"] == {ACCOUNT_LABEL: "demo", SHARD_LABEL: str(shard_of(name))}
    assert metadata["finalizers"] == [TASK_FINALIZER]
    status = await stage.finish(name)
    assert status["phase"] == "Completed"
    assert status["reservedMicros"] == QUOTE
    assert await stage.balance() == (QUOTE, 0)
    writes = [call for call in stage.kube.calls if call[1] == TASKS]
    assert writes.count(("replace_status", TASKS)) == 3


@in_virtual_time
async def test_defaults_are_filled_in_for_the_provider() -> None:
    stage = Stage()
    await stage.boot()
    name = await stage.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
    await stage.finish(name)
    [job] = stage.upstream.jobs
    assert job.input == {
        "prompt": "x",
        "reference_image_urls": ["http://a.example"],
        "aspect_ratio": "16:9",
        "audio": True,
        "duration_seconds": 5,
        "output_resolution": "720p",
    }


@in_virtual_time
async def test_what_was_made_is_charged_at_the_price_of_the_default_resolution() -> None:
    stage = Stage(FakeUpstream(made_seconds=4.0))
    await stage.boot()
    name = await stage.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
    assert (await stage.finish(name))["chargedMicros"] == 4 * 60_000


@pytest.mark.parametrize("made", [0.0, 2.0, 5.0])
@pytest.mark.parametrize(
    "change",
    [{"prices": [{"perSecond": [{"micros": 250_000}]}]}, {"disabled": True}, None],
    ids=["edited", "disabled", "removed"],
)
@pytest.mark.parametrize("way", [Stage.admit, Stage.apply], ids=["rest", "kubectl"])
@in_virtual_time
async def test_what_was_made_is_charged_at_the_share_of_its_hold_whatever_became_of_its_model(
    way: Callable[[Stage], Any], change: dict[str, Any] | None, made: float
) -> None:
    stage = Stage(FakeUpstream(made_seconds=made))
    await stage.boot()
    name = await way(stage)
    await stage.wait(lambda: stage.upstream.jobs)
    if change is None:
        stage.kube.remove("gatewaymodels", "sim-q4")
    else:
        stage.put_model(**change)
    assert (await stage.finish(name))["chargedMicros"] == made * 60_000
    assert await stage.balance() == (made * 60_000, 0)


@in_virtual_time
async def test_a_provider_that_comes_late_makes_it_no_cheaper() -> None:
    stage = Stage()
    stage.kube.remove("gatewayproviders", "simulated")
    await stage.boot()
    name = await stage.apply()
    await stage.pass_time(10)
    stage.put_provider()
    assert (await stage.finish(name))["chargedMicros"] == QUOTE
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_a_death_in_the_middle_of_adoption_makes_it_no_cheaper() -> None:
    stage = Stage()
    await stage.boot()
    name = await stage.apply()
    await stage.wait(lambda: SHARD_LABEL in stage.history[name][-1]["metadata"].get("labels", {}))
    assert not stage.status(name)
    await stage.restart()
    assert (await stage.finish(name))["chargedMicros"] == QUOTE
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_the_price_is_that_of_its_creation() -> None:
    stage = Stage()
    prices = [
        {"perCallMicros": 100},
        {"perCallMicros": 900, "effectiveTime": "2026-11-21T10:00:05Z"},
    ]
    stage.put_model(prices=prices)
    stage.counters.away = True
    await stage.boot_without_books()
    name = await stage.apply()
    await stage.pass_time(20)
    stage.counters.away = False
    assert (await stage.finish(name))["chargedMicros"] == 100


@in_virtual_time
async def test_books_that_are_not_open_are_opened() -> None:
    stage = Stage()
    await stage.boot_without_books()
    name = await stage.apply()
    assert (await stage.finish(name))["phase"] == "Completed"
    assert await stage.balance() == (QUOTE, 0)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"accountName": "nobody"}, "invalid_request", "Account nobody does not exist."),
        ({"modelId": "nothing"}, "invalid_request", "Model nothing is not offered"),
        ({"service": "other"}, "invalid_request", "is not offered at other/"),
        ({"input": "nonsense"}, "invalid_request", "The input is unusable"),
        ({"input": "[]"}, "invalid_request", "The input is unusable"),
        ({"input": "{}"}, "invalid_request", "prompt is required"),
        (
            {"input": '{"prompt":"x","reference_image_urls":["ftp://a"],"colour":1}'},
            "invalid_request",
            "reference_image_urls [0] must be an absolute http or https URL",
        ),
        (
            {"callbackUrl": "https://user:pw@example.com"},
            "invalid_request",
            "callback_url must not contain a user name or password",
        ),
    ],
)
def test_what_rest_would_have_refused_fails(change: dict[str, Any], code: str, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.apply(**change)
        status = await stage.finish(name)
        assert status["failure"]["code"] == code
        assert text in status["failure"]["message"]
        assert stage.upstream.calls == []
        assert await stage.balance() == (0, 0)
        stage.check_history()

    run()


@in_virtual_time
async def test_an_input_in_the_store_that_is_not_there_fails() -> None:
    stage = Stage()
    await stage.boot()
    ref = {"key": "inputs/demo/x.json", "bytes": 2, "sha256": "0" * 64}
    status = await stage.finish(await stage.apply(input=None, inputRef=ref))
    assert status["failure"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda stage: stage.put_account(funds={"paidMicros": 1}), "insufficient_balance"),
        (lambda stage: stage.put_account(suspended=True), "invalid_request"),
        (
            lambda stage: stage.put_model(
                prices=[{"perCallMicros": 1, "effectiveTime": "2099-01-01T00:00:00Z"}]
            ),
            "invalid_request",
        ),
        (
            lambda stage: stage.put_model(
                fields=[{"name": "audio", "supported": False}],
            ),
            "invalid_request",
        ),
    ],
    ids=["no funds", "suspended", "no price yet", "field the model lacks"],
)
def test_what_the_account_or_model_rules_out_fails(
    prepare: Callable[[Stage], None], code: str
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage()
        prepare(stage)
        await stage.boot()
        status = await stage.finish(await stage.apply())
        assert status["failure"]["code"] == code
        assert stage.upstream.calls == []
        assert await stage.balance() == (0, 0)

    run()


@in_virtual_time
async def test_an_unlimited_account_needs_no_funds() -> None:
    stage = Stage()
    stage.put_account(funds={"paidMicros": 0}, unlimited=True)
    await stage.boot()
    assert (await stage.finish(await stage.apply()))["phase"] == "Completed"


@in_virtual_time
async def test_what_it_says_of_its_own_money_counts_for_nothing() -> None:
    stage = Stage()
    await stage.boot()
    name = await stage.apply(reservedMicros=1)
    assert (await stage.finish(name))["chargedMicros"] == QUOTE


@in_virtual_time
async def test_a_shard_label_of_nonsense_does_no_harm() -> None:
    stage = Stage()
    operator = await stage.boot()
    obj = {
        "metadata": {"name": "task-odd", "labels": {SHARD_LABEL: "nonsense"}},
        "spec": stage.spec(),
    }
    await stage.kube.create(TASKS, obj)
    other = await stage.admit()
    assert (await stage.finish(other))["phase"] == "Completed"
    await stage.pass_time(200)
    assert operator.is_running, operator.failure
    assert stage.is_ended("task-odd")


@in_virtual_time
async def test_labels_and_amounts_of_its_own_are_not_believed() -> None:
    """As `kubectl get -o yaml`, an edit and `kubectl create` bring along."""
    stage = Stage()
    await stage.boot()
    labels = {ACCOUNT_LABEL: "demo", SHARD_LABEL: "3"}
    metadata = {"name": "task-copied", "labels": labels, "finalizers": [TASK_FINALIZER]}
    spec = stage.spec(reservedMicros=0, fingerprint="f" * 64)
    await stage.kube.create(TASKS, {"metadata": metadata, "spec": spec})
    assert (await stage.finish("task-copied"))["chargedMicros"] == QUOTE
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_a_name_that_was_used_before_is_refused() -> None:
    """Its result is in the archive, and stays what it was."""
    stage = Stage()
    await stage.boot()
    name = await stage.apply()
    await stage.finish(name)
    await stage.kube.delete(TASKS, name)
    await stage.pass_time(5)
    before = dict(stage.store.contents)
    await stage.apply(name)
    await stage.pass_time(30)
    assert stage.is_closed(name)
    assert stage.status(name)["failure"]["code"] == "invalid_request"
    assert "was there before" in stage.status(name)["failure"]["message"]
    assert {k: v for k, v in stage.store.contents.items() if k in before} == before
    assert await stage.balance() == (QUOTE, 0)


@in_virtual_time
async def test_what_is_applied_together_with_it_is_waited_for() -> None:
    stage = Stage()
    stage.kube.remove("gatewaymodels", "sim-q4")
    await stage.boot()
    name = await stage.apply()
    await stage.pass_time(5)
    assert not stage.is_ended(name)
    stage.put_model()
    assert (await stage.finish(name))["phase"] == "Completed"


@in_virtual_time
async def test_a_copy_of_an_ended_task_is_charged_like_any_other() -> None:
    """kubectl keeps labels, so the copy says from the start that it is folded."""
    stage = Stage()
    await stage.boot()
    labels = {FOLDED_LABEL: "20261120T100000Z"}
    copy = {"metadata": {"name": "task-copy", "labels": labels}, "spec": stage.spec()}
    await stage.kube.create(TASKS, copy)
    await stage.wait(lambda: stage.upstream.jobs)
    assert (await read_ledger(stage.kube, JournalStore(stage.store), "demo")).holds == {
        "task-copy": QUOTE
    }
    await stage.finish("task-copy")
    await stage.pass_time(30)
    [usage] = stage.kube.list_objects("gatewayusages")
    assert usage["status"]["chargedMicros"] == QUOTE
    assert (await read_ledger(stage.kube, JournalStore(stage.store), "demo")).charged == QUOTE
    assert stage.history["task-copy"][-1]["metadata"]["labels"][FOLDED_LABEL] not in labels.values()


@in_virtual_time
async def test_a_running_task_that_is_labelled_as_folded_is_charged_all_the_same() -> None:
    stage = Stage()
    await stage.boot()
    name = await stage.apply()
    await stage.wait(lambda: stage.upstream.jobs)
    obj = await stage.kube.get(TASKS, name)
    mark = {"metadata": {"labels": {FOLDED_LABEL: "20261120T100000Z"}}}
    await stage.kube.patch(TASKS, obj, mark)
    await stage.finish(name)
    await stage.pass_time(30)
    assert (await read_ledger(stage.kube, JournalStore(stage.store), "demo")).charged == QUOTE
