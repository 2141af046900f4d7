"""Credentials of a kubeconfig: the server that it names sees them, and no field is ignored."""

import asyncio
import base64
import json
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from kubernetes.config import incluster_config

from gateway_cli.local.certificates import ClusterKeys, write_cluster_keys
from gateway_core.concurrency import Supervisor
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import Credentials, NoCluster
from gateway_core.kube.errors import KubernetesError, KubernetesUnavailable
from gateway_core.kube.kubeconfig import Overrides, find_connection
from gateway_operator.handlers import login_to
from tests.servers.forward_proxy import ForwardProxy

SERVER = "https://127.0.0.1:9"
V1 = "client.authentication.k8s.io/v1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def keys(tmp_path: Path) -> ClusterKeys:
    return write_cluster_keys(tmp_path / "pki")


def write_kubeconfig(
    path: Path, cluster: dict[str, Any], user: dict[str, Any], **context: str
) -> Path:
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


PLUGIN = {"apiVersion": V1, "command": "x", "interactiveMode": "Never"}


def write_plugin(path: Path, status: str, *, version: str = V1) -> dict[str, Any]:
    """A plugin in `path` that prints a status, a Python expression, and counts its runs."""
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, time\n"
        f"log = pathlib.Path({str(path)!r} + '.log')\n"
        "runs = len(log.read_text().splitlines()) if log.exists() else 0\n"
        "log.open('a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
        f"print(json.dumps({{'apiVersion': {version!r}, 'kind': 'ExecCredential',"
        f" 'status': {status}}}))\n"
    )
    path.chmod(0o755)
    return {"apiVersion": version, "command": str(path), "interactiveMode": "Never"}


def read(path: Path, **overrides: Any) -> Credentials:
    return find_connection(path, Overrides(**overrides)).read_credentials()


@pytest.mark.parametrize("form", ["files", "data", "plugin"])
async def test_client_certificate_is_presented(
    keys: ClusterKeys, tmp_path: Path, form: str
) -> None:
    seen: list[Any] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peercert"))
        writer.close()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(keys.certificate))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(keys.certificate, keys.key)
    files = {
        "certificate-authority": keys.certificate,
        "client-certificate": keys.certificate,
        "client-key": keys.key,
    }
    fields = (
        {f"{n}-data": base64.b64encode(p.read_bytes()).decode() for n, p in files.items()}
        if form == "data"
        else {name: f"pki/{path.name}" for name, path in files.items()}
    )
    cluster = {name: value for name, value in fields.items() if name.startswith("certificate")}
    user = {name: value for name, value in fields.items() if name.startswith("client")}
    if form == "plugin":
        pair = {
            "clientCertificateData": keys.certificate.read_text(),
            "clientKeyData": keys.key.read_text(),
        }
        user = {"exec": write_plugin(tmp_path / "plugin", repr(pair))}
    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        cluster["server"] = f"https://127.0.0.1:{port}"
        connection = find_connection(write_kubeconfig(tmp_path / "config", cluster, user))
        context = connection.build_ssl(connection.read_credentials())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        await reader.read()
        writer.close()
    assert (("commonName", "model-gateway-local"),) in seen[0]["subject"]


def test_token_file_is_relative_to_its_file_and_read_anew(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "sub" / "config", {}, {"token": "t", "tokenFile": "token"})
    token = tmp_path / "sub" / "token"
    token.write_text("first\n")
    connection = find_connection(path)
    assert connection.read_credentials().authorization == "Bearer first"
    token.write_text("second\n")
    credentials = connection.read_credentials()
    assert credentials.authorization == "Bearer second"
    assert credentials.expires_at is not None
    assert "second" not in repr((connection, credentials))
    for text in ("", None):
        token.unlink() if text is None else token.write_text(text)
        assert connection.read_credentials().authorization == "Bearer t"


def test_first_file_with_a_name_counts_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_kubeconfig(tmp_path / "a" / "config", {"tls-server-name": "a"}, {"token": "a"})
    other = {"insecure-skip-tls-verify": True}
    second = write_kubeconfig(tmp_path / "b" / "config", other, {"token": "b"}, namespace="b")
    (tmp_path / "empty").touch()
    only = {"current-context": "d", "users": [{"name": "d", "user": {"tokenFile": "token"}}]}
    only["contexts"] = [{"name": "d", "context": {"cluster": "c", "user": "d"}}]
    (tmp_path / "b" / "more").write_text(yaml.safe_dump(only))
    (tmp_path / "b" / "token").write_text("d")
    paths = [tmp_path / "absent", tmp_path / "empty", first, second, tmp_path / "b" / "more"]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, ["", *paths])))
    connection = find_connection()
    assert connection.tls_server_name == "a"
    assert (connection.insecure, connection.namespace) == (False, None)
    assert connection.read_credentials().authorization == "Bearer a"
    other_context = find_connection(overrides=Overrides(context="d"))
    assert other_context.read_credentials().authorization == "Bearer d"
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, reversed(paths))))
    assert find_connection().read_credentials().authorization == "Bearer d"


async def test_impersonation_is_sent_with_every_request(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "ann",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"Example.com/Team ä": ["x", "y"]},
    }
    path = write_kubeconfig(tmp_path / "config", {"disable-compression": True}, user)
    connection = find_connection(path)
    assert connection.headers == (
        ("Impersonate-User", "ann"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-Example.com%2FTeam%20%C3%A4", "x"),
        ("Impersonate-Extra-Example.com%2FTeam%20%C3%A4", "y"),
        ("Accept-Encoding", "identity"),
    )
    login = await login_to(connection, Supervisor())
    sent = login.aiohttp_session.headers.items()
    assert {*connection.headers, ("Authorization", "Bearer t")} <= set(sent)
    assert "Bearer t" not in repr(login)
    # after a 401 kopf tries no login again that equals the rejected one
    again = await login_to(connection, Supervisor())
    assert again == login
    for entry in (login, again):
        await entry.aiohttp_session.close()
    overridden = find_connection(path, Overrides(user_fields={"as": "bob", "as-groups": ["c"]}))
    assert ("Impersonate-User", "bob") in overridden.headers
    assert ("Impersonate-Group", "a") not in overridden.headers


@pytest.mark.parametrize(
    ("cluster", "user", "reason"),
    [
        ({"server": ""}, {}, "no server"),
        ({"proxy-url": "socks5://p:1"}, {}, "proxy-url has the scheme socks5"),
        ({"certificate-authority": "nosuch"}, {}, "nosuch"),
        ({"certificate-authority-data": "%"}, {}, "certificate-authority-data is not base64"),
        ({"insecure-skip-tls-verify": "yes"}, {}, "insecure-skip-tls-verify must be true or"),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "a"}, {}, "exclude each"),
        ({"new-field": "x"}, {}, "new-field is not supported"),
        ({}, {"token": "t", "username": "u"}, "token and username exclude"),
        ({}, {"token": 5}, "token must be text"),
        ({}, {"token": "a\nb"}, "no text"),
        ({}, {"tokenFile": "nosuch"}, "nosuch cannot be read"),
        ({}, {"as-groups": ["g"]}, "as-groups needs `as`"),
        ({}, {"as": "a\r\nX: b"}, "printable"),
        ({}, {"as": " ann"}, "without spaces around it"),
        ({}, {"as": "ann", "as-user-extra": {"k": ["v "]}}, "without spaces around it"),
        ({}, {"as": "a", "as-user-extra": {"k": "v"}}, "lists of text"),
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider is not supported"),
        ({}, {"client-certificate": "a"}, "needs a client-key"),
        ({}, {"client-key": "a", "client-key-data": "Yg=="}, "exclude each other"),
        ({}, {"impersonate": "x"}, "impersonate is not supported"),
        ({}, {"exec": {"apiVersion": V1}}, "exec: command"),
        ({}, {"exec": {"apiVersion": V1, "command": "x"}}, "exec: interactiveMode"),
        ({}, {"exec": {"apiVersion": V1 + "alpha1", "command": "x"}}, "exec: apiVersion"),
        ({}, {"exec": {**PLUGIN, "extra": 1}}, "exec: the field extra"),
        ({}, {"exec": {**PLUGIN, "args": "get-token"}}, "exec: args must be a list"),
        ({}, {"exec": {**PLUGIN, "args": [5]}}, "exec: args must be a list of text"),
        ({}, {"exec": {**PLUGIN, "env": {"A": "b"}}}, "exec: env must be a list"),
        ({}, {"exec": {**PLUGIN, "env": ["A=b"]}}, "exec: env must have entries"),
        ({}, {"exec": {**PLUGIN, "env": [{"value": "A"}]}}, "exec: env must have entries"),
        ({}, {"exec": {**PLUGIN, "installHint": 5}}, "exec: installHint must be text"),
        ({}, {"exec": {**PLUGIN, "provideClusterInfo": "yes"}}, "exec: provideClusterInfo must be"),
    ],
)
def test_unusable_field_is_named_in_one_line(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], reason: str
) -> None:
    path = write_kubeconfig(tmp_path / "config", cluster, user)
    with pytest.raises(NoCluster) as refusal:
        read(path)
    assert reason in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "overrides", "reason"),
    [
        ("- a", {}, "no fields"),
        ("{apiVersion: v1, kind: Pod}", {}, "its kind is not Config"),
        ("{apiVersion: v2, kind: Config}", {}, "its apiVersion is not v1"),
        ("{", {}, "no YAML"),
        ("contexts: [{name: a}]", {}, "choose one with --context"),
        ("", {}, "set KUBECONFIG"),
        ("current-context: a", {}, "contexts has no 'a'"),
        ("users: [{name: a}, {name: a}]", {}, "'a' twice"),
        ("users: [a]", {}, "needs a name"),
        ("contexts: [{name: a, context: {cluster: b}}]", {"context": "a"}, "clusters has no 'b'"),
        ("", {"cluster_fields": {"server": SERVER}, "user": "u"}, "users has no 'u'"),
    ],
)
def test_incomplete_file_is_explained(
    tmp_path: Path, text: str, overrides: dict[str, Any], reason: str
) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(NoCluster) as refusal:
        read(tmp_path / "config", **overrides)
    assert reason in str(refusal.value)


def test_flags_precede_the_file(tmp_path: Path) -> None:
    cluster = {"certificate-authority-data": "eA==", "tls-server-name": "a"}
    path = write_kubeconfig(tmp_path / "config", cluster, {"token": "file"})
    flags = {"server": "https://127.0.0.2:9/path/", "insecure-skip-tls-verify": True}
    overrides = Overrides(cluster_fields=flags, user_fields={"token": "flag"})
    connection = find_connection(path, overrides)
    assert (connection.server, connection.tls_server_name) == ("https://127.0.0.2:9/path", None)
    assert (connection.insecure, connection.ca_pem) == (True, None)
    assert connection.read_credentials().authorization == "Bearer flag"


def test_scheme_of_the_server_may_be_upper_case(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", {"server": "HTTPS://127.0.0.1:9"}, {"token": "t"})
    assert find_connection(path).server == "https://127.0.0.1:9"
    assert read(path).authorization == "Bearer t"


def test_plain_http_carries_no_credentials(tmp_path: Path) -> None:
    user = {"token": "secret", "as": "ann"}
    path = write_kubeconfig(tmp_path / "config", {"server": "127.0.0.1:8001"}, user)
    connection = find_connection(path)
    assert connection.server == "http://127.0.0.1:8001"
    assert connection.read_credentials() == Credentials()
    assert connection.headers == (("Impersonate-User", "ann"),)
    basic = {"username": "ann", "password": "ä:b"}
    path = write_kubeconfig(tmp_path / "config", {}, basic)
    sent = base64.b64encode("ann:ä:b".encode()).decode()
    assert read(path).authorization == f"Basic {sent}"


def test_plugin_gets_the_cluster_and_its_variables(tmp_path: Path) -> None:
    plugin = write_plugin(tmp_path / "plugin", "{'token': os.environ['WHO']}")
    plugin |= {
        "command": "absent/../plugin",
        "provideClusterInfo": True,
        "env": [{"name": "WHO", "value": "plugin-token"}, {"name": "EMPTY"}],
    }
    (tmp_path / "ca.pem").write_text("authority")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {"certificate-authority": "ca.pem", "extensions": [extension]}
    path = write_kubeconfig(tmp_path / "config", cluster, {"exec": plugin})
    overrides = Overrides(cluster_fields={"server": SERVER})
    connection = find_connection(path, overrides)
    assert connection.read_credentials().authorization == "Bearer plugin-token"
    (info,) = map(json.loads, (tmp_path / "plugin.log").read_text().splitlines())
    assert (info["apiVersion"], info["kind"]) == (V1, "ExecCredential")
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"] == {
        "server": SERVER,
        "certificate-authority-data": base64.b64encode(b"authority").decode(),
        "config": {"audience": "x"},
    }
    # a static token makes the plugin superfluous
    assert read(path, user_fields={"token": "flag"}).authorization == "Bearer flag"
    assert len((tmp_path / "plugin.log").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("{}", "neither a token"),
        ("{'clientKeyData': 'k'}", "neither a token"),
        ("{'token': 'a\\nb'}", "no text"),
        ("{'token': 5}", "no ExecCredential"),
        ("{'token': 't', 'expirationTimestamp': 'soon'}", "no ExecCredential"),
        ("{'token': 't', 'expirationTimestamp': '2099-01-01T00:00:00'}", "no ExecCredential"),
        ("{'token': 't'}, 'kind': 'Secret'", "no ExecCredential"),
        ("exit(3)", "exit code 3"),
    ],
)
def test_failure_of_a_plugin_is_told(tmp_path: Path, status: str, reason: str) -> None:
    plugin = write_plugin(tmp_path / "plugin", status)
    with pytest.raises(NoCluster, match=reason):
        read(write_kubeconfig(tmp_path / "config", {}, {"exec": plugin}))


def test_plugin_is_found_by_the_path_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = write_plugin(tmp_path / "plugin", "{'token': os.environ['PATH']}")
    monkeypatch.setenv("PATH", str(tmp_path))
    plugin |= {"command": "plugin", "env": [{"name": "PATH", "value": "/nowhere"}]}
    path = write_kubeconfig(tmp_path / "config", {}, {"exec": plugin})
    assert read(path).authorization == "Bearer /nowhere"


def test_plugin_that_cannot_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = {"apiVersion": V1, "interactiveMode": "Never", "installHint": "install it\n"}
    path = write_kubeconfig(tmp_path / "config", {}, {"exec": {**plugin, "command": "no-such"}})
    with pytest.raises(NoCluster, match=r"was not found: install it$"):
        read(path)
    user = {"exec": {**plugin, "command": "true", "interactiveMode": "Always"}}
    with pytest.raises(NoCluster, match="needs a terminal"):
        read(write_kubeconfig(tmp_path / "config", {}, user))
    beta = write_plugin(tmp_path / "plugin", "{'token': 't'}", version=f"{V1}beta1")
    user = {"exec": {**beta, "apiVersion": V1}}
    with pytest.raises(NoCluster, match="v1beta1 instead of"):
        read(write_kubeconfig(tmp_path / "config", {}, user))
    del beta["interactiveMode"]
    assert read(write_kubeconfig(tmp_path / "config", {}, {"exec": beta})).authorization
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    user = {"exec": {**beta, "command": "plugin"}}
    with pytest.raises(NoCluster, match="was not found"):
        read(write_kubeconfig(tmp_path / "config", {}, user))


def test_pod_uses_its_service_account_without_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"token": "pod\n", "namespace": "models", "ca.crt": "authority"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    connection = find_connection()
    assert (connection.server, connection.proxy) == ("https://[fd00::1]:443", None)
    assert (connection.namespace, connection.ca_pem) == ("models", "authority")
    assert connection.read_credentials().authorization == "bearer pod"
    # the kubelet renews the token; a call that is rejected reads it at once
    (tmp_path / "token").write_text("renewed\n")
    credentials = connection.read_credentials()
    assert credentials.authorization == "bearer renewed"
    assert credentials.expires_at is not None
    (tmp_path / "token").unlink()
    with pytest.raises(NoCluster, match="token"):
        connection.read_credentials()
    with pytest.raises(NoCluster, match="no cluster"):
        find_connection()


def test_variable_without_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nosuch"))
    with pytest.raises(NoCluster, match=r"KUBECONFIG names.*nosuch"):
        find_connection()


def test_proxy_of_the_file_precedes_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "proxy:3128")
    server = {"server": "https://cluster.example:6443"}
    path = write_kubeconfig(tmp_path / "config", server, {})
    assert find_connection(path).proxy == "http://proxy:3128"
    monkeypatch.setenv("NO_PROXY", ".example")
    assert find_connection(path).proxy is None
    path = write_kubeconfig(tmp_path / "config", server | {"proxy-url": "http://own:1"}, {})
    assert find_connection(path).proxy == "http://own:1"
    monkeypatch.setenv("HTTPS_PROXY", "socks5://u:secret@p:1")
    monkeypatch.delenv("NO_PROXY")
    with pytest.raises(NoCluster, match="HTTPS_PROXY has the scheme socks5") as refusal:
        find_connection(write_kubeconfig(tmp_path / "config", server, {}))
    assert "secret" not in str(refusal.value)


class ApiServer:
    """An https server that knows one token at a time, and sees the identities of its callers."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.valid = "token-0"
        self.seen: list[tuple[str | None, list[str]]] = []
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(keys.certificate, keys.key)
        self.url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        authorization = request.headers.get("Authorization")
        self.seen.append((authorization, request.headers.getall("Impersonate-Group", [])))
        if authorization != f"Bearer {self.valid}":
            return web.json_response({"message": "Unauthorized"}, status=401)
        if "watch" in request.query:
            event = {"type": "ADDED", "object": {"metadata": {"name": "a"}}}
            return web.Response(text=json.dumps(event) + "\n")
        return web.json_response({"items": []})

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        return runner


async def test_expired_and_rejected_credentials_are_renewed(
    keys: ClusterKeys, tmp_path: Path
) -> None:
    api = ApiServer(keys)
    runner = await api.start()
    past = "time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(time.time() + (60 if runs else -1)))"
    status = f"{{'token': f'token-{{runs}}', 'expirationTimestamp': {past}}}"
    cluster = {"server": api.url, "certificate-authority": "pki/" + keys.certificate.name}
    user = {"exec": write_plugin(tmp_path / "plugin", status), "as": "a", "as-groups": ["x", "y"]}
    path = write_kubeconfig(tmp_path / "config", cluster, user)
    api.valid = "token-1"
    async with KubernetesClient(find_connection(path), "test") as client:
        # the first token has expired before it is used
        await client.call("GET", "/api")
        assert api.seen == [("Bearer token-1", ["x", "y"])]
        api.valid = "token-2"
        results = await asyncio.gather(*(client.call("GET", "/api") for _ in range(5)))
        assert results == [{"items": []}] * 5
        # a watch that begins after the token was revoked
        api.valid = "token-3"
        events = client.watch("tasks", resource_version="1", timeout_seconds=5)
        assert [event.type async for event in events] == ["ADDED"]
        assert len((tmp_path / "plugin.log").read_text().splitlines()) == 4
        api.valid = "none"
        with pytest.raises(KubernetesError) as rejected:
            await client.call("GET", "/api")
        assert rejected.value.status == 401
        (tmp_path / "plugin").unlink()
        with pytest.raises(KubernetesUnavailable):
            await client.call("POST", "/api")
    await runner.cleanup()


@pytest.mark.parametrize("proxy_status", [200, 407, 502])
async def test_cluster_is_reached_by_its_proxy_and_server_name(
    keys: ClusterKeys, tmp_path: Path, proxy_status: int
) -> None:
    api = ApiServer(keys)
    runner = await api.start()
    port = api.url.rpartition(":")[2]
    with ForwardProxy(user="ann:p@ss", status=proxy_status) as proxy:
        credentials = "ann:wrong" if proxy_status == 407 else "ann:p%40ss"
        cluster = {
            "server": f"https://not-in-dns.example:{port}",
            "certificate-authority": "pki/" + keys.certificate.name,
            "tls-server-name": "kubernetes",
            "proxy-url": proxy.url.replace("//", f"//{credentials}@"),
        }
        path = write_kubeconfig(tmp_path / "config", cluster, {"token": "token-0"})
        connection = find_connection(path)
        async with KubernetesClient(connection, "test") as client:
            if proxy_status == 200:
                await client.call("GET", "/api")
                assert api.seen[0][0] == "Bearer token-0"
            else:
                with pytest.raises(KubernetesUnavailable) as refusal:
                    await client.call("POST", "/api")
                assert "ss@" not in f"{refusal.value!r} {refusal.value.__cause__!r}"
        kopf_session = (await login_to(connection, Supervisor())).aiohttp_session
        request = kopf_session.get(f"{connection.server}/api", server_hostname="kubernetes")
        if proxy_status == 200:
            assert (await request).status == 200
        else:
            with pytest.raises(aiohttp.ClientConnectorError) as failure:
                await request
            assert credentials.split(":")[1] not in f"{failure.value!r} {failure.value}"
        await kopf_session.close()
        assert proxy.seen == [f"not-in-dns.example:{port}"] * 2
        cluster["tls-server-name"] = "other.example"
        wrong = find_connection(write_kubeconfig(path, cluster, {"token": "token-0"}))
        async with KubernetesClient(wrong, "test") as client:
            with pytest.raises(KubernetesUnavailable):
                await client.call("GET", "/api")
    await runner.cleanup()
