"""An upgrade from an earlier release and a rollback to it, with live data and tasks under way."""

import json

from tests.e2e.checks import check_secrets_kept, check_single_jobs
from tests.e2e.clients import LIVE_DATA, ClientPod
from tests.e2e.cluster import E2EError
from tests.e2e.loads import Load

KINDS = (
    "gatewayaccounts",
    "gatewayusers",
    "gatewaykeys",
    "gatewayguardrails",
    "gatewayproviders",
    "gatewaymodels",
    "gatewayfiles",
    "gatewaybatches",
    "gatewaytasks",
)
"""Kinds whose objects stay through the test."""


def try_upgrade(cluster, installation, say):
    """Install the earlier release, upgrade to this checkout, and roll back; the figures measured.

    Raises:
        E2EError: an object or a secret is gone or changed, a task failed, or the client of the live
            data found something else than it had made.
    """
    figures = {"install of the earlier release to ready, s": installation.install()}
    secrets = check_secrets_kept(cluster)
    say("data of each kind")
    client = ClientPod(cluster, LIVE_DATA)
    client.start(installation.image)
    client.wait_reached("made")
    with Load(cluster, installation.image) as load:
        before = _list_specs(cluster)
        figures["upgrade, s"] = installation.upgrade()
        _check_kept(cluster, before)
        client.go_on("made")
        client.wait_reached("continued")
        before = _list_specs(cluster)
        figures["rollback, s"] = installation.roll_back()
        _check_kept(cluster, before)
    client.go_on("continued")
    counts = json.loads(client.wait_ended().splitlines()[-1])
    figures |= {f"live data: {name}": count for name, count in counts.items()}
    summary = load.check_nothing_lost(refused_allowed=False)
    figures["tasks through upgrade and rollback"] = summary["accepted"]
    check_secrets_kept(cluster, secrets)
    check_single_jobs(cluster)
    return figures


def _list_specs(cluster):
    """The spec of each object, by kind and name."""
    return {
        (kind, item["metadata"]["name"]): item["spec"]
        for kind in KINDS
        for item in cluster.get(kind)["items"]
    }


def _check_kept(cluster, before):
    """Every object is still there, and its spec has what it had: a newer kind may add defaults."""
    now = _list_specs(cluster)
    lost = sorted(set(before) - set(now))
    changed = [
        f"{kind} {name}: {field} was {value!r}, is {now[kind, name].get(field)!r}"
        for (kind, name), spec in before.items()
        if (kind, name) in now
        for field, value in spec.items()
        if not _has(now[kind, name].get(field), value)
    ]
    if lost or changed:
        raise E2EError(f"lost: {lost}; changed: {changed[:20]}")


def _has(now, value):
    """Whether a value contains all of an earlier one."""
    if isinstance(value, dict):
        return isinstance(now, dict) and all(_has(now.get(name), value[name]) for name in value)
    if isinstance(value, list):
        return isinstance(now, list) and len(now) == len(value) and all(map(_has, now, value))
    return now == value
