"""What is told of each request: counts and times, the line in the log, the span."""

import asyncio
import json
import os
import select
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from gateway_core.api.ids import TRACEPARENT_ANNOTATION
from gateway_core.observability.logs import LineWriter
from gateway_web.middleware.metrics import BOUNDS, RequestSeries
from tests.fakes.tracing import FakeTracer
from tests.unit.apiserver.gateway import PATH, Gateway, call

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


async def read_figures(gateway: Gateway) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = (await call(gateway.health, "GET", "/metrics")).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def requests(route: str, method: str, status: int, account_class: str) -> Any:
    labels = {
        "surface": route.partition("_")[0],
        "route": route,
        "method": method,
        "status": str(status),
        "account_class": account_class,
    }
    return "gateway_http_requests_total", frozenset(labels.items())


async def test_requests_are_counted_by_route_and_class_of_account(gateway: Gateway) -> None:
    gateway.put_account("guest", unlimited=True)
    created = await gateway.create()
    await gateway.poll(created.json["id"])
    await gateway.create(key=gateway.other_key)
    await gateway.create(b"{")
    await gateway.create(key="sk-wrong")
    await call(gateway.app, "SECRET", "/none")
    figures = await read_figures(gateway)
    assert figures[requests("task_create", "POST", 202, "funded")] == 1
    assert figures[requests("task_create", "POST", 202, "unlimited")] == 1
    assert figures[requests("task_create", "POST", 400, "funded")] == 1
    assert figures[requests("task_create", "POST", 401, "none")] == 1
    assert figures[requests("task_read", "GET", 200, "funded")] == 1
    assert figures[requests("other", "other", 404, "none")] == 1, "no label is of a client's making"
    for private in ("demo", created.json["id"], gateway.key[3:11]):
        assert private not in str(figures)
    outcomes = {
        (dict(labels)["surface"], dict(labels)["outcome"]): value
        for (name, labels), value in figures.items()
        if name == "gateway_admissions_total"
    }
    assert outcomes == {
        ("task", "created"): 2,
        ("task", "invalid_json"): 1,
        ("task", "invalid_api_key"): 1,
    }


async def test_create_that_fails_by_a_defect_is_counted_among_the_paid_calls(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.counters, "admit", None)
    assert (await gateway.create()).status == 500
    figures = await read_figures(gateway)
    labels = frozenset({"surface": "task", "outcome": "internal_error"}.items())
    assert figures["gateway_admissions_total", labels] == 1


def test_durations_are_in_the_bucket_whose_bound_they_do_not_pass() -> None:
    series = RequestSeries()
    for seconds in (0.005, 0.0051, 11.0):
        series.observe("task_read", "GET", 200, "funded", seconds)
    _, times = series.collect()
    samples = {(s.name, s.labels.get("le")): s.value for s in times.samples}
    name = "gateway_http_request_duration_seconds"
    assert samples[name + "_bucket", str(BOUNDS[0])] == 1
    assert samples[name + "_bucket", str(BOUNDS[1])] == 2
    assert samples[name + "_bucket", str(BOUNDS[-1])] == 2
    assert samples[name + "_bucket", "+Inf"] == 3
    assert samples[name + "_count", None] == 3
    assert samples[name + "_sum", None] == pytest.approx(11.0101)


def answered(lines: list[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "answered"]


async def test_each_request_leaves_one_line_with_its_route_and_never_its_path(
    gateway: Gateway,
) -> None:
    key = gateway.key
    with capture_logs() as lines:
        created = await gateway.create(headers=[("X-Client-Request-Id", "client-1")])
        await gateway.poll(created.json["id"])
        await call(gateway.app, "GET", f"/{key}/x", query=f"key={key}")
        await call(gateway.app, "GET", "/healthz")
    first, second, third = answered(lines)
    assert {name: first[name] for name in ("method", "route", "status", "account", "task")} == {
        "method": "POST",
        "route": "/api/v1/{service}/{action}",
        "status": 202,
        "account": "demo",
        "task": created.json["id"],
    }
    assert first["client_request_id"] == "client-1"
    assert first["request_id"] == created.headers["x-request-id"]
    assert first["duration_ms"] >= 0
    assert second["route"] == "/api/v1/{service}/{action}/{task_id}"
    assert (third["route"], third["status"]) == ("other", 404)
    assert key not in str(lines)


@pytest.mark.parametrize(
    "form",
    ["{key}", "Bearer {key}", "x{key}", "whsec_abc", "BEARER=abc", "gwat_a", "gwrt_a", "gwcs_a"],
)
async def test_credential_that_a_client_sends_as_its_id_is_not_logged(
    gateway: Gateway, form: str
) -> None:
    sent = form.format(key=gateway.key).replace(" ", "")
    with capture_logs() as lines:
        await gateway.create(headers=[("X-Client-Request-Id", sent)])
    [line] = answered(lines)
    assert "client_request_id" not in line
    assert sent not in str(lines)


async def test_setting_decides_which_requests_are_logged() -> None:
    gateway = Gateway(access_log="notable")
    with capture_logs() as lines:
        created = await gateway.create()
        await gateway.poll(created.json["id"])
        await gateway.poll("task_unknown")
    assert [(line["method"], line["status"]) for line in answered(lines)] == [
        ("POST", 202),
        ("GET", 404),
    ]
    gateway = Gateway(access_log="off")
    with capture_logs() as lines:
        await gateway.create()
    assert answered(lines) == []


async def test_log_lines_of_a_request_have_its_id(gateway: Gateway) -> None:
    created = await gateway.create()
    bound = structlog.contextvars.get_contextvars()
    assert bound["request_id"] == created.headers["x-request-id"]


async def test_lines_are_written_whole_and_together() -> None:
    reader, writer = os.pipe()
    lines = LineWriter("json", "a.logger", writer)
    for number in range(3):
        lines.write("answered", {"status": number})
    lines.flush()
    written = [json.loads(line) for line in os.read(reader, 65536).splitlines()]
    assert [line["status"] for line in written] == [0, 1, 2]
    assert {line["event"] for line in written} == {"answered"}
    assert set(written[0]) == {"status", "event", "level", "logger", "timestamp"}
    text = LineWriter("console", "a.logger", writer)
    text.write("answered", {"status": 200, "task": "task_a"})
    text.flush()
    assert os.read(reader, 65536).endswith(b"answered [a.logger] status=200 task=task_a\n")
    os.close(reader)
    os.close(writer)
    lines.write("answered", {})
    lines.flush()  # no request fails when the pipe is closed


async def test_line_is_written_without_a_flush() -> None:
    reader, writer = os.pipe()
    LineWriter("json", "a.logger", writer).write("answered", {"status": 1})
    line = await asyncio.to_thread(os.read, reader, 65536)
    assert json.loads(line)["status"] == 1
    os.close(reader)
    os.close(writer)


async def test_writes_to_a_pipe_split_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, piece: written.append(bytes(piece)) or len(piece))
    lines = LineWriter("json", "a.logger")
    for number in range(100):
        lines.write("answered", {"number": number, "path": "x" * number})
    lines.flush()
    assert 1 < len(written) < 10
    assert all(len(piece) <= select.PIPE_BUF and piece.endswith(b"\n") for piece in written)
    found = [json.loads(line)["number"] for line in b"".join(written).splitlines()]
    assert found == list(range(100))


async def test_create_is_a_span_that_its_task_names() -> None:
    tracer = FakeTracer()
    gateway = Gateway(tracer=tracer)
    with capture_logs() as lines:
        created = await gateway.create()
    [span] = [span for span in tracer.spans if span.parent is None]
    assert span.name == "POST /api/v1/{service}/{action}"
    assert span.is_ended
    assert span.facts["http.response.status_code"] == 202
    assert span.facts["gateway.task"] == created.json["id"]
    assert {s.name for s in tracer.spans if s.parent == span.context} == {"reserve", "record"}
    annotations = gateway.task_object(created.json["id"])["metadata"]["annotations"]
    assert annotations[TRACEPARENT_ANNOTATION] == str(span.context)
    assert answered(lines)[0]["trace_id"] == span.context.trace_id


@pytest.mark.parametrize(
    ("taken_for", "parent", "link"),
    [("link", None, PARENT), ("parent", PARENT, None), ("ignore", None, None)],
)
async def test_setting_decides_what_a_clients_trace_becomes(
    taken_for: str, parent: str | None, link: str | None
) -> None:
    tracer = FakeTracer()
    gateway = Gateway(tracer=tracer, client_traces=taken_for)
    await call(gateway.app, "GET", PATH, headers=[("traceparent", PARENT)])
    [span] = tracer.spans
    assert (span.parent and str(span.parent), span.link and str(span.link)) == (parent, link)


async def test_probes_leave_no_spans_and_nonsense_is_no_parent() -> None:
    tracer = FakeTracer()
    gateway = Gateway(tracer=tracer, client_traces="parent")
    for path in ("/healthz", "/readyz"):
        await call(gateway.app, "GET", path)
    assert tracer.spans == []
    await call(gateway.app, "GET", "/x", headers=[("traceparent", "00-nonsense")])
    await call(gateway.app, "GET", "/x", headers=[("traceparent", PARENT), ("traceparent", PARENT)])
    assert [span.parent for span in tracer.spans] == [None, None]
