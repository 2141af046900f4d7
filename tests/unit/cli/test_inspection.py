"""Rules of `gatewayctl doctor`, `status` and `top`: what is found in objects, metrics and pods."""

import copy
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway_cli.inspection.doctor import check_processes
from gateway_cli.inspection.findings import MOST, Check, Finding, Level, bound, error, note
from gateway_cli.inspection.metrics import check_metrics, check_shards, parse_metrics
from gateway_cli.inspection.processes import (
    Process,
    describe_pod,
    describe_shortage,
    find_local_run,
)
from gateway_cli.inspection.rules import (
    check_accounts,
    check_definitions,
    check_guardrails,
    check_health,
    check_keys,
    check_models,
    check_providers,
    check_ready,
    check_tasks,
    check_waits,
)
from gateway_cli.inspection.status import count_phases, count_ready, sum_day
from gateway_cli.inspection.top import describe_rates, sort_busiest
from gateway_cli.local.supervisor import RunDirectory
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.crd import KINDS, build_crd
from gateway_core.api.times import format_time
from gateway_core.api.upload import GatewayUpload

NOW = datetime(2026, 11, 21, 12, 30, 30, tzinfo=UTC)


def ago(**period: float) -> str:
    return format_time(NOW - timedelta(**period))


def show(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.level.value, finding.subject) for finding in findings]


def make(name: str, spec: Any = None, status: Any = None, created: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": created or ago(days=1)},
        "spec": spec or {},
        "status": status or {},
    }


def ready(status: str, reason: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": "m"}
    return {"conditions": [condition]}


# objects


def test_only_objects_that_should_be_ready_are_found() -> None:
    objects = [
        make("fine", status=ready("True", "Available")),
        make("off", status=ready("False", "Disabled")),
        make("broken", status=ready("False", "SecretNotFound")),
        make("new", created=ago(seconds=5)),
        make("unseen"),
    ]
    found = list(check_ready(objects, "provider", NOW))
    assert show(found) == [("error", "provider broken"), ("error", "provider unseen")]
    assert "create the Secret" in found[0].action
    assert "operator has not looked" in found[1].text


def test_action_for_a_secret_is_that_of_the_object() -> None:
    def act(word: str, reason: str) -> str:
        [found] = check_ready([make("a", status=ready("False", reason))], word, NOW)
        return found.action

    assert "operator.secretNames" in act("provider", "SecretForbidden")
    assert "operator.keySecretNames" in act("key", "SecretForbidden")
    assert act("key", "SecretNotWritable").startswith("delete that Secret")


def test_failing_provider_is_an_error_and_degraded_one_a_warning() -> None:
    def health(state: str) -> dict[str, Any]:
        return {"health": {"state": state, "callsPerMinute": 9, "errorPercent": 60}}

    names = {"a": "Healthy", "b": "Degraded", "c": "Failing"}
    objects = [make(name, status=health(state)) for name, state in names.items()]
    refused = make("d", status=health("Failing") | ready("False", "CredentialsRefused"))
    found = list(check_health([*objects, refused, make("quiet")], NOW, "provider"))
    assert show(found) == [("warning", "provider b"), ("error", "provider c")]
    assert "60 % of its calls (9 a minute)" in found[1].text


@pytest.mark.parametrize(
    ("balance", "spec", "expected"),
    [
        (11_000_000, {}, None),
        (9_000_000, {}, "are left"),
        (0, {}, "spent"),
        (-5, {"unlimited": True}, None),
        (-5, {"suspended": True}, None),
    ],
)
def test_account_near_the_end_of_its_funds(
    balance: int, spec: dict[str, Any], expected: str | None
) -> None:
    declared = {"displayName": "A", "owner": {}, "funds": {"paidMicros": 100_000_000}, **spec}
    found = list(check_accounts([make("acme", declared, {"balanceMicros": balance})], NOW))
    assert [expected in finding.text for finding in found] == ([True] if expected else [])


def test_account_without_funds_is_left_alone() -> None:
    spec = {"displayName": "A", "owner": {}}
    assert list(check_accounts([make("free", spec, {"balanceMicros": 0})], NOW)) == []


def test_keys_that_end_soon_or_are_used_up() -> None:
    def key(name: str, status: Any = None, **spec: Any) -> dict[str, Any]:
        return make(name, {"accountName": "a", "displayName": name, **spec}, status)

    # the document of a key compares with the machine's clock, so these are of now
    now = datetime.now(UTC)
    soon, later = (format_time(now + timedelta(days=days)) for days in (3, 30))
    limit = {"micros": 1000, "window": "daily"}
    objects = [
        key("key-soon", expirationTime=soon),
        key("key-later", expirationTime=later),
        key("key-gone", expirationTime=soon, revoked=True),
        key("key-full", {"usedMicros": 900}, limit=limit),
        key("key-half", {"usedMicros": 500}, limit=limit),
        key("key-zero", {"usedMicros": 0}, limit={"micros": 0, "window": "daily"}),
    ]
    found = show(check_keys(objects, now))
    assert found == [("warning", "key key-soon"), ("warning", "key key-full")]


def test_guardrail_that_is_used_up() -> None:
    spec = {
        "accountName": "a",
        "displayName": "g",
        "limit": {"micros": 1000, "window": "1h"},
    }
    status = {"usedMicros": 1000, "resetTime": "2026-11-21T13:00:00Z"}
    [found] = check_guardrails([make("grd-a", spec, status)], NOW)
    assert "resets at 2026-11-21T13:00:00Z" in found.text


WAITING = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "Succeeded",
            "status": "Unknown",
            "reason": "WaitingForProvider",
            "message": "provider p: it is away; the task waits until 2026-11-21T13:00:00Z",
        }
    ],
}


@pytest.mark.parametrize(
    ("status", "created", "expected"),
    [
        ({}, ago(seconds=10), None),
        ({}, ago(minutes=5), "no operator has taken it up"),
        ({"phase": "Submitting"}, ago(minutes=5), None),
        ({"phase": "Submitting"}, ago(minutes=15), "not accepted by a provider"),
        (WAITING, ago(seconds=10), "WaitingForProvider: provider p: it is away"),
        ({"phase": "Running"}, ago(minutes=59), None),
        ({"phase": "Running"}, ago(minutes=70), "after its deadline of 3600 s"),
        ({"phase": "Failed", "completionTime": ago(minutes=5)}, ago(hours=2), None),
        ({"phase": "Failed", "completionTime": ago(hours=2)}, ago(hours=3), "not archived"),
        (
            {
                "phase": "Completed",
                "completionTime": ago(hours=2),
                "callback": {"state": "Pending"},
            },
            ago(hours=3),
            None,
        ),
        ({"phase": "Completed", "work": "Settled", "completionTime": ago(hours=2)}, "", None),
    ],
)
def test_tasks_that_stand_still(status: Any, created: str, expected: str | None) -> None:
    found = list(check_tasks([make("task-a", {}, status, created)], NOW))
    assert [expected in finding.text for finding in found] == ([True] if expected else [])


@pytest.mark.parametrize(
    ("check", "reason", "level"),
    [
        (check_providers, "NotTested", "note"),
        (check_providers, "CallsFail", "warning"),
        (check_models, "ProviderNotFound", "warning"),
        (check_keys, "NameNotFound", "warning"),
        (check_guardrails, "NameNotFound", "warning"),
    ],
)
def test_ready_object_with_a_note_is_told(check: Any, reason: str, level: str) -> None:
    spec = {"accountName": "acme", "displayName": "k", "tokens": [], "type": "http", "routes": []}
    objects = [make("a", spec, ready("True", reason)), make("b", spec, ready("True", "Available"))]
    [found] = check(objects, NOW)
    assert found.subject.endswith(" a")
    assert found.level.value == level
    assert found.action


def test_command_of_a_note_is_shown_once() -> None:
    status = ready("True", "NotTested")
    status["conditions"][0]["message"] = "not tested; `gatewayctl providers test p` makes one"
    [found] = check_providers([make("p", {"type": "http"}, status)], NOW)
    assert (found.text, found.action) == ("not tested", "`gatewayctl providers test p`")


def test_waiting_batch_is_told() -> None:
    batches = [make("batch-a", status=WAITING), make("batch-b", status={"phase": "InProgress"})]
    [found] = check_waits(GatewayBatch, batches, NOW)
    assert (found.subject, found.level.value) == ("batch batch-a", "warning")
    assert found.text.startswith("WaitingForProvider: provider p: it is away; ")


def test_waiting_upload_is_told_with_what_to_look_at() -> None:
    condition = {"type": "Succeeded", "status": "Unknown", "reason": "WaitingForStore"}
    status = {"conditions": [{**condition, "message": "the object store, which is away"}]}
    [found] = check_waits(GatewayUpload, [make("upload-a", status=status)], NOW)
    assert (found.subject, found.level.value) == ("upload upload-a", "warning")
    assert found.text == "WaitingForStore: the object store, which is away"
    assert found.action == "look whether the object store answers"


def test_gateway_without_a_model_is_noted() -> None:
    [found] = check_ready([], "model", NOW)
    assert found.text == "there is no model yet: no call can be served"
    assert list(check_ready([], "key", NOW)) == []


# definitions


def installed() -> dict[str, Any]:
    crds = {}
    for kind in KINDS:
        crd = copy.deepcopy(build_crd(kind))
        crd["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
        crds[crd["metadata"]["name"]] = crd
    return crds


def fields(crd: Any) -> Any:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]


def test_definitions_of_this_release_are_right() -> None:
    assert list(check_definitions(installed())) == []


def test_older_newer_missing_and_unestablished_definitions() -> None:
    crds = installed()
    del fields(crds["gatewaykeys.modelgateway.dev"])["logContent"]
    fields(crds["gatewaymodels.modelgateway.dev"])["fromTheFuture"] = {"type": "string"}
    del crds["gatewaytasks.modelgateway.dev"]
    crds["gatewayfiles.modelgateway.dev"]["status"] = {}
    found = {finding.subject.partition(".")[0]: finding for finding in check_definitions(crds)}
    assert set(found) == {"gatewaykeys", "gatewaymodels", "gatewaytasks", "gatewayfiles"}
    assert "older" in found["gatewaykeys"].text
    assert ".spec.logContent" in found["gatewaykeys"].text
    assert found["gatewaymodels"].level is Level.NOTE
    assert "not installed" in found["gatewaytasks"].text
    assert "not established" in found["gatewayfiles"].text


# metrics

SOUND = """\
# HELP gateway_intake_stopped Whether …
gateway_intake_stopped{reason="maintenance"} 0.0
gateway_provider_usable{provider="acme"} 1.0
gateway_clock_skew_seconds -0.5
gateway_counters_evict 0
gateway_watch_silence_seconds{kind="GatewayTask"} 1.2
gateway_counters_unanswered_total 4.0
gateway_counters_round_trip_seconds_count 900.0
gateway_counters_round_trip_seconds_bucket{le="+Inf"} 900.0
gateway_record_size_bytes 10.0
gateway_record_quota_bytes 100.0
process_cpu_seconds_total 12.0
"""


def test_sound_metrics_have_no_finding() -> None:
    samples = parse_metrics(SOUND)
    assert list(check_metrics("api", samples, samples)) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('gateway_intake_stopped{reason="quota"} 1.0', "error: requests that create are refused"),
        ('gateway_provider_usable{provider="a\\"b"} 0', 'error: cannot use provider a"b'),
        ("gateway_clock_skew_seconds -7", "warning: the clock of its machine differs"),
        ("gateway_counters_evict 1", "warning: Redis may evict keys"),
        ('gateway_watch_silence_seconds{kind="GatewayKey"} +Inf', "error: its watch of GatewayKey"),
        ("gateway_counters_unanswered_total 5.0", "error: Redis does not answer at all"),
        ("gateway_tasks_overdue 2.0", "error: tasks that are unfinished after their deadline: 2"),
        ("gateway_record_size_bytes 90.0", "warning: etcd uses 90 %"),
        (
            "gateway_journal_unstored_records 5000.0",
            "error: the object store takes no charges; calls whose charges are in memory",
        ),
        (
            "gateway_usage_fold_waiting 1001.0",
            "error: ended tasks whose charges wait for the usage: 1001",
        ),
        (
            "gateway_journals_damaged 1.0",
            "error: processes whose usage journals have an unreadable object: 1",
        ),
        ("gateway_files_broken 3.0", "error: files that lack bytes in the object store: 3"),
        ('gateway_unexpected_failures_total{loop="x"} 2.0', "note: 2 unexpected failures"),
    ],
)
def test_each_bad_metric_is_found(line: str, expected: str) -> None:
    name = line.partition("{")[0].partition(" ")[0]
    kept = [old for old in SOUND.splitlines() if not old.startswith(name)]
    samples = parse_metrics("\n".join([*kept, line]))
    [found] = check_metrics("api", samples, parse_metrics(SOUND))
    assert f"{found.level.value}: {found.text}".startswith(expected)


@pytest.mark.parametrize(
    ("silences", "text"),
    [
        ({"A": 40, "B": 60.4, "C": 1}, "its watches of A, B are silent for 60 s"),
        ({"A": 40, "B": 60.4}, "all of its watches are silent for 60 s"),
        ({"A": "+Inf", "B": 1}, "its watch of A is silent since its start"),
    ],
)
def test_silent_watches_of_a_process_are_one_finding(
    silences: Mapping[str, object], text: str
) -> None:
    lines = (f'gateway_watch_silence_seconds{{kind="{k}"}} {v}' for k, v in silences.items())
    samples = parse_metrics("\n".join(lines) + "\n")
    assert [found.text for found in check_metrics("api", samples, samples)] == [text]


def test_redis_that_answers_some_calls_is_a_warning() -> None:
    later = SOUND.replace("total 4.0", "total 5.0").replace("count 900.0", "count 950.0")
    [found] = check_metrics("api", parse_metrics(later), parse_metrics(SOUND))
    assert (found.level, "at times" in found.text) == (Level.WARNING, True)


def test_shards_of_all_operators_together_are_counted() -> None:
    def owns(shards: Iterable[int]) -> Any:
        text = "\n".join(f'gateway_shard_owned{{shard="{shard}"}} 1.0' for shard in shards)
        return parse_metrics(text)

    assert list(check_shards([owns(range(8)), owns(range(8, 16))])) == []
    [found] = check_shards([owns(range(8))])
    assert "8 of 16 shards" in found.text


# processes


def make_pod(**status: Any) -> dict[str, Any]:
    metadata = {"name": "gw-api-1", "labels": {"app.kubernetes.io/component": "api"}}
    containers = [{"name": "api", "image": "registry.example:5000/model-gateway:0.1.0"}]
    return {"metadata": metadata, "spec": {"containers": containers}, "status": status}


def test_ready_pod() -> None:
    conditions = [{"type": "Ready", "status": "True"}]
    pod = make_pod(conditions=conditions, containerStatuses=[{"restartCount": 2}])
    assert describe_pod(pod) == Process("api", "gw-api-1", True, None, "0.1.0", 2)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry.example:5000/model-gateway", None),
        ("model-gateway:1.0@sha256:0123456789abcdef", "0123456789ab"),
        ("registry.example:5000/model-gateway@sha256:0123456789abcdef", "0123456789ab"),
    ],
)
def test_version_of_a_pod_is_that_of_its_image(image: str, version: str | None) -> None:
    pod = make_pod()
    pod["spec"]["containers"][0]["image"] = image
    assert describe_pod(pod).version == version


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            {
                "containerStatuses": [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                        "lastState": {"terminated": {"reason": "OOMKilled"}},
                    }
                ]
            },
            "CrashLoopBackOff: back-off (ended before by OOMKilled)",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/1 nodes available"}
                ]
            },
            "not scheduled: 0/1 nodes available",
        ),
        ({"phase": "Running"}, "Running: its readiness probe fails"),
    ],
)
def test_pod_says_why_it_is_not_ready(status: dict[str, Any], expected: str) -> None:
    process = describe_pod(make_pod(**status))
    assert (process.ready, process.problem) == (False, expected)


def test_workload_with_too_few_pods_is_found() -> None:
    labels = {"app.kubernetes.io/component": "api"}
    workload = {"metadata": {"name": "gw-api", "labels": labels}, "spec": {"replicas": 2}}
    one = Process("api", "gw-api-1", ready=True)
    [missing] = describe_shortage(workload, [one])
    assert "1 of 2 pods exist" in (missing.problem or "")
    assert describe_shortage(workload, [one, one]) == []


def test_processes_that_are_not_ready_or_restart_are_found() -> None:
    processes = [
        Process("api", "a", ready=True),
        Process("media", "m", ready=False, problem="why"),
        Process("operator", "o", ready=True, restarts=9),
    ]
    check = check_processes(processes, "pods")
    assert show(check.findings) == [("error", "media m"), ("note", "operator o")]
    assert check_processes([], "pods").state == "error"


def test_local_run_is_found_by_its_kubeconfig_and_says_what_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GATEWAY_LOCAL_DIR", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert find_local_run() is None
    directory = RunDirectory(tmp_path / "run")
    directory.folder.mkdir()
    directory.describe(["etcd", "operator"], {"etcd": 1, "operator": 1})
    directory.record("etcd", os.getpid())
    local = find_local_run()
    assert local is not None
    assert not local.is_running


async def test_local_process_without_a_pid_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_LOCAL_DIR", str(tmp_path))
    directory = RunDirectory(tmp_path / "run")
    directory.folder.mkdir()
    directory.describe(["etcd", "operator"], {"etcd": 1, "operator": 1})
    directory.record("etcd", os.getpid())
    directory.record_restarts("operator", 2)
    local = find_local_run()
    assert local is not None
    etcd, operator = await local.read()
    assert etcd.ready
    assert (etcd.restarts, operator.restarts) == (0, 2)
    assert (operator.ready, operator.problem) == (
        False,
        f"not running: the end of {tmp_path / 'log' / 'operator.log'} says why",
    )


# what is shown


def test_many_findings_are_bounded_worst_first() -> None:
    found = [note("n", "t", "a") for _ in range(MOST)] + [error("e", "t", "a")] * 3
    shown = bound(found, "look there")
    assert len(shown) == MOST + 1
    assert [finding.level for finding in shown[:4]] == [Level.ERROR] * 3 + [Level.NOTE]
    assert (shown[-1].text, shown[-1].action) == ("3 further findings of this kind", "look there")


def test_state_of_a_check_is_that_of_its_worst_finding() -> None:
    assert Check("c").state == "ok"
    assert Check("c", findings=[note("n", "t", "a"), error("e", "t", "a")]).state == "error"
    assert Check("c", skipped="why").describe()["state"] == "skipped"
    json.dumps(Check("c", findings=[error("e", "t", "a")]).describe())


def test_status_counts_phases_readiness_and_the_day() -> None:
    tasks = [make("a"), make("b", status={"phase": "Running"}), make("c", status={"phase": ""})]
    assert count_phases(tasks) == {"Pending": 2, "Running": 1}
    objects = [make("a", status=ready("True", "Available")), make("b")]
    assert count_ready(objects) == {"total": 2, "ready": 1}
    assert sum_day([])["cost"] == "0.00"
    rows = [{"requests": 3, "failed": 1, "chargedMicros": 500_000}]
    usage = make("u", {"accountName": "a", "day": "2026-11-21"}, {"rows": rows})
    total = sum_day([usage, usage])
    assert (total["requests"], total["failed"], total["cost"]) == (6, 2, "1.00")


def test_rates_are_of_the_last_whole_minutes() -> None:
    minute = 12 * 60 + 30
    minutes = [
        {"minute": minute - 6, "requests": 1000},
        {"minute": minute - 5, "requests": 20, "failed": 5, "chargedMicros": 1_000_000},
        {"minute": minute - 1, "requests": 5, "inputTokens": 40, "outputTokens": 60},
        {"minute": minute, "requests": 1000},
    ]
    status = {"minutes": minutes, "requests": 2025, "chargedMicros": 3_000_000}
    assert describe_rates(make("u", {"accountName": "acme"}, status), NOW) == {
        "account": "acme",
        "calls_per_minute": 5.0,
        "error_percent": 20,
        "cost_per_hour": "12.00",
        "tokens_per_minute": 20,
        "requests_today": 2025,
        "cost_today": "3.00",
    }


def test_first_minute_of_a_day_has_no_rates() -> None:
    midnight = NOW.replace(hour=0, minute=0)
    rates = describe_rates(make("u", {"accountName": "acme"}), midnight)
    assert (rates["calls_per_minute"], rates["error_percent"]) == (0, None)


def test_busiest_rows_come_first() -> None:
    rows = [{"m": "b", "calls_per_minute": None}, {"m": "c", "calls_per_minute": 4}]
    rows.append({"m": "a", "calls_per_minute": None})
    assert [row["m"] for row in sort_busiest(rows)] == ["c", "a", "b"]
