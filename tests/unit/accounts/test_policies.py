"""Restrictions of keys and guardrails in admission, and how soon a change of them takes effect.

`test_guardrails` has the rules.
"""

import pytest

from gateway_core.kube.errors import KubernetesUnavailable
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import MODEL, Answer, Gateway

GUARDRAILS = "gatewayguardrails"


def is_refused(answer: Answer) -> bool:
    """Whether the model may not be called, in the words of the Task dialect."""
    if answer.status != 403:
        return False
    assert set(answer.json) == {"error"}
    assert "x-ratelimit-remaining-rpm" in answer.headers
    return True


async def test_model_that_a_guardrail_denies_is_refused(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key, deniedModels=["sim-*"])
    other = gateway.put_key("demo", allowedModels=["*"])
    answer = await gateway.create()
    assert is_refused(answer)
    assert answer.json["error"] == f'Model {MODEL} is not allowed for guardrail "Pool grd-a".'
    assert gateway.task_count() == 0
    assert (await gateway.create(key=other)).status == 202
    assert await gateway.held() == 500_000, "only the admitted call"


async def test_task_records_its_key_and_guardrails(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-b", gateway.key)
    gateway.put_guardrail("grd-a", gateway.key)
    answer = await gateway.create()
    request = gateway.task_object(answer.json["id"])["spec"]["request"]
    assert request["keyName"] == "key-" + gateway.key[3:11]
    assert request["guardrailNames"] == ["grd-a", "grd-b"]


async def test_changed_restriction_takes_effect_with_its_event(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    assert is_refused(await gateway.create())
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=["*"])
    assert (await gateway.create()).status == 202
    gateway.change_key(gateway.key, allowedModels=[])
    assert is_refused(await gateway.create())
    gateway.change_key(gateway.key, allowedModels=None)
    gateway.put_guardrail("grd-a", allowedModels=[])
    assert (await gateway.create()).status == 202, "no key of it any more"


async def test_guardrails_are_listed_while_the_watch_is_silent(gateway: Gateway) -> None:
    gateway.guardrails.cut = True
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    assert (await gateway.create()).status == 202, "within a watch's usual delay"
    gateway.guardrails.staleness = 6.0
    assert is_refused(await gateway.create())


async def test_removed_guardrail_is_noticed_while_the_watch_is_silent(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    gateway.guardrails.cut, gateway.guardrails.staleness = True, 6.0
    gateway.kube.remove(GUARDRAILS, "grd-a")
    assert (await gateway.create()).status == 202


async def test_calls_of_an_interval_share_one_list(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_core.kube.read_through.INTERVAL_SECONDS", 60.0)
    gateway.guardrails.staleness = 6.0
    before = gateway.kube.calls.count(("list_page", GUARDRAILS))
    for _ in range(5):
        await gateway.create()
    assert gateway.kube.calls.count(("list_page", GUARDRAILS)) == before + 1


async def test_known_guardrails_hold_for_five_minutes_of_an_outage(
    gateway: Gateway,
) -> None:
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    faults = [Fault(KubernetesUnavailable("away")) for _ in range(9)]
    gateway.kube.order_faults("list_page", *faults)
    gateway.guardrails.staleness = 299.0
    assert is_refused(await gateway.create())
    gateway.guardrails.staleness = 301.0
    assert (await gateway.create()).status == 503


async def test_create_is_unavailable_before_guardrails_are_listed(gateway: Gateway) -> None:
    gateway.guardrails.synced = False
    answer = await gateway.create()
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
