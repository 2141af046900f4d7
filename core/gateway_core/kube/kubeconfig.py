"""Kubeconfig files with kubectl's meaning: the same cluster and identity, or a refusal.

Files are merged and checked here as kubectl does it; the chosen context is loaded by
`kubernetes.config`. That package takes the last file's current context, joins paths of users to
the folder of the cluster's file, and ignores `as`, `proxy-url` and errors of plugins; see
docs/decisions/0075-kubeconfigs.md.
"""

import base64
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway_core.kube.clock import CLOCK
from gateway_core.kube.connection import (
    FILE_SECONDS,
    Connection,
    Credentials,
    NoCluster,
    with_environment_proxy,
)
from gateway_core.kube.credential_plugins import CredentialPlugin
from gateway_core.kube.kubeconfig_files import Fields, Files, read_files
from gateway_core.proxies import InvalidProxy, parse_proxy

_NAME_CHARACTERS = "!#$&'*+^`|"
"""Characters of a header's name that `quote` would encode."""
_MISSING = (
    "no cluster: set KUBECONFIG (a local run writes it to .local/gateway.env), or run in a pod"
    " with a service account"
)


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values of the command line, which take precedence over those of the files.

    `cluster_fields` and `user_fields` are fields of a kubeconfig's cluster and user.
    """

    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    cluster_fields: Mapping[str, Any] = field(default_factory=dict)
    user_fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def are_set(self) -> bool:
        """True if another cluster or identity than the pod's own is chosen."""
        names = (self.context, self.cluster, self.user)
        return any(names) or bool(self.cluster_fields or self.user_fields)


def find_connection(
    kubeconfig: Path | None = None, overrides: Overrides | None = None
) -> Connection:
    """Return the cluster of `kubeconfig`, else of $KUBECONFIG, ~/.kube/config or this pod.

    Raises:
        NoCluster: there is none, or its configuration cannot be used.
    """
    overrides = overrides or Overrides()
    if kubeconfig is not None:
        return _connect(read_files([kubeconfig], must_exist=True), overrides)
    named = os.environ.get("KUBECONFIG")
    paths = [Path(path) for path in (named or "").split(os.pathsep) if path]
    files = read_files(paths if named else [Path.home() / ".kube" / "config"])
    if files.is_empty and "KUBERNETES_SERVICE_HOST" in os.environ and not overrides.are_set:
        return _connect_pod()
    if files.is_empty and named and not overrides.are_set:
        raise NoCluster(f"no cluster: no file that KUBECONFIG names has one ({named})")
    return _connect(files, overrides)


def _connect_pod() -> Connection:
    """Return the pod's own cluster, which is reached without a proxy. NoCluster."""
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, incluster_config

    def load() -> Any:
        configuration = Configuration()
        try:
            incluster_config.load_incluster_config(configuration)
        except (ConfigException, OSError) as error:
            raise NoCluster(f"{_MISSING}: {error}") from error
        return configuration

    def read() -> Credentials:
        # the package's own refresh cannot be forced after a 401
        token = load().api_key["BearerToken"].strip()
        return Credentials(token, expires_at=CLOCK.time() + FILE_SECONDS)

    configuration = load()
    folder = Path(incluster_config.SERVICE_TOKEN_FILENAME).parent
    return Connection(
        server=configuration.host,
        namespace=_read_text(str(folder / "namespace"), "service account").strip(),
        ca_pem=_read_text(configuration.ssl_ca_cert, "service account"),
        read_credentials=read,
    )


def _connect(files: Files, overrides: Overrides) -> Connection:
    """Return the cluster and identity that files and command line name together."""
    context_name = overrides.context or files.current
    if not context_name and not overrides.cluster and "server" not in overrides.cluster_fields:
        if files.is_empty:
            raise NoCluster(_MISSING)
        raise NoCluster(f"{files.source} has no current-context: choose one with --context")
    context = files.take("contexts", context_name)
    cluster_name = overrides.cluster or context.get("cluster")
    user_name = overrides.user or context.get("user")
    cluster = _override_cluster(files.take("clusters", cluster_name), overrides.cluster_fields)
    user = _override_user(files.take("users", user_name), overrides.user_fields)
    cluster_place = f"{files.source}: clusters {cluster_name!r}"
    user_place = f"{files.source}: users {user_name!r}"
    _check_cluster(cluster, cluster_place)
    _check_user(user, user_place)
    cluster["server"] = _complete_server(cluster, user)
    # as kubectl: plain http carries no credentials
    identity = user if cluster["server"].startswith("https") else {}
    source = CredentialSource(cluster, identity, user_place)
    configuration, trusted, _ = _load(cluster, {}, cluster_place)
    connection = Connection(
        server=configuration.host,
        namespace=context.get("namespace"),
        ca_pem=trusted,
        insecure=not configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
        headers=_list_headers(cluster, user, user_place),
        read_credentials=source.read,
    )
    if "proxy-url" not in cluster:
        return with_environment_proxy(connection)
    try:
        return replace(connection, proxy=parse_proxy(cluster["proxy-url"]))
    except InvalidProxy as error:
        raise NoCluster(f"{cluster_place}: proxy-url {error}") from error


def _override_cluster(cluster: Fields, fields: Mapping[str, Any]) -> Fields:
    """Return the cluster with fields of the command line in place of its own."""
    dropped: set[str] = set()
    if "server" in fields:
        dropped.add("tls-server-name")
    if fields.get("insecure-skip-tls-verify"):
        dropped |= {"certificate-authority", "certificate-authority-data"}
    if "certificate-authority" in fields:
        dropped |= {"certificate-authority-data", "insecure-skip-tls-verify"}
    return {name: cluster[name] for name in cluster if name not in dropped} | dict(fields)


def _override_user(user: Fields, fields: Mapping[str, Any]) -> Fields:
    """Return the user with fields of the command line in place of its own."""
    dropped = {f"{name}-data" for name in ("client-certificate", "client-key") if name in fields}
    return {name: user[name] for name in user if name not in dropped} | dict(fields)


def _check_cluster(cluster: Fields, place: str) -> None:
    if not cluster.get("server"):
        raise NoCluster(f"{place}: it has no server")
    _check_base64(cluster, place)
    _refuse_both(cluster, "certificate-authority", "certificate-authority-data", place)
    for name in ("certificate-authority", "certificate-authority-data"):
        _refuse_both(cluster, name, "insecure-skip-tls-verify", place)


def _check_user(user: Fields, place: str) -> None:
    _check_base64(user, place)
    for token in ("token", "tokenFile"):
        for name in ("username", "password"):
            _refuse_both(user, token, name, place)
    for name in ("client-certificate", "client-key"):
        _refuse_both(user, name, f"{name}-data", place)
    has_certificate = "client-certificate" in user or "client-certificate-data" in user
    if has_certificate and not ("client-key" in user or "client-key-data" in user):
        raise NoCluster(f"{place}: client-certificate needs a client-key")
    impersonated = [name for name in ("as-uid", "as-groups", "as-user-extra") if name in user]
    if impersonated and "as" not in user:
        raise NoCluster(f"{place}: {impersonated[0]} needs `as`, the user to impersonate")
    if "exec" in user:
        CredentialPlugin.check(user["exec"], place)


def _check_base64(fields: Fields, place: str) -> None:
    for name, value in fields.items():
        if name.endswith("-data"):
            try:
                base64.b64decode("".join(value.split()), validate=True)
            except ValueError as error:
                raise NoCluster(f"{place}: {name} is not base64") from error


def _refuse_both(fields: Fields, first: str, second: str, place: str) -> None:
    if fields.get(first) and fields.get(second):
        raise NoCluster(f"{place}: {first} and {second} exclude each other")


def _complete_server(cluster: Fields, user: Fields) -> str:
    """Return the server's URL; one without a scheme is https if a field concerns TLS."""
    server = str(cluster["server"])
    scheme, separator, rest = server.partition("://")
    if separator:
        return f"{scheme.lower()}://{rest}"
    concerns = ("certificate-authority", "insecure-skip-tls-verify", "client-certificate")
    is_tls = any(name.startswith(concerns) for name in (*cluster, *user))
    return f"{'https' if is_tls else 'http'}://{server}"


def _list_headers(cluster: Fields, user: Fields, place: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of impersonation and compression."""
    headers = [("Impersonate-User", user["as"])] if "as" in user else []
    if "as-uid" in user:
        headers.append(("Impersonate-Uid", user["as-uid"]))
    headers += [("Impersonate-Group", group) for group in user.get("as-groups", ())]
    for key, values in user.get("as-user-extra", {}).items():
        name = f"Impersonate-Extra-{quote(str(key), safe=_NAME_CHARACTERS)}"
        if not isinstance(values, list):
            raise NoCluster(f"{place}: as-user-extra must have lists of text")
        headers += [(name, value) for value in values]
    # HTTP/1.1 drops spaces around a value, and another name is another identity
    if not all(isinstance(v, str) and v.isprintable() and v == v.strip() for _, v in headers):
        raise NoCluster(
            f"{place}: as, as-uid, as-groups and as-user-extra must have printable text"
            " without spaces around it"
        )
    if cluster.get("disable-compression"):
        headers.append(("Accept-Encoding", "identity"))
    return tuple(headers)


@dataclass(frozen=True, slots=True)
class CredentialSource:
    """Credentials of a kubeconfig's user, whose fields are checked."""

    cluster: Fields
    user: Fields = field(repr=False)
    place: str

    def read(self) -> Credentials:
        """Read them from the fields, from their files, or from the plugin. NoCluster, OSError."""
        user = dict(self.user)
        plugin = user.pop("exec", None)
        path = user.pop("tokenFile", None)
        if path:
            user["token"] = self._read_token(path) or user.get("token")
        configuration, _, certificate = _load(self.cluster, user, self.place)
        authorization = next(iter(configuration.api_key.values()), None)
        if "username" in user or "password" in user:
            # the package encodes them as Latin-1, kubectl as UTF-8
            pair = f"{user.get('username', '')}:{user.get('password', '')}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        if plugin is not None and authorization is None:
            return CredentialPlugin(plugin, self.cluster, self.place).run(certificate)
        if not (authorization or "").isprintable():
            raise NoCluster(f"{self.place}: the token or password has a character that is no text")
        is_file = path or "client-certificate" in user or "client-key" in user
        expires_at = CLOCK.time() + FILE_SECONDS if is_file else None
        return Credentials(authorization, *certificate, expires_at=expires_at)

    def _read_token(self, path: str) -> str:
        """Return the token in a file.

        Return an empty text where the file is missing and the user has another token.
        """
        try:
            return _read_text(path, self.place).strip()
        except NoCluster:
            if "token" in self.user:
                return ""
            raise


def _load(
    cluster: Fields, user: Fields, place: str
) -> tuple[Any, str | None, tuple[str | None, str | None]]:
    """Load a cluster and a user by `kubernetes.config`. NoCluster.

    Return the configuration, and the PEM texts of the trusted certificates and of the client's
    certificate with its key.
    """
    # the import costs 70 MB and 0.4 s; a process in a pod does not need it
    from kubernetes import config as kubernetes_config
    from kubernetes.client import Configuration

    document = {
        "current-context": "chosen",
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "clusters": [{"name": "chosen", "cluster": cluster}],
        "users": [{"name": "chosen", "user": user}],
    }
    configuration = Configuration()
    # the package writes embedded certificates and keys to files
    with tempfile.TemporaryDirectory() as folder:
        try:
            kubernetes_config.load_kube_config_from_dict(
                document, client_configuration=configuration, temp_file_path=folder
            )
        except (kubernetes_config.ConfigException, ValueError) as error:
            raise NoCluster(f"{place}: {error}") from error
        paths = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        trusted, *certificate = (_read_text(path, place) if path else None for path in paths)
    return configuration, trusted, (certificate[0], certificate[1])


def _read_text(path: str, place: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise NoCluster(f"{place}: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise NoCluster(f"{place}: {path} is no text") from error
