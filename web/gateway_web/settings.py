"""What a deployment may choose for every HTTP process.

Read once from the environment by `__main__`, then passed down. Every variable is the field's name
in capitals after `GATEWAY_`.
"""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints
from pydantic_settings import NoDecode

from gateway_core.api.account import ACCOUNT_BYTES, PAID_RPM, AccountDefaults, StorageBytes
from gateway_core.api.limits import RequestsPerMinute
from gateway_core.redis.options import RedisSettings
from gateway_core.storage.limits import DownloadBounds
from gateway_core.storage.objects import StoreSettings
from gateway_web.http1.connections import ConnectionBounds


def check_origin(value: str) -> str:
    """Return a bare origin, since issuer and resource are compared as text (contract §10.1).

    Raises ValueError.
    """
    parts = urlsplit(value)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or value != f"{parts.scheme}://{parts.netloc}"
        or value != value.lower()
        or "@" in parts.netloc
        or not value.isascii()
    ):
        raise ValueError("must be an origin in lower case: scheme, host and port, nothing else")
    return value


def split_commas(value: object) -> object:
    """Return the parts of a text between its commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(split_commas)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Origin = Annotated[str, AfterValidator(check_origin)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")]


class ProcessSettings(StoreSettings):
    """Settings of every HTTP process."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are logged."""
    log_format: Literal["console", "json"] = "console"
    """Lines for people, or a JSON object each."""
    access_log: Literal["all", "notable", "off"] = "all"
    """Requests that leave a line in the log; `notable` leaves out the GETs that went well."""
    secrets_dir: Path
    """Folder of the files `id-key`, `media-key` and `pepper-1`, `pepper-2`, …"""
    linger_seconds: Annotated[float, Field(ge=0, le=600)] = 0.0
    """How long the process goes on serving after SIGTERM, until load balancers route around it."""
    health_host: str = "127.0.0.1"
    """Address that probes and metrics are served on; empty for all of both families."""
    health_port: Port
    """Where probes and metrics are served: a port that clients do not reach."""
    metrics_enabled: bool = True
    """Whether `/metrics` is served."""
    max_connections: Count = 2000
    """Connections on the port that clients reach."""
    max_connections_per_address: Count = 1000
    """Of one address, of IPv6 one /64; behind a trusted proxy, requests at once of one client."""
    trusted_proxies: Networks = ()
    """Networks of proxies whose `X-Forwarded-For` or `Forwarded` names the client."""
    max_headers: Count = 100
    """Headers of one request."""
    max_head_bytes: Count = 32 * 1024
    """Bytes of the request line and the headers."""
    head_seconds: Seconds = 10.0
    """How long a client may take to send a complete head."""
    idle_seconds: Seconds = 60.0
    """How long a connection may stay open without a request."""
    stall_seconds: Seconds = 60.0
    """How long a client may take none of the bytes that are ready for it."""
    max_downloads: Count = 560
    """Downloads at once; each takes at most 256 KiB of memory."""
    max_downloads_per_address: Count = 512
    """Of one address, at the API of one account, while others have none; fewer as others have."""
    max_downloads_per_link: Count = 512
    """Of one link or file, likewise."""

    @property
    def connection_bounds(self) -> ConnectionBounds:
        """The bounds of client connections."""
        return ConnectionBounds(
            connections=self.max_connections,
            per_address=self.max_connections_per_address,
            headers=self.max_headers,
            head_bytes=self.max_head_bytes,
            head_seconds=self.head_seconds,
            idle_seconds=self.idle_seconds,
            stall_seconds=self.stall_seconds,
            trusted_proxies=self.trusted_proxies,
        )

    @property
    def download_bounds(self) -> DownloadBounds:
        """The bounds of downloads."""
        return DownloadBounds(
            downloads=self.max_downloads,
            per_address=self.max_downloads_per_address,
            per_link=self.max_downloads_per_link,
        )


class ServiceSettings(ProcessSettings, RedisSettings):
    """Settings of a process that admits calls."""

    namespace: str = "model-gateway"
    """Namespace of the custom resources and the Secrets."""
    base_url: Origin = "http://127.0.0.1:8080"
    """Address of the API as clients know it: the issuer of access tokens."""
    mcp_url: Origin = "http://127.0.0.1:8087"
    """Address of the MCP process as clients know it: the audience of access tokens (§10.1)."""
    oauth_registration: bool = True
    """Whether clients may register themselves (§10.5)."""
    oauth_documents: bool = True
    """Whether the URL of a metadata document is taken as a client's id (§10.5)."""
    callback_allowed_cidrs: Networks = ()
    """Private networks that receivers of callbacks may be in (§11.6)."""
    denied_cidrs: Networks = ()
    """Networks that no such address may be in, whether public or allowed."""
    paid_rpm: RequestsPerMinute = PAID_RPM
    """Paid calls a minute of an account whose object does not say."""
    account_bytes: StorageBytes = ACCOUNT_BYTES
    """Bytes of files of such an account."""
    maintenance: bool = False
    """Whether requests that create are refused with 503."""
    client_traces: Literal["link", "parent", "ignore"] = "link"
    """What a client's `traceparent` is taken for, where tracing is on."""
    failpoints: str = ""
    """Steps at which the process kills itself, for tests (`failpoints`)."""

    @property
    def account_defaults(self) -> AccountDefaults:
        """The limits of accounts that do not set their own."""
        return AccountDefaults(self.paid_rpm, self.account_bytes)
