"""Routes by priority and weight, circuit breakers, and credentials in turn."""

from collections import Counter

import pytest

from gateway_core.api.model import Route
from gateway_core.llm.routing import (
    ALONE_SECONDS,
    LEAST_FAILURES,
    LONGEST_REST_SECONDS,
    PROBE_SECONDS,
    PROMPT_SECONDS,
    CircuitBreaker,
    CredentialRing,
    Pace,
    choose_route,
)


def make_route(name: str, *, priority: int = 0, weight: int = 1) -> Route:
    return Route(
        name=name, provider_name=name, upstream_model="m", priority=priority, weight=weight
    )


def count_choices(*routes: Route, away: frozenset[str] = frozenset()) -> Counter[str]:
    draws = [step / 1000 for step in range(1000)]
    found = [choose_route(routes, lambda name: name not in away, lambda d=d: d) for d in draws]
    return Counter(route.name if route else "" for route in found)


def test_calls_are_divided_by_weight_within_a_priority() -> None:
    routes = [make_route("a", weight=3), make_route("b"), make_route("c", priority=1)]

    assert count_choices(*routes) == {"a": 750, "b": 250}


def test_next_priority_is_used_when_the_first_is_unusable() -> None:
    routes = [make_route("a"), make_route("b", priority=1), make_route("c", priority=2)]

    assert count_choices(*routes, away=frozenset("a")) == {"b": 1000}
    assert count_choices(*routes, away=frozenset("abc")) == {"": 1000}


def test_route_of_weight_zero_is_only_a_fallback() -> None:
    routes = [make_route("a", weight=0), make_route("b")]

    assert count_choices(*routes) == {"b": 1000}
    assert count_choices(*routes, away=frozenset("b")) == {"a": 1000}


def test_routes_of_weight_zero_alone_are_used_in_order() -> None:
    assert count_choices(make_route("a", weight=0), make_route("b", weight=0)) == {"a": 1000}


def fail_until_open(breaker: CircuitBreaker, now: float = 0.0) -> CircuitBreaker:
    for _ in range(LEAST_FAILURES):
        assert breaker.begin(now)
        breaker.fail(now, "demo")
    return breaker


def test_circuit_opens_after_failures_and_rests() -> None:
    breaker = fail_until_open(CircuitBreaker())

    assert breaker.is_open
    assert not breaker.begin(0.5)
    assert 0 < breaker.count_rest(0.5) < 1


def test_some_failures_among_many_successes_keep_the_circuit_closed() -> None:
    breaker = CircuitBreaker()
    for number in range(200):
        assert breaker.begin(0)
        breaker.fail(0, "demo") if number % 3 == 0 else breaker.succeed("demo", 0)

    assert not breaker.is_open


def test_one_probe_passes_after_the_rest_and_closes_the_circuit() -> None:
    breaker = fail_until_open(CircuitBreaker())

    assert breaker.begin(2)
    assert not breaker.begin(2)
    breaker.succeed("demo", 0)
    assert not breaker.is_open
    assert breaker.begin(2)


def test_failed_probes_double_the_rest_up_to_a_bound() -> None:
    breaker = fail_until_open(CircuitBreaker())
    now, rests = 0.0, []
    for _ in range(8):
        now += breaker.count_rest(now)
        assert breaker.begin(now)
        breaker.fail(now, "demo")
        rests.append(breaker.count_rest(now))

    assert rests[0] == pytest.approx(2, rel=0.21)
    assert rests[1] == pytest.approx(4, rel=0.21)
    assert rests[-1] == pytest.approx(LONGEST_REST_SECONDS, rel=0.21)


def test_late_failure_of_an_earlier_call_does_not_extend_the_rest() -> None:
    breaker = fail_until_open(CircuitBreaker())
    rest = breaker.count_rest(0)
    breaker.fail(0, "demo")

    assert breaker.count_rest(0) == rest


def test_probe_whose_client_left_lets_another_one_pass() -> None:
    breaker = fail_until_open(CircuitBreaker())
    assert breaker.begin(2)
    breaker.drop(2)

    assert breaker.begin(2)


def test_call_that_joined_a_probe_does_not_end_it_by_leaving() -> None:
    breaker = fail_until_open(CircuitBreaker())
    assert breaker.begin(2)
    assert breaker.begin(2.5, is_last=True)
    breaker.drop(2.5)

    assert not breaker.begin(2.6)


def test_probe_without_an_outcome_blocks_others_for_a_bounded_time() -> None:
    breaker = fail_until_open(CircuitBreaker())
    assert breaker.begin(2)

    assert not breaker.begin(2 + PROBE_SECONDS - 1)
    assert breaker.begin(2 + PROBE_SECONDS)


def test_retry_after_pauses_a_closed_circuit() -> None:
    breaker = CircuitBreaker()
    breaker.pause(7, now=0)

    assert breaker.count_rest(3) == 4
    assert not breaker.begin(6.9)
    assert breaker.begin(7)
    assert not breaker.is_open


def test_open_circuit_lets_a_call_pass_that_no_other_provider_can_answer() -> None:
    breaker = fail_until_open(CircuitBreaker())

    assert breaker.begin(0, is_last=True)
    breaker.fail(0, "demo")
    assert breaker.count_rest(0) == pytest.approx(2, rel=0.21)
    assert breaker.begin(0, is_last=True)
    breaker.succeed("demo", 0)
    assert not breaker.is_open
    assert breaker.begin(0)


def test_call_that_joined_a_failed_probe_and_succeeds_ends_the_rest() -> None:
    breaker = fail_until_open(CircuitBreaker())
    assert breaker.begin(0, is_last=True)
    assert breaker.begin(0, is_last=True)

    breaker.fail(0.5, "demo")
    breaker.succeed("demo", 0.5)
    assert not breaker.is_open
    assert breaker.count_rest(0.5) == 0


def test_calls_do_not_pile_up_behind_a_probe_that_is_not_answered() -> None:
    breaker = fail_until_open(CircuitBreaker())

    assert breaker.begin(0, is_last=True)
    assert breaker.begin(PROMPT_SECONDS - 0.1, is_last=True)
    assert not breaker.begin(PROMPT_SECONDS, is_last=True)
    breaker.fail(PROMPT_SECONDS, "demo")
    assert breaker.begin(PROMPT_SECONDS, is_last=True)


def test_no_call_passes_while_the_provider_asks_for_none() -> None:
    breaker = fail_until_open(CircuitBreaker())
    breaker.pause(7, now=0)

    assert not breaker.begin(6.9, is_last=True)
    assert breaker.begin(7, is_last=True)


def test_credentials_are_taken_in_turn() -> None:
    ring = CredentialRing(3)

    assert [ring.take(0) for _ in range(4)] == [0, 1, 2, 0]


def test_resting_credential_is_left_out_until_its_rest_ends() -> None:
    ring = CredentialRing(2)
    ring.rest(0, 5, now=0, limited=True)

    assert [ring.take(1) for _ in range(3)] == [1, 1, 1]
    assert ring.take(5) == 0


def test_no_credential_is_usable_while_all_rest() -> None:
    ring = CredentialRing(2)
    ring.rest(0, 5, now=0, limited=True)
    ring.rest(1, 3, now=0, limited=False)

    assert ring.take(1) is None
    assert ring.count_rest(1) == 2
    assert ring.is_limited
    ring.rest(0, 5, now=0, limited=False)
    assert not ring.is_limited


def test_failures_of_one_account_open_no_circuit_while_others_succeed() -> None:
    breaker = CircuitBreaker()
    breaker.succeed("other", 0)
    for _ in range(3 * LEAST_FAILURES):
        assert breaker.begin(1)
        breaker.fail(1, "demo")
    assert not breaker.is_open

    breaker.fail(1, "other")
    assert breaker.is_open


def test_failures_of_one_account_open_the_circuit_when_no_other_has_succeeded_lately() -> None:
    breaker = CircuitBreaker()
    breaker.succeed("other", 0)
    fail_until_open(breaker, ALONE_SECONDS)

    assert breaker.is_open


@pytest.mark.parametrize("rate", [0.25, 1, 7, 300])
def test_pace_lets_a_seconds_calls_pass_at_once_and_the_others_evenly(rate: float) -> None:
    pace, start = Pace(rate), 1000.0
    at_once = sum(pace.take(start) for _ in range(1000))
    assert at_once == max(1, rate)

    for number in range(1, 5):
        now = start + number / rate
        assert pace.count_rest(now - 0.01 / rate) > 0
        assert pace.count_rest(now + 1e-9) == 0
        assert pace.take(now + 1e-9)
        assert not pace.take(now + 1e-9)


def test_pace_saves_no_more_than_a_second_up() -> None:
    pace = Pace(10)
    assert pace.take(1000.0)
    assert sum(pace.take(2000.0) for _ in range(100)) == 10
