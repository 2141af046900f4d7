"""`make e2e`: the chart on a real cluster, from install to uninstall, with tasks under way.

    KUBECONFIG      the cluster (of the current context)
    CLUSTER_RUN     a prefix for kubectl and helm, where they must run elsewhere; empty if not
    CLUSTER_LOAD    a command that builds and loads an image: `CLUSTER_LOAD TAG DIR`
    E2E_REPOSITORY  the image's name without a tag; localhost/model-gateway
    E2E_FROM        a revision of an earlier release, e.g. v1.2.0: upgrade from it with live data
                    and roll back, instead of all other steps
    E2E_RELEASE     a folder that `make release` wrote: its chart and image, not the checkout's

Removes whatever it has made, whether it succeeds or not, unless E2E_KEEP is set.
"""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

from tools.processes import CommandFailed, export_revision

from tests.e2e.checks import (
    check_crd_is_new,
    check_crds_stay,
    check_flow_control,
    check_hardening,
    check_rights,
    check_secrets_kept,
    check_single_jobs,
)
from tests.e2e.cluster import Cluster, E2EError
from tests.e2e.disturbances import crash, delete, drain
from tests.e2e.installation import ROOT, Installation, read_release
from tests.e2e.loads import Load
from tests.e2e.mcp_users import try_mcp
from tests.e2e.notes import try_notes
from tests.e2e.objects import NAMESPACE
from tests.e2e.production import try_production
from tests.e2e.storages import try_storage
from tests.e2e.upgrades import try_upgrade

KILLS = (
    (crash, "operator"),
    (crash, "api"),
    (delete, "operator"),
    (delete, "api"),
    (crash, "redis"),
)
DRAINED = ("api", "operator", "media")


def run(cluster, installation):
    """Every step, in order; the figures measured."""
    figures = {}
    figures["install to ready, s"] = installation.install()
    figures["helm test, s"] = try_notes(cluster)
    check_rights(cluster)
    check_hardening(cluster)
    check_flow_control(cluster)
    check_crd_is_new(cluster, new=False)
    secrets = check_secrets_kept(cluster)

    _say("kill pods while tasks run")
    with Load(cluster, installation.image) as load:
        for disturb, component in KILLS:
            seconds = disturb(cluster, component)
            _say(f"  {disturb.__name__} of {component}: whole again after {seconds:.1f} s")
    lost = load.check_nothing_lost(refused_allowed=True)
    figures["tasks through kills"] = lost["accepted"]

    _say("files up and down, an Upload, and a batch while pods are killed")
    figures["files, an Upload and a batch, s"] = try_storage(cluster, installation.image, _say)

    _say("sign-in, consent and a tool call over MCP, pods killed between the steps")
    figures["sign-in and a task over MCP, s"] = try_mcp(cluster, installation.image)

    _say("drain, upgrade and roll back while tasks run")
    with Load(cluster, installation.image) as load:
        for component in DRAINED:
            _say(f"  {component} drained in {drain(cluster, component):.1f} s")
        figures["rolling upgrade, s"] = installation.upgrade()
        check_crd_is_new(cluster, new=True)
        figures["rollback, s"] = installation.roll_back()
    summary = load.check_nothing_lost(refused_allowed=False)
    figures["tasks through drain, upgrade and rollback"] = summary["accepted"]
    figures["creates refused meanwhile"] = sum(
        count for told, count in summary["answers"].items() if told.startswith("POST 503 ")
    )
    names = sum(count for what, count in summary["broken"].items() if "DNS" in what)
    figures["connections drained or broken meanwhile"] = sum(summary["broken"].values()) - names
    figures["names that the cluster did not resolve meanwhile"] = names
    check_secrets_kept(cluster, secrets)
    check_single_jobs(cluster)
    installation.test()

    installation.uninstall()
    check_crds_stay(cluster, lost["accepted"] + summary["accepted"])
    return figures


def main():
    """0 if everything is as it must be."""
    if not os.environ.get("KUBECONFIG") and not os.environ.get("CLUSTER_RUN"):
        print("KUBECONFIG (or CLUSTER_RUN) must name a cluster for tests", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="e2e-")))
        earlier = made = None
        try:
            if revision := os.environ.get("E2E_FROM"):
                earlier = folder / "earlier"
                export_revision(ROOT, revision, earlier)
            if release := os.environ.get("E2E_RELEASE"):
                made = read_release(Path(release).resolve(), folder)
        except (CommandFailed, E2EError) as error:
            print(f"✗ {error}", file=sys.stderr)
            return 2
        return _try(Cluster(NAMESPACE), earlier, made)


def _try(cluster, earlier, made):
    installation = Installation(cluster, _say, earlier, made)
    begin = time.monotonic()
    try:
        installation.look_around()
    except E2EError as error:
        print(f"✗ {error}", file=sys.stderr)
        return 2
    try:
        installation.prepare()
        figures = (
            try_upgrade(cluster, installation, _say) if earlier else run(cluster, installation)
        )
    except E2EError as error:
        print(f"✗ {error}", file=sys.stderr)
        installation.explain()
        return 1
    finally:
        if not os.environ.get("E2E_KEEP"):
            installation.clean()
    if not (earlier or os.environ.get("E2E_KEEP")):
        _say("an installation by docs/operations/production.md")
        try:
            seconds = try_production(cluster, installation.image)
        except E2EError as error:
            print(f"✗ {error}", file=sys.stderr)
            return 1
        figures["the page on production, s"] = seconds
    print(f"✓ e2e in {time.monotonic() - begin:.0f} s")
    for name, value in figures.items():
        print(f"  {name}: {value if isinstance(value, int) else f'{value:.1f}'}")
    return 0


def _say(text):
    print(f"• {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
