"""Credentials of a kubeconfig: the server that it names sees them."""

import asyncio
import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway_cli.local.certificates import ClusterKeys, write_cluster_keys
from gateway_core.kube.connection import load_kubeconfig


@pytest.fixture
def keys(tmp_path: Path) -> ClusterKeys:
    return write_cluster_keys(tmp_path / "pki")


def write_kubeconfig(
    path: Path, server: str, cluster: dict[str, Any], user: dict[str, Any]
) -> Path:
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("form", ["files", "data"])
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
        {name: f"pki/{path.name}" for name, path in files.items()}
        if form == "files"
        else {f"{n}-data": base64.b64encode(p.read_bytes()).decode() for n, p in files.items()}
    )
    cluster = {name: value for name, value in fields.items() if name.startswith("certificate")}
    user = {name: value for name, value in fields.items() if name.startswith("client")}
    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        path = write_kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}", cluster, user)
        connection = load_kubeconfig(path)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=connection.build_ssl()
        )
        await reader.read()
        writer.close()
    assert ("commonName", "model-gateway-local") in seen[0]["subject"][0]


def test_token_is_read_anew_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    user = {"tokenFile": str(tmp_path / "token")}
    connection = load_kubeconfig(write_kubeconfig(tmp_path / "config", "http://x", {}, user))
    assert connection.read_token() == "first"
    (tmp_path / "token").write_text("second\n")
    assert connection.read_token() == "second"
