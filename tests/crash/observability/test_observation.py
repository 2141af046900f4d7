"""What a running gateway shows of itself: metrics, and one trace a task whatever dies."""

import json
import secrets
from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tools.dashboard import list_queries
from tools.metrics import list_metrics

from gateway_core.api.ids import TRACEPARENT_ANNOTATION
from tests.chart.queries import OTHERS, check_query
from tests.crash.commands import scrape
from tests.servers import otlp
from tests.servers.leaks import list_secrets
from tests.servers.receivers import Receiver, answer
from tests.servers.world import World, read_task, wait_for

STEPS = {"take in", "submit", "poll", "copy", "complete", "callback attempt", "close"}
ABSENT = (
    "gateway_callback_",
    "gateway_batch",
    "gateway_content_",
    "gateway_files",
    "gateway_llm_attempt_failures",
    "gateway_llm_cache_lookups",
    "gateway_llm_calls_beyond_bound",
    "gateway_uploads_",
    "gateway_mcp_",
    "gateway_orphan",
    "gateway_storage_",
    "gateway_stored_",
)
"""What metrics begin with of which a gateway that has run a task and a chat has no series."""
HANG = 3600
"""Seconds; the operator asks anew when its time for a request is over, and hangs again."""
TOP = "POST /api/v1/{service}/{action}"


@pytest.fixture(scope="module")
def collector():
    with otlp.Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def world(collector, control_plane):
    """All processes, API and operator tracing, their logs as in production."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-collector-token=a-token",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "GATEWAY_LOG_FORMAT": "json",
    }
    with World(control_plane, extra_env={"api": env, "operator": env}) as running:
        yield running


async def test_task_is_one_trace_over_a_kill_of_the_operator(world, collector):
    told = secrets.token_hex(16)
    async with world.client() as client, Receiver() as receiver:
        # no poll is answered until the operator has been killed: the job outlasts what comes before
        await client.simulate({"behaviour": "hang", "seconds": HANG, "match": {"on": "poll"}})
        created = await client.request(
            "POST",
            client.tasks_path,
            headers={"traceparent": f"00-{told}-{'b' * 16}-01"},
            body=client.body(callback_url=receiver.plan("end", answer(200))),
        )
        assert created.status == 202, created.raw
        task = created.body["id"]
        named = read_task(world, task)["metadata"]["annotations"][TRACEPARENT_ANNOTATION]
        trace = named.split("-")[1]
        assert trace != told

        def names():
            return {span.name for span in collector.of_trace(trace)}

        def is_polled():
            phase = read_task(world, task).get("status", {}).get("phase")
            return phase == "Running" and "submit" in names()

        await wait_for(is_polled, what="the job, and its span")
        world.run.kill("operator")
        await client.simulate()
        world.run.restart("operator")
        await client.wait_terminal([task])
        await wait_for(lambda: names() >= {TOP, "reserve", "record", *STEPS}, what="the spans")
    spans = collector.of_trace(trace)
    ids = {span.id for span in spans}
    [top] = [span for span in spans if not span.parent]
    assert (top.name, top.service) == (TOP, "model-gateway-api")
    assert named.split("-")[2] == top.id
    assert top.links == (told,), "a client's trace is no parent"
    assert all(span.parent in ids for span in spans if span is not top), "it is one tree"
    for span in spans:
        is_step = span.name in STEPS
        assert span.service == ("model-gateway-operator" if is_step else "model-gateway-api")
        if is_step:
            assert span.parent == top.id
            assert span.facts["gateway.task"] == task.replace("_", "-", 1)
    [poll] = [span for span in spans if span.name == "poll"]
    assert set(poll.events) == {"poll"}
    assert top.facts["http.response.status_code"] == 202
    assert collector.headers[-1]["x-collector-token"] == "a-token"
    # the same trace finds the lines of the log
    lines = [json.loads(line) for line in world.log("api").splitlines() if trace in line]
    assert [line["task"] for line in lines if line["event"] == "answered"] == [task]


async def test_spans_metrics_and_logs_hold_no_secret(world, collector):
    async with world.client() as client:
        key = client.key
        for path in (f"/{key}", f"/v1/models?key={key}", f"/api/v1/{key}/x/{key}"):
            await client.request("GET", path)
        await client.request(
            "GET", "/api/v1/me", headers={"X-Client-Request-Id": key, "traceparent": key}
        )
        await client.request("DELETE", f"/api/v1/x?key={key}", headers={"tracestate": f"a={key}"})
        done = (await client.create()).body["id"]
        await client.wait_terminal([done])
        shown = "".join([await scrape(world, "api"), await scrape(world, "operator")])
    await wait_for(lambda: len(collector.spans) > 5, what="spans")
    places = {
        "spans": b"".join(collector.raw),
        "metrics": shown.encode(),
        "api's log": world.log("api").encode(),
        "operator's log": world.log("operator").encode(),
    }
    forms = list_secrets(world) | {"the collector's token": [b"a-token"]}
    found = [
        f"{what} in {place}"
        for what, forms in forms.items()
        for place, content in places.items()
        if any(form in content for form in forms)
    ]
    assert found == []


async def test_metrics_of_each_process_are_those_of_the_reference(world):
    for process, name in (("api", "API"), ("operator", "Operator")):
        families = text_string_to_metric_families(await scrape(world, process))
        shown = {f.name + ("_total" if f.type == "counter" else "") for f in families}
        own = {name for name in shown if name.startswith("gateway_")}
        assert own == {metric.name for metric in list_metrics()[name]}
        assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= shown


async def test_samples_have_the_labels_of_the_reference(world):
    async with world.client() as client:
        await client.wait_terminal([(await client.create()).body["id"]])
        message = {"role": "user", "content": "Hello"}
        body = {"model": "sim-chat", "messages": [message], "stream": True}
        streamed = await client.request("POST", "/v1/chat/completions", body=body)
        assert streamed.status == 200, streamed.raw
    known = {
        name: labels
        for metrics in list_metrics().values()
        for metric in metrics
        for name, labels in metric.series.items()
    }
    asked = {name for query in list_queries() for name in check_query(query)} - set(OTHERS)
    # what has not happened here has no series yet
    silent = {"gateway_notices_total", *(name for name in asked if name.startswith(ABSENT))}
    absent = asked - silent

    async def has_all():
        for process in ("api", "operator"):
            for family in text_string_to_metric_families(await scrape(world, process)):
                for sample in family.samples:
                    if sample.name.startswith("gateway_"):
                        assert set(sample.labels) == known[sample.name], sample.name
                        absent.discard(sample.name)
        return not absent

    # a task's end is told before the operator has noted all of it
    try:
        await wait_for(has_all, what="every series")
    except AssertionError as error:
        error.add_note(f"absent: {sorted(absent)}")
        raise


async def test_gauges_show_a_healthy_gateway(world):
    async def read(process, name, **labels):
        for family in text_string_to_metric_families(await scrape(world, process)):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    async def is_counted(process, name):
        return (await read(process, f"{name}_count") or 0) > 0

    for process in ("api", "operator"):
        silence = await read(process, "gateway_watch_silence_seconds", kind="gatewayaccounts")
        assert silence < 10
        assert await read(process, "gateway_watch_objects", kind="gatewayaccounts") >= 1
        # what is measured now and then may not have been yet
        for name in ("gateway_counters_round_trip_seconds", "gateway_event_loop_lag_seconds"):
            await wait_for(partial(is_counted, process, name), what=f"{name} of {process}")
        assert await read(process, "gateway_build_info", component=process) == 1
    assert await read("operator", "gateway_feed_heartbeat_age_seconds") < 60
    assert await read("operator", "gateway_tasks_overdue") == 0
