"""The key and guardrails that a task made with kubectl names: as REST would judge a call's."""

from typing import Any

import pytest

from gateway_core.billing.counters import Budget
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.harness import QUOTE, Simulation

OPENS_NOTHING = "Key key-a opens nothing: "
NOT_ALLOWED = "Model sim-q4 is not allowed for key key-a."
MISSING = "Key key-a does not exist in account demo."
REFUSED: dict[str, tuple[dict[str, Any] | None, str]] = {
    "unknown": (None, MISSING),
    "another account's": ({"accountName": "guest"}, MISSING),
    "revoked": ({"revoked": True, "disabled": True}, f"{OPENS_NOTHING}the key is revoked."),
    "disabled": ({"disabled": True}, f"{OPENS_NOTHING}the key is disabled by spec.disabled."),
    "expired": (
        {"expirationTime": "2026-11-21T09:59:59Z"},
        f"{OPENS_NOTHING}spec.expirationTime is over.",
    ),
    "a management key": ({"class": "Management"}, "Key key-a is a management key"),
    "not for the model": ({"allowedModels": ["other*"]}, NOT_ALLOWED),
    "not for the provider": ({"allowedProviders": []}, NOT_ALLOWED),
    "of a viewer": (
        {"createdBy": "vera"},
        "Key key-a may create nothing: who made it is a viewer.",
    ),
    "of a removed member": (
        {"createdBy": "rita"},
        f"{OPENS_NOTHING}user rita, who made the key, is no member of account demo.",
    ),
    "of a suspended user": (
        {"createdBy": "sam"},
        f"{OPENS_NOTHING}user sam, who made the key, is suspended.",
    ),
}


@pytest.mark.parametrize(("key", "text"), REFUSED.values(), ids=REFUSED)
@in_virtual_time
async def test_key_that_rest_would_refuse_is_refused(key: dict[str, Any] | None, text: str) -> None:
    sim = Simulation()
    sim.put_user("vera", "demo", role="viewer")
    sim.put_user("rita")
    sim.put_user("sam", "demo", role="owner", suspended=True)
    if key is not None:
        sim.put_key(**key)
    await sim.boot()
    failure = (await sim.finish(await sim.apply(keyName="key-a")))["failure"]
    assert text in failure["message"]
    is_denied = text == NOT_ALLOWED
    assert failure["code"] == ("model_not_allowed" if is_denied else "invalid_request")
    assert not sim.upstream.jobs
    assert await sim.balance() == (0, 0)


@in_virtual_time
async def test_guardrail_that_key_lacks_is_refused() -> None:
    sim = Simulation()
    sim.put_key()
    await sim.boot()
    name = await sim.apply(keyName="key-a", guardrailNames=["grd-a"])
    assert (await sim.finish(name))["failure"]["message"].startswith(
        "The guardrails of key key-a are: none. spec.request.guardrailNames must name them."
    )


@in_virtual_time
async def test_key_of_member_serves_task_from_kubectl() -> None:
    sim = Simulation()
    sim.put_user("mia", "demo")
    sim.put_key(createdBy="mia", allowedModels=["sim-*"])
    await sim.boot()
    assert (await sim.finish(await sim.apply(keyName="key-a")))["phase"] == "Completed"


@in_virtual_time
async def test_guardrails_without_a_key_are_refused() -> None:
    sim = Simulation()
    sim.put_guardrail("grd-a")
    await sim.boot()
    name = await sim.apply(guardrailNames=["grd-a"])
    assert "goes with spec.request.keyName" in (await sim.finish(name))["failure"]["message"]


@in_virtual_time
async def test_guardrail_applies_to_task_from_kubectl() -> None:
    sim = Simulation()
    sim.put_key()
    sim.put_guardrail("grd-team", "key-a", deniedModels=["sim-*"])
    await sim.boot()
    name = await sim.apply(keyName="key-a", guardrailNames=["grd-team"])
    failure = (await sim.finish(name))["failure"]
    assert failure["message"] == 'Model sim-q4 is not allowed for guardrail "team".'
    silent = await sim.apply("task-silent", keyName="key-a")
    text = (await sim.finish(silent))["failure"]["message"]
    assert "The guardrails of key key-a are: grd-team." in text, "leaving one out is no way around"


@in_virtual_time
async def test_key_with_too_many_guardrails_is_closed() -> None:
    sim = Simulation()
    sim.put_key()
    for number in range(9):
        sim.put_guardrail(f"grd-{number}", "key-a")
    await sim.boot()
    name = await sim.apply(keyName="key-a")
    assert "more than 8 guardrails" in (await sim.finish(name))["failure"]["message"]


@in_virtual_time
async def test_key_that_is_applied_with_its_task_is_waited_for() -> None:
    sim = await Simulation.start()
    name = await sim.apply(keyName="key-a", guardrailNames=["grd-a"])
    await sim.pass_time(4)
    sim.put_key()
    await sim.pass_time(3)
    sim.put_guardrail("grd-a", "key-a")
    assert (await sim.finish(name))["phase"] == "Completed"
    [key, pool] = await sim.counters.read_budgets(
        "demo", [Budget("key/key-a"), Budget("guardrail/grd-a")]
    )
    assert (key.used, pool.used) == (QUOTE, QUOTE)
