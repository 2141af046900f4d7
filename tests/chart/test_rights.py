"""What no role has, who holds a token of the cluster, and which keys each process is given."""

import ast

import pytest

from gateway_apiserver import tables as api_tables
from gateway_core.kube.lineage import LINEAGE_LEASE
from gateway_mcpserver import tables as mcp_tables
from gateway_operator.tables import build_tables
from tests.chart.conftest import ROOT

KEYS = {"gateway-model-gateway-api-keys": {"id-key", "pepper"}}
"""What the generated Secrets hold, where it is not their own name."""


def _given_keys(chart, kind, component):
    """The key files that are mounted; all peppers as one."""
    spec = chart.find(kind, f"-{component}")["spec"]["template"]["spec"]
    found = set()
    for volume in spec["volumes"]:
        sources = [source["secret"] for source in volume.get("projected", {}).get("sources", [])]
        if "secret" in volume:
            sources.append({"name": volume["secret"]["secretName"]})
        for source in sources:
            name = source["name"]
            every = KEYS.get(name, {name.removeprefix("gateway-model-gateway-")})
            found |= {item["key"] for item in source["items"]} if "items" in source else every
    return found


def _loaded_keys(module, function):
    """The key files that a composition root loads, by the literals in its source."""
    tree = ast.parse((ROOT / module).read_text())
    [body] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    ]
    calls = [
        node
        for node in ast.walk(body)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    named = {ast.literal_eval(call.args[1]) for call in calls if call.func.id == "load_key"}
    return named | ({"pepper"} if any(call.func.id == "load_peppers" for call in calls) else set())


@pytest.mark.parametrize(
    ("kind", "component", "module", "function"),
    [
        ("Deployment", "api", "apiserver/gateway_apiserver/compose.py", "open_api"),
        ("Deployment", "mcp", "mcpserver/gateway_mcpserver/compose.py", "open_mcp"),
        ("Deployment", "media", "apiserver/gateway_apiserver/media_process.py", "open_media"),
        ("StatefulSet", "operator", "operator/gateway_operator/compose.py", "start_operator"),
    ],
)
def test_process_is_given_the_keys_that_it_loads(chart, kind, component, module, function):
    loaded = _loaded_keys(module, function)
    assert loaded
    assert _given_keys(chart, kind, component) == loaded


def test_roles_have_no_wildcards_and_no_rights_in_the_cluster(chart, scenario):
    bound = []
    for obj in chart.render(scenario):
        if obj["kind"] in ("Role", "ClusterRole"):
            for rule in obj["rules"]:
                scopes = ("verbs", "resources", "apiGroups", "nonResourceURLs")
                assert not any("*" in word for scope in scopes for word in rule.get(scope, []))
        if obj["kind"] == "ClusterRoleBinding":
            bound.append(obj["roleRef"]["name"])
    # the size of the record's database is the cluster's, and wanted where its quota is set
    wanted = "quotaBytes: 8" in scenario
    assert [name.rpartition("-record-")[2] for name in bound] == ["size"] * wanted


def test_pods_that_call_the_cluster_alone_have_its_token(chart):
    values = "{simulator: {enabled: true}}"
    holders = {
        obj["metadata"]["name"].removeprefix("gateway-model-gateway-")
        for obj in chart.render(values)
        if obj["kind"] in ("Deployment", "StatefulSet", "Job", "Pod")
        and obj["spec"].get("template", obj)["spec"]["automountServiceAccountToken"]
    }
    assert holders == {"api", "mcp", "operator", "secrets", "first-objects"}


def _collect_verbs(role):
    """The verbs of a role by resource."""
    verbs = {}
    for rule in role["rules"]:
        for resource in rule["resources"]:
            verbs.setdefault(resource, set()).update(rule["verbs"])
    return verbs


def test_operator_may_write_each_status_as_it_does(chart):
    """A task's status is replaced, every other kind's is patched."""
    verbs = _collect_verbs(chart.find("Role", "-operator"))
    written = {resource: found for resource, found in verbs.items() if resource.endswith("/status")}
    assert "update" in written.pop("gatewaytasks/status")
    assert len(written) == 12
    assert all(found == {"patch"} for found in written.values())


@pytest.mark.parametrize("component", ["api", "mcp", "operator"])
def test_role_lets_a_process_read_the_lineage_and_not_every_lease(chart, component):
    rules = [
        rule
        for rule in chart.find("Role", f"-{component}")["rules"]
        if rule["resources"] == ["leases"] and "list" in rule["verbs"]
    ]
    assert rules
    assert all(LINEAGE_LEASE in rule["resourceNames"] for rule in rules)


def _list_api_tables():
    found = []
    api_tables.Tables(lambda plural, *_, **__: found.append(plural), None, None)
    return found


def _list_mcp_tables():
    found = []
    mcp_tables.Tables(lambda plural, *_, **__: found.append(plural), None)
    return found


def _list_operator_tables():
    return [table.plural for table in build_tables(None).all]


@pytest.mark.parametrize(
    ("component", "list_tables"),
    [
        ("api", _list_api_tables),
        ("mcp", _list_mcp_tables),
        ("operator", _list_operator_tables),
    ],
)
def test_role_lets_a_process_follow_each_of_its_tables(chart, component, list_tables):
    verbs = _collect_verbs(chart.find("Role", f"-{component}"))
    plurals = list_tables()
    assert len(plurals) > 5
    lacking = {
        plural: missing
        for plural in plurals
        if (missing := {"get", "list", "watch"} - verbs.get(plural, set()))
    }
    assert lacking == {}


@pytest.mark.parametrize("component", ["api", "mcp"])
def test_role_lets_a_process_recount_money(chart, component):
    verbs = _collect_verbs(chart.find("Role", f"-{component}"))
    for plural in ("gatewaytasks", "gatewaybatches", "gatewayusages"):
        assert "list" in verbs[plural], plural
