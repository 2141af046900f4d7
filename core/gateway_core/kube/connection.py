"""Connection to the Kubernetes API: in-cluster or by a kubeconfig; its errors and page sizes."""

import base64
import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml

from gateway_core.kube.records import (
    FIRST_PAGE,
    PAGE,
    AlreadyExists,
    Missing,
    NotPermitted,
    Outdated,
    RecordError,
    RecordFull,
    RecordOutcomeUnknown,
    RecordUnavailable,
    Refused,
    WatchExpired,
)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCluster(Exception):
    """No configuration names a cluster, or it is unusable; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server and the credentials for it. Paths and PEM texts are None where unused."""

    server: str
    namespace: str | None = None
    ca_pem: str | None = None
    insecure: bool = False
    certificate_pem: str | None = None
    private_key_pem: str | None = None
    static_token: str | None = None
    token_file: Path | None = None

    def read_token(self) -> str | None:
        """The bearer token; a mounted one is read anew, since the kubelet renews it."""
        if self.token_file is not None:
            return self.token_file.read_text().strip()
        return self.static_token

    def build_ssl(self) -> ssl.SSLContext | None:
        """A context that trusts the cluster's authority and presents the client certificate."""
        if not self.server.startswith("https"):
            return None
        context = ssl.create_default_context(cadata=self.ca_pem)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_pem and self.private_key_pem:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.certificate_pem + "\n" + self.private_key_pem)
                file.flush()
                context.load_cert_chain(file.name)
        return context


def find_connection(kubeconfig: Path | None = None, context: str | None = None) -> Connection:
    """The cluster of `kubeconfig`, of $KUBECONFIG, the one this pod runs in, or ~/.kube/config.

    `context` is a name in the file; None means its current one.

    Raises:
        NoCluster: there is none, or its configuration cannot be used.
    """
    named = os.environ.get("KUBECONFIG")
    if kubeconfig is not None or named:
        path = kubeconfig or Path(str(named).split(os.pathsep)[0])
        return load_kubeconfig(path, context)
    if context is None and (SERVICE_ACCOUNT / "token").exists():
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        return Connection(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
            ca_pem=(SERVICE_ACCOUNT / "ca.crt").read_text(),
            token_file=SERVICE_ACCOUNT / "token",
        )
    default = Path.home() / ".kube" / "config"
    if default.exists():
        return load_kubeconfig(default, context)
    raise NoCluster("no cluster: set KUBECONFIG, or run in a pod with a service account")


def load_kubeconfig(path: Path, context_name: str | None = None) -> Connection:
    """A context of a kubeconfig file, its current one by default.

    Raises:
        NoCluster: it has no such context, or cannot be used.
    """
    try:
        config: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
        wanted = context_name or config.get("current-context")
        context = _named(config, "contexts", wanted, "context")
        cluster = _named(config, "clusters", context["cluster"], "cluster")
        user = _named(config, "users", context["user"], "user")
        server = str(cluster["server"]).rstrip("/")
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise NoCluster(f"kubeconfig {path} cannot be used: {error!r}") from error
    token = user.get("token")
    if "exec" in user or "auth-provider" in user:
        token = _run_credential_plugin(path, context_name)
    return Connection(
        server=server,
        namespace=context.get("namespace"),
        ca_pem=_pem(cluster, "certificate-authority", path),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        certificate_pem=_pem(user, "client-certificate", path),
        private_key_pem=_pem(user, "client-key", path),
        static_token=token,
        token_file=Path(user["tokenFile"]) if "tokenFile" in user else None,
    )


def _named(config: dict[str, Any], section: str, name: Any, field: str) -> dict[str, Any]:
    for entry in config.get(section) or ():
        if entry["name"] == name:
            found: dict[str, Any] = entry[field]
            return found
    raise KeyError(f"{section} has no {name!r}")


def _pem(section: dict[str, Any], field: str, path: Path) -> str | None:
    if f"{field}-data" in section:
        return base64.b64decode(section[f"{field}-data"]).decode()
    if field in section:
        return Path(path.parent, section[field]).read_text()
    return None


def _run_credential_plugin(path: Path, context: str | None) -> str | None:
    from kubernetes import config as kubernetes_config
    from kubernetes.client import Configuration

    configuration = Configuration()
    try:
        kubernetes_config.load_kube_config(
            str(path), context=context, client_configuration=configuration
        )
    except kubernetes_config.ConfigException as error:
        raise NoCluster(f"the credential plugin of kubeconfig {path} failed: {error}") from error
    header = configuration.get_api_key_with_prefix("authorization")
    return str(header).removeprefix("Bearer ") if header else None


_NO_SPACE = "database space exceeded"
"""In etcd's refusal of every write beyond its quota; it has written nothing then."""


async def read_body(response: aiohttp.ClientResponse, most: int | None) -> bytes:
    """All of it. PageTooLong beyond `most` bytes."""
    if most is None:
        return await response.read()
    chunks, size = list[bytes](), 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > most:
            # the rest is not wanted
            response.close()
            raise PageTooLong
        chunks.append(chunk)
    return b"".join(chunks)


async def read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; the reader's own line limit is below the size of a large object."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def raise_for(status: int, raw: bytes, *, writes: bool) -> None:
    """Raises the port's error for an answer other than 2xx; `writes` where it was to a write."""
    try:
        parsed = orjson.loads(raw)
        parsed = parsed.get("object", parsed)
        reason, message = parsed.get("reason", ""), str(parsed.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        reason, message = "", raw[:200].decode(errors="replace")
    kind: type[RecordError]
    match status:
        case 404:
            kind = Missing
        case 409:
            kind = AlreadyExists if reason == "AlreadyExists" else Outdated
        case 410:
            kind = WatchExpired
        case 403:
            kind = NotPermitted
        case 400 | 405 | 413 | 415 | 422:
            kind = Refused
        case 401 | 429:
            kind = RecordUnavailable
        case 500 if _NO_SPACE in message:
            kind = RecordFull
        case _:
            kind = RecordOutcomeUnknown if writes else RecordUnavailable
    raise kind(f"{status} {reason}: {message}"[:1000], status=status, message=message)


PAGE_BYTES = 4_000_000
"""Bytes that a page is to have."""
MOST_PAGE_BYTES = 2 * PAGE_BYTES
"""Bytes read of a page of several objects; a single one, which etcd bounds, is read whole."""
_SHRINK = 4


class PageTooLong(Exception):
    """A page has more bytes than it may have."""


class PageSizes:
    """What is known of the kinds of one client; of whole objects and of their metadata apart."""

    def __init__(self) -> None:
        self._learned: dict[tuple[str, bool], int] = {}

    def choose(self, plural: str, *, metadata_only: bool, limit: int | None = None) -> int:
        """Objects in the next page of a kind; at most `limit`."""
        learned = self._learned.get((plural, metadata_only), FIRST_PAGE)
        return learned if limit is None else min(limit, learned)

    def note(self, plural: str, objects: int, size: int, *, metadata_only: bool) -> None:
        """Learns of a page of `objects`, in `size` bytes."""
        if objects:
            fitting = PAGE_BYTES * objects // size
            self._learned[plural, metadata_only] = max(1, min(PAGE, fitting))

    def shrink(self, plural: str, wanted: int, *, metadata_only: bool) -> int:
        """A page of `wanted` objects was too long: objects in the one that is asked for instead."""
        fewer = self._learned[plural, metadata_only] = max(1, wanted // _SHRINK)
        return fewer
