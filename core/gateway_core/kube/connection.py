"""Connection to the Kubernetes API: address, trust and credentials that may expire."""

import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gateway_core.kube.clock import CLOCK
from gateway_core.proxies import InvalidProxy, find_proxy

FILE_SECONDS = 60.0
"""Credentials of files are read again after this time, since tools and the kubelet renew them."""


class NoCluster(Exception):
    """No configuration names a cluster, or it is unusable; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An identity at the API server, until `expires_at` (Unix time) if that is not None."""

    authorization: str | None = field(default=None, repr=False)
    """Value of the Authorization header."""
    certificate_pem: str | None = field(default=None, repr=False)
    private_key_pem: str | None = field(default=None, repr=False)
    expires_at: float | None = field(default=None, compare=False)

    @property
    def is_expired(self) -> bool:
        """True if they must be read again before the next call."""
        return self.expires_at is not None and CLOCK.time() >= self.expires_at


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server with the way to reach it and an identity there."""

    server: str
    namespace: str | None = None
    ca_pem: str | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    """The name that the server's certificate must have, instead of the URL's host."""
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of every request, such as those of impersonation; names may repeat."""
    read_credentials: Callable[[], Credentials] = Credentials
    """Reads the credentials anew: a file, or the output of a plugin. May block. NoCluster."""

    def build_ssl(self, credentials: Credentials) -> ssl.SSLContext | None:
        """Return a context that trusts the cluster's authority and has the client certificate."""
        if not self.server.startswith("https"):
            return None
        context = _Context(ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = self.tls_server_name
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_pem:
            context.load_verify_locations(cadata=self.ca_pem)
        else:
            context.load_default_certs()
        if credentials.certificate_pem and credentials.private_key_pem:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(credentials.certificate_pem + "\n" + credentials.private_key_pem)
                file.flush()
                context.load_cert_chain(file.name)
        return context


class _Context(ssl.SSLContext):
    """A context with a server name of its own.

    Neither aiohttp's sessions nor kopf have a setting for it.
    """

    server_name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Make a TLS connection to `server_name`, if that is set."""
        name = self.server_name or server_hostname
        return super().wrap_bio(incoming, outgoing, server_side, name, session)


def with_environment_proxy(connection: Connection) -> Connection:
    """Return the connection with the proxy of the environment for its server. NoCluster."""
    try:
        return replace(connection, proxy=find_proxy(connection.server))
    except InvalidProxy as error:
        raise NoCluster(f"the environment's {error}") from error
