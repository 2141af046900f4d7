"""Credit limits and rates of keys and guardrails in admission (contract §1.2, §9.1, §12.4).

`ports/test_budgets` has the rules of windows and of several budgets.
"""

from typing import Any

import pytest

from gateway_core.billing.counters import Budget
from gateway_core.kube.errors import RequestRejected
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Answer, Gateway, body

CALL = 500_000
"""What the first model's call reserves."""


def limit(calls: float) -> dict[str, Any]:
    """A weekly limit of so many calls."""
    return {"limit": {"micros": int(calls * CALL), "window": "weekly"}}


def check_refusal(answer: Answer) -> str:
    """Checks what a client is told of a spent limit; the text of it."""
    assert answer.status == 429
    assert set(answer.json) == {"error"}
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert not any(name.startswith("x-ratelimit") for name in answer.headers)
    text: str = answer.json["error"]
    return text


async def held_under(gateway: Gateway, subject: str) -> int:
    [state] = await gateway.counters.read_budgets("demo", [Budget(subject)])
    return state.held


async def test_limit_is_reached_to_the_micro_and_not_exceeded(gateway: Gateway) -> None:
    exact = gateway.put_key("demo", limit={"micros": 2 * CALL, "window": "1h"})
    short = gateway.put_key("demo", limit={"micros": CALL - 1, "window": "1h"})
    assert [(await gateway.create(key=exact)).status for _ in range(3)] == [202, 202, 429]
    assert (await gateway.create(key=short)).status == 429
    assert gateway.task_count() == 2


async def test_refusal_names_the_limit_its_figures_and_reset(gateway: Gateway) -> None:
    key = gateway.put_key("demo", **limit(1.2))
    await gateway.create(key=key)
    text = check_refusal(await gateway.create(key=key))
    assert text.startswith(
        "The credit limit of this key, 0.60 USD a week (from Monday, UTC), does not cover this"
        " call: it needs 0.50 USD, 0.10 USD are left, 0.00 USD are spent and 0.50 USD reserved by"
        " calls under way. It resets at 20"
    )


async def test_lifted_limit_holds_no_more(gateway: Gateway) -> None:
    key = gateway.put_key("demo", **limit(0))
    assert (await gateway.create(key=key)).status == 429
    gateway.change_key(key, **limit(1))
    assert (await gateway.create(key=key)).status == 202
    gateway.change_key(key, limit=None)
    assert (await gateway.create(key=key)).status == 202


async def test_limit_of_a_guardrail_is_shared_by_its_keys_alone(gateway: Gateway) -> None:
    one, two, other = (gateway.put_key("demo") for _ in range(3))
    gateway.put_guardrail("grd-team", one, two, displayName="Team", **limit(2))
    assert (await gateway.create(key=one)).status == 202
    assert (await gateway.create(key=two)).status == 202
    for key in (one, two):
        text = check_refusal(await gateway.create(key=key))
        assert text.startswith('The credit limit of guardrail "Team", 1.00 USD a week')
        assert "guest" not in text
        assert "grd-" not in text
    assert (await gateway.create(key=other)).status == 202


async def test_spending_counts_whether_or_not_there_is_a_limit(gateway: Gateway) -> None:
    gateway.put_guardrail("grd-a", gateway.key)
    await gateway.create()
    assert await held_under(gateway, "guardrail/grd-a") == CALL
    assert await held_under(gateway, "key/key-" + gateway.key[3:11]) == CALL
    gateway.put_guardrail("grd-a", gateway.key, **limit(1))
    assert (await gateway.create()).status == 429, "what was spent before the limit was set"


async def test_failed_create_releases_its_hold_in_every_budget(gateway: Gateway) -> None:
    key = gateway.put_key("demo", **limit(1))
    gateway.put_guardrail("grd-a", key, **limit(1))
    gateway.kube.order_faults("create", Fault(RequestRejected("no")))
    assert (await gateway.create(key=key)).status == 500
    assert (await gateway.create(key=key)).status == 202


async def test_credit_before_balance(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 0})
    key = gateway.put_key("demo", **limit(0))
    check_refusal(await gateway.create(key=key))
    assert (await gateway.create()).status == 402


async def test_credit_limit_comes_after_all_other_refusals(gateway: Gateway) -> None:
    gateway.put_model(fields=[{"name": "audio", "supported": False}])
    key = gateway.put_key("demo", **limit(1))
    assert (await gateway.create(key=key, idempotency_key="k")).status == 202
    assert (await gateway.create(key=key)).status == 429
    again = await gateway.create(key=key, idempotency_key="k")
    assert again.json["task_replayed"] is True
    assert "x-ratelimit-remaining-rpm" in again.headers
    assert (await gateway.create(body(prompt="b"), key=key, idempotency_key="k")).status == 409
    assert (await gateway.create(body(prompt=""), key=key)).status == 400
    assert (await gateway.create(body(audio=True), key=key)).status == 409
    gateway.put_guardrail("grd-a", key, allowedModels=[])
    assert (await gateway.create(key=key)).status == 403
    gateway.put_account("demo", requestsPerMinute=1)
    refused = await gateway.create(key=key)
    assert refused.status == 429
    assert "retry-after" in refused.headers


async def test_rate_of_a_key_is_shown_and_enforced(gateway: Gateway) -> None:
    key = gateway.put_key("demo", requestsPerMinute=2)
    first = await gateway.create(key=key)
    assert first.headers["x-ratelimit-limit-rpm"] == "2"
    assert first.headers["x-ratelimit-remaining-rpm"] == "1"
    await gateway.create(b"{", key=key)
    refused = await gateway.create(key=key)
    assert refused.status == 429
    assert refused.json == {"error": "Rate limit of 2 requests per minute reached."}
    assert refused.headers["x-ratelimit-limit-rpm"] == "2"
    assert refused.headers["x-ratelimit-remaining-rpm"] == "0"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    other = await gateway.create()
    assert other.headers["x-ratelimit-limit-rpm"] == "300"
    assert other.headers["x-ratelimit-remaining-rpm"] == "297", "of three that were counted"


async def test_limited_key_is_unavailable_without_counters(gateway: Gateway) -> None:
    gateway.put_account("demo", unlimited=True)
    key = gateway.put_key("demo", **limit(9))
    gateway.counters.away = True
    assert (await gateway.create()).status == 202
    refused = await gateway.create(key=key)
    assert refused.status == 503
    assert refused.headers["retry-after"] == "5"


async def test_limited_key_is_unavailable_during_a_rebuild(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_core.admission.rates.REBUILD_WAIT_SECONDS", 0.05)
    gateway.put_account("demo", unlimited=True)
    key = gateway.put_key("demo", **limit(9))
    await gateway.counters.begin_rebuild("demo")  # a replica that was killed in the middle
    answers = [await gateway.create(key=key), await gateway.create()]
    assert [answer.status for answer in answers] == [503, 202]


async def test_forbidden_calls_and_calls_beyond_a_limit_do_not_count(gateway: Gateway) -> None:
    key = gateway.put_key("demo", **limit(1))
    assert (await gateway.create(key=key)).headers["x-ratelimit-remaining-rpm"] == "299"
    assert (await gateway.create(key=key)).status == 429
    forbidden = gateway.put_key("demo", allowedModels=[])
    refused = await gateway.create(key=forbidden)
    assert (refused.status, refused.headers["x-ratelimit-remaining-rpm"]) == (403, "299")
    assert (await gateway.create()).headers["x-ratelimit-remaining-rpm"] == "298"
