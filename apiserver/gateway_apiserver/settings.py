"""What a deployment may choose for the API process and the media host.

Read once from the environment by `__main__`, then passed down. Every variable is the field's name
in capitals after `GATEWAY_`.
"""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints
from pydantic_settings import NoDecode

from gateway_core.contract.names import SHARDS
from gateway_core.ports.stores import StoreSettings


def _split_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_split_commas)
]
Port = Annotated[int, Field(ge=1, le=65535)]
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
    """How long the process goes on serving after SIGTERM, until nobody is sent to it any more."""


class ApiSettings(ProcessSettings):
    """The API process."""

    namespace: str = "model-gateway"
    api_host: str = "127.0.0.1"
    api_port: Port = 8080
    base_url: str = "http://127.0.0.1:8080"
    redis_url: str = "redis://127.0.0.1:6379/0"
    media_url: str = "http://127.0.0.1:8081"
    """The media host's address as clients know it, where temporary files are read and put."""
    temporary_storage_bytes: Annotated[int, Field(ge=0, le=2**53 - 1)] = 1_073_741_824
    """Bytes of temporary files that an account may have at once."""
    files_per_account: Annotated[int, Field(ge=0, le=10_000_000)] = 100_000
    """How many files and pending Uploads an account may have at once, whatever they take."""
    temporary_files_per_account: Annotated[int, Field(ge=0, le=10_000_000)] = 10_000
    allowed_cidrs: Networks = ()
    """Networks that callbacks and fetches may reach although they are private."""
    denied_cidrs: Networks = ()
    """The cluster's own networks where those are public addresses: neither may reach them."""
    maintenance: bool = False
    """Whether requests that create are refused with 503."""
    keys_per_account: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Keys that are not revoked which Platform Management makes for one account, at most."""
    guardrails_per_account: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Guardrails that it makes for one account, at most."""
    open_batches_per_account: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Batches that have not ended which one account may have, at most."""
    pricing_anonymous: bool = True
    """Whether prices are told to those who send no credential (§2.6)."""
    task_id_header: HeaderName = "X-Task-Id"
    moderation_default_model: Annotated[str, Field(max_length=253)] = ""
    """What judges a moderation that names no model; empty: it has to name one (§6)."""
    replicas: Annotated[int, Field(ge=1, le=10000)] = 1
    """Processes that share the accounts' rates, for the time without a counter store (§12.5), and
    what moderation providers take at a time."""
    metrics_enabled: bool = True
    client_traces: Literal["link", "parent", "ignore"] = "link"
    """What a client's `traceparent` is taken for, where tracing is on."""
    operator_url: str = ""
    """Where notices of providers go, `{ordinal}` being the replica's number; empty for nowhere."""
    operator_replicas: Annotated[int, Field(ge=1, le=SHARDS)] = 1
    failpoints: str = ""
    """Steps at which the process kills itself, for tests (`failpoints`)."""


class MediaSettings(ProcessSettings):
    """The media host."""

    media_host: str = "127.0.0.1"
    media_port: Port = 8081
