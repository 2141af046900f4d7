"""gatewayctl and kubectl on one kubeconfig with the same flags: one cluster, one identity."""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys

import pytest
import typer
import yaml
from typer.testing import CliRunner

from gateway_cli.__main__ import app
from gateway_cli.cluster import client
from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.cluster.flags import select_cluster
from gateway_cli.session import SELECTED, CommandError
from tests.servers.forward_proxy import ForwardProxy

REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PLUGIN = """#!{python}
import json, os
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
token = info["spec"].get("cluster", {{}}).get("config", {{}}).get("token", os.environ.get("TOKEN"))
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential",
                  "status": {{"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}}}}))
"""


@pytest.fixture(scope="module")
def whoami(control_plane, tmp_path_factory):
    """Both programs' answers to who they are: the user, or None for a refusal."""
    empty = tmp_path_factory.mktemp("home")
    kubectl = str(control_plane.run.kubectl_path)

    def run(*flags, variables=None):
        env = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY")}
        env |= {"HOME": str(empty), "KUBECONFIG": "", **(variables or {})}
        command = [kubectl, *flags, "auth", "whoami", "--output=json"]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        theirs = json.loads(done.stdout)["status"]["userInfo"] if not done.returncode else None
        return theirs, _ask(flags, env)

    return run


def _ask(flags, env):
    """The user that the API server sees behind gatewayctl's flags."""

    async def review():
        async with open_cluster(None) as cluster:
            return await cluster.call("POST", REVIEWS, REVIEW)

    context = typer.main.get_command(app).make_context("gatewayctl", [*flags, "accounts"])
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        token = SELECTED.set(select_cluster(context.params))
        try:
            with contextlib.suppress(CommandError):
                return asyncio.run(review())["status"]["userInfo"]
        finally:
            SELECTED.reset(token)
    return None


@pytest.fixture(scope="module")
def files(control_plane, tmp_path_factory):
    """Kubeconfigs of each kind, by name, on the control plane's API server."""
    control_plane.kubectl("create", "serviceaccount", "reader")
    reader = control_plane.kubectl("create", "token", "reader").strip()
    folder = tmp_path_factory.mktemp("configs")
    config = yaml.safe_load(control_plane.config.cluster_kubeconfig.read_text())
    cluster, admin = config["clusters"][0]["cluster"], config["users"][0]["user"]
    (folder / "sub").mkdir()
    (folder / "sub" / "token").write_text(reader + "\n")
    (folder / "sub" / "plugin").write_text(PLUGIN.format(python=sys.executable))
    (folder / "sub" / "plugin").chmod(0o755)
    port = control_plane.config.ports.kube_apiserver
    group = "client.authentication.k8s.io"
    extension = {"name": f"{group}/exec", "extension": {"token": reader}}
    plugin = {"command": "./plugin", "interactiveMode": "Never", "apiVersion": f"{group}/v1"}
    variables = [{"name": "TOKEN", "value": reader}]
    users = {
        "admin": admin,
        "reader": {"tokenFile": "token"},
        "both": {**admin, "tokenFile": "token"},
        "as": {**admin, "as": "ann"},
        "as-all": {
            **admin,
            "as": "ann",
            "as-uid": "u-1",
            "as-groups": ["g:1", "g 2"],
            "as-user-extra": {"Team/Ä": ["x", "z"], "b": ["c"]},
        },
        "as-denied": {"tokenFile": "token", "as": "ann"},
        "groups": {**admin, "as-groups": ["g"]},
        "plugin": {"exec": {**plugin, "env": variables}},
        "beta": {"exec": {**plugin, "env": variables, "apiVersion": f"{group}/v1beta1"}},
        "alpha": {"exec": {**plugin, "env": variables, "apiVersion": f"{group}/v1alpha1"}},
        "informed": {"exec": {**plugin, "provideClusterInfo": True}},
        "missing": {"exec": {**plugin, "command": "no-such-plugin"}},
        "static": {**admin, "exec": {**plugin, "command": "no-such-plugin"}},
        "two": {**admin, "username": "ann", "password": "secret"},
        "wrong": {"token": "wrong"},
        "none": {},
    }
    clusters = {
        "main": {**cluster, "extensions": [extension]},
        "bare": {"server": cluster["server"]},
        "open": {"server": cluster["server"], "insecure-skip-tls-verify": True},
        "named": {**cluster, "tls-server-name": "kubernetes"},
        "misnamed": {**cluster, "tls-server-name": "other.example"},
        "away": {**cluster, "server": f"https://kubernetes:{port}"},
    }
    contexts = [(user, "main") for user in users]
    contexts += [(f"{name}-cluster", name) for name in clusters]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "reader",
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "clusters": [{"name": name, "cluster": fields} for name, fields in clusters.items()],
        "contexts": [
            {
                "name": name,
                "context": {"cluster": place, "user": name if name in users else "admin"},
            }
            for name, place in contexts
        ],
    }
    (folder / "sub" / "config").write_text(yaml.safe_dump(document))
    first = {"current-context": "admin", "users": [{"name": "reader", "user": admin}]}
    (folder / "first").write_text(yaml.safe_dump(first))
    (folder / "empty").touch()
    (folder / "ca.pem").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    return folder


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "reader"),
        *(
            (("--context", context), expected)
            for context, expected in {
                "admin": "admin",
                "both": "reader",
                "as": "ann",
                "as-all": "ann",
                "as-denied": None,
                "groups": None,
                "plugin": "reader",
                "beta": "reader",
                "alpha": None,
                "informed": "reader",
                "missing": None,
                "static": "admin",
                "two": None,
                "wrong": None,
                "none": None,
                "nowhere": None,
                "bare-cluster": None,
                "open-cluster": "admin",
                "named-cluster": "admin",
                "misnamed-cluster": None,
            }.items()
        ),
        (("--user", "admin"), "admin"),
        (("--user", "nobody"), None),
        (("--cluster", "bare", "--insecure-skip-tls-verify"), "reader"),
        (("--cluster", "bare", "--certificate-authority", "ca.pem"), "reader"),
        (("--cluster", "open", "--tls-server-name", "x", "--user", "admin"), "admin"),
        (("--tls-server-name", "other.example"), None),
        (("--user", "admin", "--as", "ann", "--as-group", "a", "--as-group", "b"), "ann"),
        (("--user", "as-all", "--as", "bob"), "bob"),
        (("--as", "ann"), None),
        (("--as-group", "a"), None),
        # kubectl too prefers the token file
        (("--token", "wrong"), "reader"),
        (("--user", "admin", "--token", "wrong"), None),
        (("--user", "plugin", "--token", "wrong"), None),
        (("--user", "admin", "--request-timeout", "20s"), "admin"),
    ],
)
def test_flags_and_fields_give_the_identity_of_kubectl(whoami, files, monkeypatch, flags, expected):
    monkeypatch.chdir(files)
    theirs, ours = whoami("--kubeconfig", "sub/config", *flags)
    assert ours == theirs
    name = ours and ours["username"].rpartition(":")[2]
    assert {"local-admin": "admin"}.get(name, name) == expected


@pytest.mark.full
def test_several_files_are_merged_as_kubectl_does(whoami, files):
    paths = ("absent", "empty", "first", "sub/config")
    for order in (paths, paths[::-1]):
        listed = os.pathsep.join(str(files / path) for path in order)
        theirs, ours = whoami(variables={"KUBECONFIG": listed})
        assert theirs is not None
        assert ours == theirs


@pytest.mark.full
def test_proxy_of_file_and_environment_is_used_as_by_kubectl(whoami, files, monkeypatch):
    with ForwardProxy(user="ann:p@ss") as proxy:
        address = proxy.url.replace("//", "//ann:p%40ss@")
        config = ("--kubeconfig", str(files / "sub" / "config"), "--context", "away-cluster")
        theirs, ours = whoami(*config, variables={"HTTPS_PROXY": address})
        assert theirs is not None
        assert ours == theirs
        targets = {"kubernetes:" + config_port(files)}
        assert set(proxy.seen) == targets
        count = len(proxy.seen)
        exempt = {"https_proxy": address, "no_proxy": ".svc,kubernetes"}
        assert whoami(*config, variables=exempt) == (None, None)
        assert len(proxy.seen) == count
        document = yaml.safe_load((files / "sub" / "config").read_text())
        for entry in document["clusters"]:
            entry["cluster"]["proxy-url"] = address
        (files / "sub" / "proxied").write_text(yaml.safe_dump(document))
        proxied = ("--kubeconfig", str(files / "sub" / "proxied"), "--context", "away-cluster")
        theirs, ours = whoami(*proxied)
        assert theirs is not None
        assert ours == theirs
        # an address on loopback too: the file's proxy has no exceptions
        count = len(proxy.seen)
        theirs, ours = whoami(*proxied[:2], "--context", "admin")
        assert ours == theirs is not None
        assert proxy.seen[count:]


def config_port(files):
    """The API server's port in the kubeconfigs."""
    document = yaml.safe_load((files / "sub" / "config").read_text())
    return document["clusters"][0]["cluster"]["server"].rpartition(":")[2]


@pytest.mark.parametrize(
    ("before", "noun", "between", "after"),
    [
        ((), "accounts", (), ("--as", "x", "--as-group=a", "--as-group", "b")),
        (("--as-group", "a"), "keys", ("--as=y", "--as-group", "b"), ("--as", "x")),
        (("--as=y", "--as=x", "--as-group=a", "--as-group=b"), "users", (), ()),
    ],
)
def test_flags_stand_anywhere(monkeypatch, before, noun, between, after):
    chosen = []

    @contextlib.asynccontextmanager
    async def note(_namespace, **_):
        chosen.append(SELECTED.get().overrides)
        raise ClusterError("noted")
        yield

    monkeypatch.setattr(client, "open_cluster", note)
    bools = ("--disable-compression=false", "--insecure-skip-tls-verify=true")
    CliRunner().invoke(app, [*before, noun, *between, "list", *after, *bools])
    ((user, cluster),) = [(each["user_fields"], each["cluster_fields"]) for each in chosen]
    assert user == {"as": "x", "as-groups": ["a", "b"]}
    assert cluster == {"insecure-skip-tls-verify": True}


def test_command_without_a_cluster_refuses_flags():
    assert CliRunner().invoke(app, ["balance", "--as", "x"]).exit_code == 2


def test_impersonated_user_has_no_rights_of_the_admin(gatewayctl, files, monkeypatch):
    monkeypatch.delenv("GATEWAY_NAMESPACE")
    config = ("--kubeconfig", files / "sub" / "config", "-n", "elsewhere")
    refusal = gatewayctl(*config, "--context", "admin", "accounts", "list", code=4).refusal
    assert "no gateway in the namespace elsewhere" in refusal
    for flags in (("--context", "as"), ("--context", "admin", "--as", "ann")):
        refusal = gatewayctl(*config, *flags, "accounts", "list", code=4).refusal
        assert "you may not list gatewayaccounts in namespace elsewhere" in refusal
    wrong = gatewayctl("--request-timeout", "soon", "accounts", "list", code=2)
    assert "no duration" in wrong.refusal
