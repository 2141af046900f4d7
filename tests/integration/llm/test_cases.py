"""The cases of tests/llm_cases, each in all its variants through the real API process.

All variants run at once, before the first test looks at its own: the record has a call within a
second of its end.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.llm_cases.cases import Variant, load_variants
from tests.llm_cases.run import Outcome, Turn, run_variants
from tests.servers.world import World

pytestmark = pytest.mark.timeout(300)

VARIANTS = {variant.id: variant for variant in load_variants()}


@pytest.fixture(scope="module")
def outcomes(world: World, request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """The outcome of each variant that is selected, by its id."""
    selected = {
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_case.__name__
    }
    return asyncio.run(run_variants(world, [VARIANTS[id_] for id_ in sorted(selected)]))


@pytest.mark.parametrize("case", VARIANTS)
def test_case(outcomes: dict[str, Outcome], case: str) -> None:
    variant, outcome = VARIANTS[case], outcomes[case]
    if outcome.error is not None:
        raise outcome.error
    for number, turn in enumerate(outcome.turns):
        try:
            check_turn(variant, turn)
        except AssertionError as error:
            error.add_note(f"turn {number}: {turn.answer.status} {turn.answer.raw[:4000]!r}")
            error.add_note(f"sent: {[request.body for request in turn.received]}"[:4000])
            raise
    check_records(outcome, outcome.turns[-1].expected)


def check_turn(variant: Variant, turn: Turn) -> None:
    """Compare what a client and the upstreams got with what the case expects."""
    expected = dict(turn.expected)
    assert turn.answer.status == expected.pop("status", 200)
    for name, value in expected.pop("headers", {}).items():
        assert turn.answer.headers.get(name) == value, name
    raw = turn.answer.raw.decode()
    for text in expected.pop("contains", ()):
        assert text in raw
    for text in expected.pop("absent", ()):
        assert text not in raw
    assert len(turn.received) == expected.pop("attempts", len(turn.received))
    bodies = [request.body for request in turn.received]
    compare(expected.pop("sent", bodies), bodies, "sent")
    headers = [request.headers for request in turn.received]
    compare(expected.pop("sent_headers", headers), headers, "headers sent")
    sent = json.dumps(bodies, ensure_ascii=False)
    for text in expected.pop("absent_sent", ()):
        assert text not in sent
    for name in ("charge", "estimated", "strict"):
        expected.pop(name, None)
    if turn.problem is not None:
        raise AssertionError("the answer cannot be read") from turn.problem
    assert turn.view is not None
    if "google" not in (variant.client, *variant.routes):
        assert all(call["id"] for call in turn.view.calls), turn.view.calls
    compare(expected, vars(turn.view), "answer")
    if turn.answer.status == 200 and "error" not in expected:
        assert not turn.view.error
        assert variant.client != "chat" or turn.view.done == variant.stream


def check_records(outcome: Outcome, expected: Mapping[str, Any]) -> None:
    """Compare the record of all calls with what the last turn expects."""
    if "charge" in expected:
        assert outcome.charge == expected["charge"], outcome.records
    if "estimated" in expected:
        estimated = any(record.estimated for record in outcome.records.values())
        assert estimated == expected["estimated"], outcome.records


def compare(expected: Any, found: Any, place: str) -> None:
    """Fail unless `found` has what is expected: of objects the named fields, of lists all items."""
    match expected, found:
        case dict(), str():
            # arguments, which OpenAI's dialects have as JSON
            compare(expected, json.loads(found), place)
        case dict(), dict():
            for key, value in expected.items():
                assert key in found, f"{place} has no {key}: {found}"
                compare(value, found[key], f"{place}.{key}")
        case list(), list():
            assert len(expected) == len(found), f"{place}: {found}"
            for number, (item, other) in enumerate(zip(expected, found, strict=True)):
                compare(item, other, f"{place}[{number}]")
        case _:
            assert expected == found, f"{place}: {found!r} instead of {expected!r}"
