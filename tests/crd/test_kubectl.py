"""What an admin sees of the kinds through kubectl."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway_cli.cluster.errors import ClusterError
from gateway_core.api.crd import KINDS
from gateway_core.api.resource import Resource
from tests.crd.casefile import merge, name_anew, read_base
from tests.servers.control_plane import ControlPlane

Create = Callable[..., str]

HEALTH = "HEALTH ERRORS(%) LATENCY(MS)"
COLUMNS = {
    "gwtask": (
        "ACCOUNT MODEL PHASE REASON COST MESSAGE",
        "PROVIDER JOB KEY FINISHED CALLBACK CALLBACKATTEMPTS CALLBACKNEXT CALLBACKANSWER",
    ),
    "gwacct": ("DISPLAY BALANCE READY REASON", "CHARGED UNLIMITED OWNER MESSAGE"),
    "gwbatch": (
        "ACCOUNT MODEL PHASE REASON TOTAL COMPLETED FAILED COST",
        "INPUT OUTPUT ERRORS KEY FINISHED MESSAGE",
    ),
    "gwfile": (
        "ACCOUNT PURPOSE FILENAME BYTES READY REASON",
        "EXPIRES KEY UPLOAD BATCH MESSAGE",
    ),
    "gwgrant": ("USER ACCOUNT CLIENT HOST SCOPES LASTUSED", "CLIENTID REFRESHES EXPIRES"),
    "gwguard": ("ACCOUNT DISPLAY USED WINDOW READY REASON", "LIMIT RESETS MESSAGE"),
    "gwkey": (
        "ACCOUNT CLASS HINT USED WINDOW READY REASON",
        "DISPLAY CREATOR LIMIT LASTUSED EXPIRES LOGSCONTENT MESSAGE",
    ),
    "gwmodel": (
        f"MODEL SERVICE ACTION READY REASON {HEALTH}",
        "FIRST-TOKEN(MS) CALLS/MIN PROVIDER DISABLED DEPRECATED MESSAGE",
    ),
    "gwclient": ("CLIENT REDIRECT AUTHORIZED LASTUSED", "METHOD"),
    "gwprompt": ("TITLE SERVICE ACTION MODEL CATEGORY FEATURED", ""),
    "gwprov": (f"TYPE READY REASON {HEALTH}", "FIRST-TOKEN(MS) CALLS/MIN URL MESSAGE"),
    "gwupload": ("ACCOUNT PURPOSE FILENAME BYTES OUTCOME REASON FILE", "KEY WORK MESSAGE"),
    "gwusage": ("ACCOUNT DAY REQUESTS FAILED COST", "THROUGH CLOSED"),
    "gwuser": ("DISPLAY EMAIL ACCOUNTS READY REASON", "ROLES SUSPENDED MESSAGE"),
}
"""By short name: the columns between NAME and AGE, and those that `-o wide` adds."""
ENDED = {
    "phase": "Completed",
    "work": "Settled",
    "cost": "0.50",
    "upstream": {"providerName": "simulated", "jobId": "job_1"},
    "completionTime": "2026-11-21T10:00:00Z",
    "callback": {
        "id": "msg_a",
        "state": "Undelivered",
        "attempts": 9,
        "lastAnswer": "answered 503",
    },
    "conditions": [
        {
            "type": kind,
            "status": "True",
            "reason": "Completed",
            "message": "the outputs are stored",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
        for kind in ("Succeeded", "Finished")
    ],
}


@pytest.fixture
def create(control_plane: ControlPlane, tmp_path: Path) -> Create:
    """Creates the base of a kind with changes as `kubectl create -f` does; its name."""

    def make(kind: str, **changes: Any) -> str:
        obj = merge(name_anew(read_base(kind)), changes)
        name: str = obj["metadata"]["name"]
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(obj))
        control_plane.kubectl("create", "-f", str(path))
        return name

    return make


def set_status(control_plane: ControlPlane, plural: str, name: str, status: Any) -> None:
    patch = json.dumps({"status": status})
    control_plane.kubectl(
        "patch", plural, name, "--subresource=status", "--type=merge", "-p", patch
    )


@pytest.fixture(scope="module")
def objects(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """An object of each kind, as `kubectl get -o name` names it."""
    bases = [name_anew(read_base(_name_base(kind))) for kind in KINDS]
    path = tmp_path_factory.mktemp("objects") / "objects.yaml"
    path.write_text(yaml.safe_dump_all(bases))
    return set(control_plane.kubectl("create", "-f", str(path), "-o", "name").split())


def _name_base(kind: type[Resource]) -> str:
    return kind.kind_name.removeprefix("Gateway").lower()


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("is_wide", [False, True], ids=["narrow", "wide"])
def test_columns_of_each_kind_by_its_short_name(control_plane: ControlPlane, is_wide: bool) -> None:
    options = ("-o", "wide") if is_wide else ()
    shown = control_plane.kubectl("get", ",".join(COLUMNS), *options)
    headers = [line.split() for line in shown.splitlines() if line.startswith("NAME ")]
    if is_wide:
        # the further columns stand anywhere
        assert [sorted(header[1:-1]) for header in headers] == [
            sorted(f"{narrow} {wide}".split()) for narrow, wide in COLUMNS.values()
        ]
    else:
        assert headers == [["NAME", *narrow.split(), "AGE"] for narrow, _ in COLUMNS.values()]


def test_category_shows_every_kind(control_plane: ControlPlane, objects: set[str]) -> None:
    assert len(objects) == len(KINDS) == len(COLUMNS)
    assert objects <= set(control_plane.kubectl("get", "modelgateway", "-o", "name").split())


def test_row_of_an_ended_task(control_plane: ControlPlane, create: Create) -> None:
    name = create("task")
    set_status(control_plane, "gatewaytasks", name, ENDED)
    row = control_plane.kubectl("get", "gwtask", name, "--no-headers").split()
    assert row[:6] == [name, "demo", "sim-q4", "Completed", "Completed", "0.50"]
    wide = control_plane.kubectl("get", "gwtask", name, "--no-headers", "-o", "wide")
    for text in ("simulated", "job_1", "the outputs are stored", "Undelivered   9", "answered 503"):
        assert text in wide


def test_row_of_an_unusable_model(control_plane: ControlPlane, create: Create) -> None:
    name = create("model")
    condition = {**ENDED["conditions"][0], "type": "Ready", "status": "False"}
    condition |= {"reason": "PriceMissing", "message": "spec.prices must be given"}
    set_status(control_plane, "gatewaymodels", name, {"conditions": [condition]})
    row = control_plane.kubectl("get", "gwmodel", name, "--no-headers").split()
    assert row[4:6] == ["False", "PriceMissing"]
    wide = control_plane.kubectl("get", "gwmodel", name, "--no-headers", "-o", "wide")
    assert "spec.prices must be given" in wide


def test_rows_of_providers_show_where_they_are_whatever_their_type(
    control_plane: ControlPlane, create: Create
) -> None:
    judge = {"type": "openai", "http": None, "openai": {"baseUrl": "https://judge.example/v1"}}
    coded = {"type": "coded", "http": None}
    for name, url in (
        (create("provider"), "https://api.example.com/v1"),
        (create("provider", spec=judge), "https://judge.example/v1"),
        (create("provider", spec=coded), None),
    ):
        wide = control_plane.kubectl("get", "gwprov", name, "--no-headers", "-o", "wide")
        assert [word for word in wide.split() if "://" in word] == ([url] if url else [])


def test_wait_and_describe_show_an_ended_task(control_plane: ControlPlane, create: Create) -> None:
    name = create("task")
    set_status(control_plane, "gatewaytasks", name, ENDED)
    said = control_plane.kubectl(
        "wait", "--for=condition=Finished", f"gatewaytask/{name}", "--timeout=10s"
    )
    assert "condition met" in said
    described = control_plane.kubectl("describe", "gatewaytask", name)
    for text in ("Succeeded", "Finished", "the outputs are stored"):
        assert text in described


def test_definitions_are_established_and_structural(control_plane: ControlPlane) -> None:
    """A schema whose CEL rules cost too much, or that is not structural, is not served."""
    names = [f"{kind.plural}.modelgateway.dev" for kind in KINDS]
    crds = json.loads(control_plane.kubectl("get", "crd", *names, "-o", "json"))["items"]
    assert len(crds) == len(KINDS)
    for crd in crds:
        conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
        assert crd["status"]["acceptedNames"]["categories"] == ["modelgateway"]


def test_explain_says_what_a_field_is_for(control_plane: ControlPlane) -> None:
    """The document that it is read from follows a definition's establishing by and by."""
    deadline = time.monotonic() + 60
    while True:
        try:
            said = control_plane.kubectl("explain", "gatewaytask.spec.request.input")
            break
        except ClusterError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
    assert "The operation's input as JSON text." in said


def test_update_with_apply_keeps_tokens_of_other_managers(
    control_plane: ControlPlane, create: Create, tmp_path: Path
) -> None:
    """Lists with keys are merged item by item, so that a rotation and GitOps get along."""
    name = create("key")
    second = {"id": "bcdefgh2", "digest": "1" * 64, "hint": "h"}
    manifest = {
        "apiVersion": "modelgateway.dev/v1alpha1",
        "kind": "GatewayKey",
        "metadata": {"name": name},
        "spec": {"tokens": [second]},
    }
    path = tmp_path / "rotation.yaml"
    path.write_text(yaml.safe_dump(manifest))
    control_plane.kubectl("apply", "--server-side", "--field-manager=rotation", "-f", str(path))
    key = json.loads(control_plane.kubectl("get", "gatewaykey", name, "-o", "json"))
    assert [token["id"] for token in key["spec"]["tokens"]] == ["abcdefgh", "bcdefgh2"]
