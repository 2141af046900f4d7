"""Connection to the Kubernetes API: address and credentials, in-cluster or by a kubeconfig."""

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

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
    raise NoCluster(
        "no cluster: set KUBECONFIG (a local run writes it to .local/gateway.env), or run in a pod"
        " with a service account"
    )


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
