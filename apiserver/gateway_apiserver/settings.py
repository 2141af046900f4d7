"""What a deployment may choose for the API process and the media host.

Read once from the environment by `__main__`, then passed down. Every variable is the field's name
in capitals after `GATEWAY_`.
"""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints
from pydantic_settings import NoDecode

from gateway_apiserver.middleware.connections import ConnectionBounds
from gateway_core.accounts.sso import SignOnPolicy
from gateway_core.api.account import (
    ACCOUNT_BYTES,
    PAID_RPM,
    AccountDefaults,
    StorageBytes,
)
from gateway_core.api.ids import SHARDS
from gateway_core.api.limits import RequestsPerMinute
from gateway_core.storage.limits import DownloadBounds
from gateway_core.storage.objects import StoreSettings


def check_origin(value: str) -> str:
    """A bare origin, since issuer and resource are compared as text (contract §10.1).

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


def _split_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_split_commas)
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Origin = Annotated[str, AfterValidator(check_origin)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")]


class ProcessSettings(StoreSettings):
    """What both processes need."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    access_log: Literal["all", "notable", "off"] = "all"
    """Requests that leave a line in the log; `notable` leaves out the GETs that went well."""
    secrets_dir: Path
    """Folder of the files `id-key`, `media-key` and `pepper-1`, `pepper-2`, …"""
    linger_seconds: Annotated[float, Field(ge=0, le=600)] = 0.0
    """How long the process goes on serving after SIGTERM, until load balancers route around it."""
    health_host: str = "127.0.0.1"
    health_port: Port
    """Where probes and metrics are served: a port that clients do not reach."""
    metrics_enabled: bool = True
    max_connections: Count = 2000
    """Connections on the port that clients reach."""
    max_connections_per_address: Count = 1000
    """Of one address, of IPv6 one /64; behind a trusted proxy, requests at once of one client."""
    trusted_proxies: Networks = ()
    """Networks of proxies whose `X-Forwarded-For` or `Forwarded` names the client."""
    max_headers: Count = 100
    max_head_bytes: Count = 32 * 1024
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


class ApiSettings(ProcessSettings):
    """The API process."""

    health_port: Port = 8085
    namespace: str = "model-gateway"
    api_host: str = "127.0.0.1"
    api_port: Port = 8080
    base_url: Origin = "http://127.0.0.1:8080"
    mcp_url: Origin = "http://127.0.0.1:8087"
    """Address of the MCP process as clients know it: the audience of access tokens (§10.1)."""
    oauth_access_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600
    oauth_refresh_idle_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 2_592_000
    oauth_family_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 15_552_000
    """Lives of access tokens, of unused refresh tokens, and of grants (§10.7)."""
    oauth_registration: bool = True
    """Whether clients may register themselves (§10.5)."""
    oauth_registrations_per_minute: Count = 20
    """Registrations of one address in a minute."""
    oauth_unused_clients: Count = 1000
    """Registered clients that no user has given access to, at most."""
    oidc_issuer: str = ""
    """Issuer of the OpenID Connect provider for single sign-on; empty for none. The client's secret
    is the file `oidc-client-secret` beside the other secrets."""
    oidc_client_id: str = ""
    oidc_title: Annotated[str, Field(max_length=64)] = "single sign-on"
    """What the button calls the provider."""
    oidc_users: Literal["match", "create"] = "match"
    """Whether a person without a GatewayUser gets one."""
    oidc_account: str = ""
    oidc_role: Literal["member", "viewer"] = "member"
    """The account of such a user, none if empty, and the role there."""
    oidc_domains: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)] = ()
    """Domains of emails that may come in by single sign-on; empty for all."""
    sign_ins_per_minute: Count = 60
    """Attempts to sign in from one address in a minute."""
    oauth_documents: bool = True
    """Whether the URL of a metadata document is taken as a client's id (§10.5)."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    media_url: str = "http://127.0.0.1:8081"
    """The media host's address as clients know it, where temporary files are read and put."""
    temporary_storage_bytes: Annotated[int, Field(ge=0, le=2**53 - 1)] = 1_073_741_824
    """Bytes of temporary files that an account may have at once."""
    files_per_account: Annotated[int, Field(ge=0, le=10_000_000)] = 100_000
    """How many files and pending Uploads an account may have at once, of any size."""
    temporary_files_per_account: Annotated[int, Field(ge=0, le=10_000_000)] = 10_000
    callback_allowed_cidrs: Networks = ()
    """Private networks that receivers of callbacks may be in (§11.6)."""
    fetch_allowed_cidrs: Networks = ()
    """Private networks that the sources of temporary files may be in (§11.6)."""
    denied_cidrs: Networks = ()
    """Networks that neither may be in, whether public or allowed."""
    paid_rpm: RequestsPerMinute = PAID_RPM
    """Paid calls a minute of an account whose object does not say."""
    account_bytes: StorageBytes = ACCOUNT_BYTES
    """Bytes of files of such an account."""
    maintenance: bool = False
    """Whether requests that create are refused with 503."""
    keys_per_account: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Keys that are not revoked which Platform Management makes for one account, at most."""
    guardrails_per_account: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Guardrails that it makes for one account, at most."""
    management_calls_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 600
    """Calls of Platform Management in any trailing 60 s, by account (§12.1a)."""
    file_creates_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 600
    """Creates of Files, Uploads and temporary files together, likewise."""
    open_batches_per_account: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Batches that have not ended which one account may have, at most."""
    pricing_anonymous: bool = True
    """Whether prices are shown without a credential (§2.6)."""
    task_id_header: HeaderName = "X-Task-Id"
    llm_headers: Literal["off", "public", "routes"] = "public"
    """Which `x-gateway-*` headers responses of LLM calls have."""
    llm_cache_bytes: Annotated[int, Field(ge=0, le=2**40)] = 64 * 1024 * 1024
    """Bytes of kept answers of language models in Redis; 0 keeps none."""
    llm_cache_account_bytes: Annotated[int, Field(ge=0, le=2**40)] = 8 * 1024 * 1024
    """The same for one account."""
    moderation_default_model: Annotated[str, Field(max_length=253)] = ""
    """What judges a moderation that names no model; empty: it has to name one (§6)."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """API processes on one port. Every bound of a process holds for each of them."""
    replicas: Annotated[int, Field(ge=1, le=10000)] = 1
    """Pods of the API, each with so many workers. Their processes share the accounts' rates, for
    the time without a counter store (§12.5), and what providers take at a time."""
    client_traces: Literal["link", "parent", "ignore"] = "link"
    """What a client's `traceparent` is taken for, where tracing is on."""
    operator_url: str = ""
    """Where notices of providers go, `{ordinal}` being the replica's number; empty for nowhere."""
    operator_replicas: Annotated[int, Field(ge=1, le=SHARDS)] = 1
    failpoints: str = ""
    """Steps at which the process kills itself, for tests (`failpoints`)."""

    @property
    def processes(self) -> int:
        """API processes in all pods."""
        return self.replicas * self.workers

    @property
    def sign_on_policy(self) -> SignOnPolicy:
        """Who may come in by single sign-on."""
        domains = tuple(domain.lower() for domain in self.oidc_domains)
        return SignOnPolicy(self.oidc_users, self.oidc_account, self.oidc_role, domains)

    @property
    def account_defaults(self) -> AccountDefaults:
        """The limits of accounts that do not set their own."""
        return AccountDefaults(self.paid_rpm, self.account_bytes)


class MediaSettings(ProcessSettings):
    """The media host."""

    health_port: Port = 8086
    max_connections: Count = 1000
    max_connections_per_address: Count = 800
    media_host: str = "127.0.0.1"
    media_port: Port = 8081
