"""Keys and guardrails at the door: what may be called, and how fast a change of that is known."""

from typing import Any

import orjson
import pytest

from gateway_core.api.errors import CreditLimitExceeded, Forbidden, GatewayError
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_web.errors import Dialect, render_error
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import MODEL, Answer, Gateway, body

GUARDRAILS = "gatewayguardrails"


def is_refused(answer: Answer) -> bool:
    """Whether the model may not be called, in the words of the Task dialect."""
    if answer.status != 403:
        return False
    assert set(answer.json) == {"error"}
    assert "x-ratelimit-remaining-rpm" in answer.headers
    return True


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"allowedModels": ["sim-*"]}, 202),
        ({"allowedModels": [MODEL]}, 202),
        ({"allowedModels": ["other"]}, 403),
        ({"allowedModels": []}, 403),
        ({"allowedProviders": ["sim"]}, 202),
        ({"allowedProviders": ["simulated"]}, 403),
        ({"allowedProviders": []}, 403),
    ],
)
async def test_a_keys_lists_decide(gateway: Gateway, spec: dict[str, Any], status: int) -> None:
    key = gateway.put_key("demo", **spec)
    assert (await gateway.create(key=key)).status == status
    assert (await gateway.create()).status == 202, "another key of the account"


@pytest.mark.parametrize(
    "spec",
    [
        {"allowedModels": []},
        {"deniedModels": ["sim-*"]},
        {"allowedProviders": ["other"]},
        {"deniedProviders": ["sim"]},
    ],
)
async def test_so_do_those_of_its_guardrails(gateway: Gateway, spec: dict[str, Any]) -> None:
    gateway.put_guardrail("grd-a", gateway.key, **spec)
    other = gateway.put_key("demo", allowedModels=["*"])
    answer = await gateway.create()
    assert is_refused(answer)
    assert answer.json["error"] == f'Model {MODEL} is not allowed for guardrail "Pool grd-a".'
    assert gateway.task_count() == 0
    assert (await gateway.create(key=other)).status == 202
    assert await gateway.held() == 500_000, "of the one that was let in"


async def test_restrictions_intersect(gateway: Gateway) -> None:
    gateway.put_model("sim-b")
    key = gateway.put_key("demo", allowedModels=["sim-*"])
    gateway.put_guardrail("grd-a", key, deniedModels=["sim-b"])
    assert (await gateway.create(key=key)).status == 202
    assert is_refused(await gateway.create(body(model="sim-b"), key=key))


async def test_another_accounts_guardrail_does_not_hold(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key, account="guest", allowedModels=[])
    answer = await gateway.create()
    assert answer.status == 202
    assert "guardrailNames" not in gateway.task_object(answer.json["id"])["spec"]["request"]


async def test_too_many_guardrails_close_the_key(gateway: Gateway) -> None:
    for number in range(MOST_GUARDRAILS + 1):
        gateway.put_guardrail(f"grd-{number}", gateway.key)
    answer = await gateway.create()
    assert is_refused(answer)
    assert "more than 8 guardrails" in answer.json["error"]
    gateway.kube.remove(GUARDRAILS, "grd-0")
    assert (await gateway.create()).status == 202


async def test_a_task_is_recorded_with_its_key_and_guardrails(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-b", gateway.key)
    gateway.put_guardrail("grd-a", gateway.key)
    answer = await gateway.create()
    request = gateway.task_object(answer.json["id"])["spec"]["request"]
    assert request["keyName"] == "key-" + gateway.key[3:11]
    assert request["guardrailNames"] == ["grd-a", "grd-b"]


async def test_a_change_is_known_with_its_event(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    assert is_refused(await gateway.create())
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=["*"])
    assert (await gateway.create()).status == 202
    gateway.change_key(gateway.key, allowedModels=[])
    assert is_refused(await gateway.create())
    gateway.change_key(gateway.key, allowedModels=None)
    gateway.put_guardrail("grd-a", allowedModels=[])
    assert (await gateway.create()).status == 202, "no key of it any more"


async def test_a_silent_watch_is_read_around(gateway: Gateway) -> None:
    gateway.guardrails.cut = True
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    assert (await gateway.create()).status == 202, "within a watch's usual delay"
    gateway.guardrails.staleness = 6.0
    assert is_refused(await gateway.create()), "one that no name was known of"


async def test_object_deleted_during_a_silent_watch_no_longer_holds(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    gateway.guardrails.cut = True
    gateway.guardrails.staleness = 6.0
    gateway.kube.remove(GUARDRAILS, "grd-a")
    assert (await gateway.create()).status == 202


async def test_a_list_serves_all_calls_of_an_interval(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_core.kube.read_through.INTERVAL_SECONDS", 60.0)
    gateway.guardrails.staleness = 6.0
    before = gateway.kube.calls.count(("list_page", GUARDRAILS))
    for _ in range(5):
        await gateway.create()
    assert gateway.kube.calls.count(("list_page", GUARDRAILS)) == before + 1


async def test_what_is_known_goes_on_for_five_minutes(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    faults = [Fault(KubernetesUnavailable("away")) for _ in range(9)]
    gateway.kube.order_faults("list_page", *faults)
    gateway.guardrails.staleness = 299.0
    assert is_refused(await gateway.create())
    gateway.guardrails.staleness = 301.0
    assert (await gateway.create()).status == 503


async def test_nothing_is_let_in_before_the_guardrails_are_known(gateway: Gateway) -> None:
    gateway.guardrails.synced = False
    answer = await gateway.create()
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"


NOT_ALLOWED = Forbidden("No.", code="model_not_allowed", param="model")
SPENT = CreditLimitExceeded("Spent.")


@pytest.mark.parametrize(
    ("error", "status", "openai", "google"),
    [
        (NOT_ALLOWED, 403, ("permission_error", "model_not_allowed"), "PERMISSION_DENIED"),
        (SPENT, 429, ("insufficient_quota", "credit_limit_exceeded"), "RESOURCE_EXHAUSTED"),
    ],
)
def test_every_surface_has_its_own_words_for_them(
    error: GatewayError, status: int, openai: tuple[str, str], google: str
) -> None:
    shown = render_error(error, Dialect.OPENAI)
    told = orjson.loads(shown.body)["error"]
    assert (shown.status, told["type"], told["code"]) == (status, *openai)
    shown = render_error(error, Dialect.GOOGLE)
    told = orjson.loads(shown.body)["error"]
    assert (shown.status, told["code"], told["status"]) == (status, status, google)
    assert told["details"] == [], "no delay to wait out"
    names = {name for name, _ in shown.headers}
    assert b"retry-after" not in names
    assert (b"x-should-retry" in names) is (status == 429)
