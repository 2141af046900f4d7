"""What must be true of an installation beside its tasks: rights, hardening, secrets, jobs."""

import hashlib
import json
import re
from collections import Counter

from tests.e2e.cluster import E2EError
from tests.e2e.objects import RELEASE, SHORT_NAME

API, MCP, OPERATOR, HOOKS, MEDIA = (
    f"{RELEASE}-{name}" for name in ("api", "mcp", "operator", "hooks", "media")
)
MAY = (
    (API, "create", "gatewaytasks"),
    (API, "list", "gatewaytasks"),
    (API, "watch", "gatewaykeys"),
    (API, "create", "gatewaykeys"),
    (API, "patch", "gatewaykeys"),
    (API, "create", "gatewayguardrails"),
    (API, "patch", "gatewayguardrails"),
    (API, "delete", "gatewayguardrails"),
    (API, "list", "gatewayusages"),
    (API, "create", "gatewayfiles"),
    (API, "delete", "gatewayfiles"),
    (API, "patch", "gatewayuploads"),
    (API, "create", "gatewaybatches"),
    (API, "watch", "gatewayproviders"),
    (API, "create", "gatewaygrants"),
    (API, "patch", "gatewayusers"),
    (MCP, "watch", "gatewayprompts"),
    (MCP, "create", "gatewaytasks"),
    (MCP, "patch", "gatewaytasks"),
    (MCP, "watch", "gatewaygrants"),
    (OPERATOR, "update", "gatewaytasks/status"),
    (OPERATOR, "patch", "gatewaytasks"),
    (OPERATOR, "get", "secrets", f"{RELEASE}-simulator"),
    (OPERATOR, "get", "secrets", f"{RELEASE}-trial-webhook"),
    (OPERATOR, "patch", "secrets", f"{RELEASE}-trial-key"),
    (OPERATOR, "patch", "secrets", "load-key"),
    (OPERATOR, "create", "gatewayfiles"),
    (OPERATOR, "patch", "gatewayfiles/status"),
    (OPERATOR, "delete", "gatewayuploads"),
    (OPERATOR, "patch", "gatewaybatches/status"),
    # keys of a deleted user are revoked
    (OPERATOR, "patch", "gatewaykeys"),
    # their finalizer is removed once their rows of the audit are archived
    (OPERATOR, "patch", "gatewaygrants"),
    # the first keys' Secrets: no rule can bound the names of what is created
    (OPERATOR, "create", "secrets"),
    (OPERATOR, "create", "leases.coordination.k8s.io"),
    (HOOKS, "create", "gatewaymodels"),
)
MAY_NOT = (
    (API, "get", "secrets"),
    (API, "list", "secrets"),
    (API, "patch", "gatewaytasks/status"),
    (API, "update", "gatewaytasks/status"),
    (API, "delete", "gatewaytasks"),
    (API, "get", "secrets", f"{RELEASE}-trial-webhook"),
    (API, "get", "secrets", f"{RELEASE}-api-keys"),
    (API, "patch", "gatewayproviders"),
    (API, "patch", "gatewayfiles"),
    (API, "patch", "gatewayfiles/status"),
    (API, "patch", "gatewayuploads/status"),
    (API, "delete", "gatewayuploads"),
    (API, "patch", "gatewaybatches/status"),
    (API, "delete", "gatewaybatches"),
    (API, "delete", "gatewaykeys"),
    (API, "patch", "gatewaykeys/status"),
    (API, "patch", "gatewayguardrails/status"),
    (API, "patch", "gatewayaccounts"),
    (API, "delete", "gatewayusers"),
    (API, "create", "gatewayusages"),
    (MCP, "get", "secrets"),
    (MCP, "patch", "gatewaytasks/status"),
    (MCP, "create", "gatewaygrants"),
    (MCP, "patch", "gatewaygrants"),
    (OPERATOR, "create", "gatewaytasks"),
    (OPERATOR, "create", "gatewaybatches"),
    (OPERATOR, "get", "secrets"),
    (OPERATOR, "patch", "secrets"),
    (OPERATOR, "get", "secrets", f"{RELEASE}-api-keys"),
    (OPERATOR, "patch", "secrets", f"{RELEASE}-redis"),
    (OPERATOR, "list", "secrets"),
    (OPERATOR, "delete", "secrets"),
    (OPERATOR, "create", "gatewaykeys"),
    (OPERATOR, "create", "pods"),
    (HOOKS, "list", "secrets"),
    (HOOKS, "get", "secrets"),
    (HOOKS, "create", "secrets"),
    (HOOKS, "create", "gatewaytasks"),
    (MEDIA, "get", "gatewaytasks"),
    (MEDIA, "get", "secrets"),
)
GENERATED = ("api-keys", "media-key", "redis")
MODERATOR = f"{RELEASE}-simulator"
"""The Secret of the trial's moderation provider, which the API calls itself."""


def check_rights(cluster):
    """Each process may do what it must, and nothing that it must not.

    Of all Secrets that there are, and of one of a provider that nobody named to the chart, the API
    may read that of the moderation provider alone.
    """
    wrong = [f"may not: {case}" for case in MAY if not cluster.can(*case)]
    wrong += [f"may: {case}" for case in MAY_NOT if cluster.can(*case)]
    secrets = {item["metadata"]["name"] for item in cluster.get("secrets")["items"]}
    readable = {
        name for name in (*secrets, "other-provider") if cluster.can(API, "get", "secrets", name)
    }
    if readable != {MODERATOR} or MODERATOR not in secrets:
        wrong.append(f"of the Secrets {sorted(secrets)} the API may read {sorted(readable)}")
    if wrong:
        raise E2EError(f"rights are wrong: {wrong}")


def check_flow_control(cluster):
    """The API server serves what the API creates and reads apart from all that the operator does.

    Which flow schema took a request is in a header of its answer, whatever the answer is.
    """
    tasks = f"/apis/modelgateway.dev/v1alpha1/namespaces/{cluster.namespace}/gatewaytasks"
    create = ("create", f"--raw={tasks}?dryRun=All", "--filename=-")
    read = ("get", f"--raw={tasks}/task-none")
    listing = ("get", f"--raw={tasks}?limit=1")
    for account, command, level in (
        (API, create, "gw-intake"),
        (API, read, "gw-intake"),
        (API, listing, "gw-lists"),
        (MCP, create, "gw-intake"),
        (OPERATOR, read, "gw-control"),
        (OPERATOR, listing, "gw-control"),
    ):
        name = f"{cluster.namespace}-{RELEASE}-{level}"
        path = "--output=jsonpath={.metadata.uid}"
        wanted = cluster.kubectl("get", "flowschema", name, path).strip()
        told = cluster.trace(
            *command, *cluster.impersonate(account), stdin="{}" if command is create else None
        )
        found = re.search(r"X-Kubernetes-Pf-Flowschema-Uid: (\S+)", told, re.IGNORECASE)
        if found is None or found[1] != wanted:
            raise E2EError(f"{account}: {command[:2]} is not served at {level}: {found}")


def check_hardening(cluster):
    """Every container runs without rights, on a root that it cannot write."""
    for pod in cluster.get("pods", "--selector=app.kubernetes.io/part-of=model-gateway")["items"]:
        name, spec = pod["metadata"]["name"], pod["spec"]
        for container in spec["containers"]:
            context = container["securityContext"]
            hardened = (
                context["readOnlyRootFilesystem"],
                not context["allowPrivilegeEscalation"],
                context["capabilities"] == {"drop": ["ALL"]},
                spec["securityContext"]["runAsNonRoot"],
                spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"},
                container["resources"].get("limits", {}).get("memory"),
            )
            if not all(hardened):
                raise E2EError(f"{name} is not hardened: {hardened}")
    component = cluster.pods("media")[0]
    if any("kube-api-access" in volume["name"] for volume in component["spec"]["volumes"]):
        raise E2EError("the media host has a token of the cluster")


def check_secrets_kept(cluster, before=None):
    """A digest of the generated secrets; E2EError if it is not the one before."""
    names = [f"{RELEASE}-{name}" for name in GENERATED]
    data = [item["data"] for item in cluster.get("secrets", *names)["items"]]
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    if before not in (None, digest):
        raise E2EError("an upgrade changed the generated secrets")
    return digest


def check_single_jobs(cluster):
    """The provider made one job for each task, whatever was killed meanwhile."""
    script = (
        "import urllib.request as r;"
        "print(r.urlopen('http://127.0.0.1:9010/control/history').read().decode())"
    )
    pod = cluster.pods("simulator")[0]["metadata"]["name"]
    history = json.loads(cluster.kubectl("exec", pod, "--", "python", "-c", script))
    jobs = Counter(
        entry["client_reference"]
        for entry in history["submissions"]
        if entry["job_id"] and not entry["replay"]
    )
    double = [reference for reference, count in jobs.items() if count > 1]
    if double:
        raise E2EError(f"tasks with more than one job: {double}")


def check_crd_is_new(cluster, *, new):
    """The kinds are those of this checkout, or not: the older chart lacks a short name."""
    names = cluster.kubectl(
        "get",
        "customresourcedefinition",
        "gatewaytasks.modelgateway.dev",
        "--output=jsonpath={.spec.names.shortNames}",
    )
    if (SHORT_NAME in names) is not new:
        raise E2EError(f"the kind of tasks is not the {'new' if new else 'old'} one: {names}")


def check_crds_stay(cluster, tasks):
    """After the uninstall the kinds and their objects are still there."""
    left = len(cluster.get("gatewaytasks")["items"])
    if left < tasks:
        raise E2EError(f"of {tasks} tasks {left} are left after the uninstall")
