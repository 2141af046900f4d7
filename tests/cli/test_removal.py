"""`gatewayctl install remove` on a real API server without an operator."""

import json
import secrets

import pytest

from gateway_cli.install import removal
from gateway_core.api.ids import API_VERSION, BATCH_FINALIZER, STORED_FINALIZER, TASK_FINALIZER

PREFIX = {"apiVersion": API_VERSION}
FILE, UPLOAD = f"file-{'a' * 26}", f"upload-{'a' * 26}"
RUN = {"accountName": "acme", "service": "sim", "action": "reference_to_video", "modelId": "q4"}


def make(kind, name, spec, *finalizers):
    return {**PREFIX, "kind": kind, "metadata": {"name": name, "finalizers": finalizers}, **spec}


def make_task(name, *finalizers):
    spec = {"request": {**RUN, "input": "{}"}, "deadlineSeconds": 60}
    return make("GatewayTask", name, {"spec": spec}, *finalizers)


@pytest.fixture
def place(control_plane, tmp_path, monkeypatch):
    """A namespace, and functions that apply objects and read them there."""
    monkeypatch.setattr(removal, "ABSENT_SECONDS", 0.5)
    name = f"removed-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)

    def run(verb, *arguments):
        return control_plane.kubectl(verb, *arguments, "--namespace", name)

    def apply(*objects):
        path = tmp_path / "objects.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        run("create", "-f", str(path))

    return name, run, apply


def set_status(run, task, status):
    change = json.dumps({"status": status})
    run("patch", "gatewaytask", task, "--subresource=status", "--type=merge", f"--patch={change}")


def fill(run, apply):
    """An object of each kind with a finalizer, as the gateway leaves them without an operator."""
    segment = {"key": f"files/acme/{FILE}", "bytes": 1, "sha256": "0" * 64}
    file = {"accountName": "acme", "purpose": "user_data", "filename": "a", "bytes": 1}
    upload = {"accountName": "acme", "purpose": "user_data", "filename": "a", "bytes": 1}
    batch = {"accountName": "acme", "inputFileName": FILE}
    owner = {"name": "Ann", "email": "ann@example.com"}
    apply(
        make_task("task-running", TASK_FINALIZER),
        make_task("task-ended", TASK_FINALIZER),
        make(
            "GatewayFile",
            FILE,
            {"spec": {"request": {**file, "segments": [segment]}}},
            STORED_FINALIZER,
        ),
        make(
            "GatewayUpload",
            UPLOAD,
            {"spec": {"request": {**upload, "mediaType": "text/plain"}}},
            STORED_FINALIZER,
        ),
        make("GatewayBatch", "batch-a", {"spec": {"request": batch}}, BATCH_FINALIZER),
        # of a release that has finalizers which this one does not know
        make(
            "GatewayAccount",
            "acme",
            {"spec": {"displayName": "Acme", "owner": owner}},
            "modelgateway.dev/remains",
        ),
    )
    job = {"providerName": "gone", "jobId": "job-1", "upstreamModel": "q4"}
    set_status(run, "task-running", {"phase": "Running", "upstream": job})
    set_status(run, "task-ended", {"phase": "Completed", "chargedMicros": 300_000})


@pytest.mark.parametrize("terminating", [False, True], ids=["namespace there", "terminating"])
def test_everything_is_removed_without_an_operator_and_the_rest_reported(
    gatewayctl, place, terminating
):
    name, run, apply = place
    fill(run, apply)
    if terminating:
        run("delete", "namespace", name, "--wait=false")
    command = ("install", "remove", "--namespace", name, "--keep-crds", "--wait=1s")
    assert "Delete the gateway" in gatewayctl(*command, code=1, stdin="n\n").err
    assert "task-running" in run("get", "gatewaytasks", "--output=name")
    outcome = gatewayctl(*command, "--yes", "--output=json", code=1).document
    [left] = outcome["jobsLeft"]
    assert left["task"] == "task-running"
    assert "gone, job job-1" in left["problem"]
    assert outcome["uncountedMicros"] == {"acme": 300_000}
    assert len(outcome["released"]) == sum(outcome["deleted"].values()) == 6
    assert outcome["crds"] == "kept"
    assert run("get", "modelgateway", "--output=name") == ""
    again = gatewayctl(*command, "--yes", "--output=json").document
    assert (again["deleted"], again["jobsLeft"]) == ({}, [])


def test_finalizers_of_others_and_crds_in_use_elsewhere_are_kept(gatewayctl, place, account):
    name, run, apply = place
    apply(make_task("task-held", TASK_FINALIZER, "example.com/backup"))
    outcome = gatewayctl(
        "install", "remove", "--yes", "--namespace", name, "--wait=0", "--output=json"
    ).document
    assert outcome["remains"] == ["GatewayTask/task-held, which another finalizer keeps"]
    assert outcome["crds"].startswith("kept: ")
    run(
        "patch",
        "gatewaytask",
        "task-held",
        "--type=json",
        '--patch=[{"op": "remove", "path": "/metadata/finalizers"}]',
    )
