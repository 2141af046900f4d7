"""`gatewayctl tasks list|describe|cancel|redeliver` and `usage` on a real API server."""

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading

import pytest

from gateway_core.api.task import GatewayTask
from gateway_core.api.usage import GatewayUsage


@pytest.fixture
def make_task(create):
    """Creates a GatewayTask as the API would; its name."""

    def run(account, **request):
        whole = {
            "accountName": account,
            "service": "sim",
            "action": "reference_to_video",
            "modelId": "q4",
            "input": "{}",
            **request,
        }
        return create(GatewayTask, f"task-{secrets.token_hex(4)}", {"request": whole})

    return run


def test_task_is_listed_described_and_cancelled_once(
    gatewayctl, read, patch_status, account, make_task
):
    name = make_task(account)
    assert name in gatewayctl("tasks", "list", "-a", account).out
    assert name in gatewayctl("tasks", "list", "-a", account, "--phase", "Pending").out
    assert "no tasks" in gatewayctl("tasks", "list", "-a", account, "--phase", "Failed").err
    described = gatewayctl("tasks", "describe", name.replace("-", "_", 1), "-o", "json").document
    assert (described["name"], described["operation"]) == (name, "sim/reference_to_video")
    said = gatewayctl("tasks", "cancel", name, "-o", "json").document
    assert said["desired_state"] == "Cancelled"
    assert read("gatewaytask", name)["spec"]["desiredState"] == "Cancelled"
    failure = {"code": "cancelled", "message": "The task was cancelled."}
    patch_status("gatewaytask", name, {"phase": "Failed", "failure": failure, "chargedMicros": 0})
    assert "it was cancelled" in gatewayctl("tasks", "cancel", name).out
    failed = make_task(account)
    failure = {"code": "generation_failed", "message": "No."}
    patch_status("gatewaytask", failed, {"phase": "Failed", "failure": failure, "chargedMicros": 0})
    assert "has ended: Failed" in gatewayctl("tasks", "cancel", failed, code=4).err
    shown = gatewayctl("tasks", "describe", name).out
    assert "The task was cancelled." in shown


def test_tasks_are_listed_newest_first_with_limit_and_filters(
    gatewayctl, account, make_task, patch_status
):
    first, second = make_task(account), make_task(account, modelId="other")
    patch_status("gatewaytask", first, {"phase": "Running", "upstream": {"providerName": "prov-x"}})

    def names(*options):
        found = gatewayctl("tasks", "list", "-a", account, *options, "-o", "json")
        return [task["name"] for task in found.document["items"]]

    # both may be of one second, in which any order is right
    assert set(names()) == {first, second}
    created = [t["created_at"] for t in gatewayctl("tasks", "list", "-o", "json").document["items"]]
    assert created == sorted(created, reverse=True)
    assert names("--model", "other") == [second]
    assert names("--provider", "prov-x") == [first]
    assert names("--key", "key-none") == []
    for since in ("1h", "2020-01-31", "2020-01-31T18:00:00+02:00"):
        assert set(names("--since", since)) == {first, second}
    assert names("--since", "2126-01-31") == []
    limited = gatewayctl("tasks", "list", "-a", account, "--limit", 1)
    assert len(limited.out.splitlines()) == 2
    assert "not shown: 1 more task; --limit shows them" in limited.err


def test_watch_prints_tasks_as_they_change(account, make_task, patch_status, control_plane):
    """In a process of its own, until it is interrupted."""
    before = make_task(account)
    env = {
        **os.environ,
        "PYTHONPATH": ":".join(sys.path),
        "KUBECONFIG": str(control_plane.config.cluster_kubeconfig),
        "GATEWAY_NAMESPACE": control_plane.namespace,
    }
    words = ("tasks", "list", "-a", account, "--watch", "--output=json")
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway_cli", *words],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        # a shell starts what it runs in the background with SIGINT ignored, and children inherit it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    lines = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout]).start()

    def wait_line():
        task = json.loads(lines.get(timeout=60))
        return task["name"], task["phase"]

    try:
        assert wait_line() == (before, "Pending")
        after = make_task(account)
        assert wait_line() == (after, "Pending")
        patch_status("gatewaytask", before, {"phase": "Running"})
        assert wait_line() == (before, "Running")
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130


def test_redeliver_needs_a_callback_of_an_ended_task(
    gatewayctl, read, patch_status, account, make_task
):
    without = make_task(account)
    assert "no callback" in gatewayctl("tasks", "redeliver", without, code=4).err
    name = make_task(account, callbackUrl="https://example.com/hook")
    assert "has not ended" in gatewayctl("tasks", "redeliver", name, code=4).err
    patch_status("gatewaytask", name, {"phase": "Failed", "chargedMicros": 0})
    for count in (1, 2):
        gatewayctl("tasks", "redeliver", name)
        assert read("gatewaytask", name)["spec"]["redeliveries"] == count


def test_usage_is_grouped_by_day_model_and_account_with_totals(gatewayctl, create, account):
    days = {
        "2026-11-20": [("key-a", "q4", 3, 300_000), ("key-b", "q4", 1, 100_000)],
        "2026-11-21": [("key-a", "v3", 2, 2_000_000)],
    }
    for day, rows in days.items():
        status = {
            "requests": sum(row[2] for row in rows),
            "chargedMicros": sum(row[3] for row in rows),
            "rows": [
                {
                    "keyName": key,
                    "modelId": model,
                    "operation": "sim/reference_to_video",
                    "requests": requests,
                    "chargedMicros": micros,
                }
                for key, model, requests, micros in rows
            ],
        }
        create(GatewayUsage, f"{account}-{day}", {"accountName": account, "day": day}, status)

    def ask(*options):
        return gatewayctl("usage", account, *options, "-o", "json").document

    by_day = ask()
    assert [(row["day"], row["requests"], row["cost"]) for row in by_day["items"]] == [
        ("2026-11-20", 4, "0.40"),
        ("2026-11-21", 2, "2.00"),
    ]
    assert (by_day["totals"]["requests"], by_day["totals"]["cost"]) == (6, "2.40")
    by_key = ask("--by", "key", "--by", "model", "--since", "2026-11-20")
    assert [(row["key"], row["model"]) for row in by_key["items"]] == [
        *[("key-a", "q4"), ("key-a", "v3"), ("key-b", "q4")]
    ]
    assert [row["day"] for row in ask("--until", "2026-11-20")["items"]] == ["2026-11-20"]
    assert ask()["totals"]["complete"]
    status = {"requests": 9, "chargedMicros": 9_000_000, "throughDay": "2026-11-19"}
    create(GatewayUsage, f"{account}-before", {"accountName": account}, status)
    assert ask()["totals"]["earlier"]["cost"] == "9.00"
    assert ask("--since", "2026-11-20")["totals"] == {**by_key["totals"], "earlier": None}
    for options in (
        ("--since", "2026-11-19"),
        ("--until", "2026-11-20"),
        ("--since", "2026-01-01"),
    ):
        totals = ask(*options)["totals"]
        assert not totals["complete"]
        assert totals["earlier"]["through_day"] == "2026-11-19"
    said = gatewayctl("usage", account, "--since", "2026-11-01").refusal
    assert "through 2026-11-19 cannot be broken down" in said
    assert "93 days" in said
    everybody = gatewayctl("usage", "-o", "json").document["items"]
    assert {"account": account, "cost": "2.40"}.items() <= next(
        row for row in everybody if row["account"] == account
    ).items()
    lines = gatewayctl("usage", account, "--by", "model").out.splitlines()
    assert lines[0].split() == [
        *["MODEL", "REQUESTS", "FAILED", "INPUT", "TOKENS", "OUTPUT", "TOKENS", "COST", "(USD)"]
    ]
    assert lines[-1].split() == ["6", "0", "0", "0", "2.40"]
    gatewayctl("usage", account, "--since", "2026-11-21", "--until", "2026-11-20", code=2)
    gatewayctl("usage", "nobody", code=4)
