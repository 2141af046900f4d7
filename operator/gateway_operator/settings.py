"""The operator's settings: one frozen object, read once from the environment in `__main__`."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from gateway_core.api.account import ACCOUNT_BYTES, PAID_RPM, AccountDefaults, StorageBytes
from gateway_core.api.ids import OPERATOR_LEASE, SHARDS
from gateway_core.api.limits import RequestsPerMinute
from gateway_core.callbacks.schedule import CALLBACK_SECONDS, SCHEDULE, CallbackSeconds
from gateway_core.redis.options import RedisSettings
from gateway_core.storage.objects import StoreSettings
from gateway_operator.context import Shards
from gateway_operator.retention.objects import (
    DAY_SECONDS,
    MOST_ENDED,
    RESULT_DAYS,
    RetentionRules,
)

MOST_DELAY = 7 * 24 * 3600.0

Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode]
Delay = Annotated[float, Field(ge=0, le=MOST_DELAY, allow_inf_nan=False)]


class Settings(StoreSettings, RedisSettings):
    """Environment variables are these names in capitals with the prefix GATEWAY_."""

    namespace: str = "model-gateway"
    """Namespace of the custom resources and the Secrets."""
    secrets_dir: Path
    """Folder of the files `id-key`, `media-key` and `pepper-1`, `pepper-2`, …"""
    media_url: str
    """The media host's address as clients know it, for the URLs of outputs."""
    health_host: str = "127.0.0.1"
    """Address of probes, metrics and forwarded notices; empty for all of both families."""
    health_port: int = 8081
    """Port of these, which clients do not reach."""
    liveness_host: str = "127.0.0.1"
    """Address of kopf's liveness endpoint."""
    liveness_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of kopf's liveness endpoint; 0: none."""
    notify_url: Annotated[str, Field(pattern=r"^(https?://[^\s?#]+)?$")] = ""
    """The API's address as providers reach it, for their notices; empty if they are not to push."""
    callback_allowed_cidrs: Networks = ()
    """Private networks that receivers of callbacks may be in (contract §11.6)."""
    fetch_allowed_cidrs: Networks = ()
    """Private networks that a provider's outputs may be in outside its own origin: what is read
    from there tenants can read, as what the API fetches."""
    denied_cidrs: Networks = ()
    """Networks that neither may be in, whether public or allowed."""
    paid_rpm: RequestsPerMinute = PAID_RPM
    """Paid calls a minute of an account whose object does not say."""
    account_bytes: StorageBytes = ACCOUNT_BYTES
    """Bytes of files of such an account."""
    callback_schedule: Annotated[
        tuple[Delay, ...], NoDecode, Field(min_length=1, max_length=100)
    ] = SCHEDULE
    """Seconds before each attempt: 0, as the first is at the task's end, then since the last."""
    callback_timeout_seconds: CallbackSeconds = CALLBACK_SECONDS
    """How long a receiver of a callback may take to answer."""
    log_level: str = "info"
    """The least severe lines that are logged: debug, info, warning or error."""
    log_format: Literal["console", "json"] = "json"
    """Lines for people, or a JSON object each."""
    replicas: Annotated[int, Field(ge=1, le=SHARDS)] = 1
    """Operator replicas, which divide the shards."""
    ordinal: Annotated[int, Field(ge=0, lt=SHARDS)] = 0
    """Number of this replica, from 0."""
    sweep_seconds: float = 60.0
    """From one sweep (retention, stray reservations, expiry) to the next."""
    heartbeat_seconds: float = 10.0
    """From one renewal of the Lease that shows this replica is alive to the next."""
    fold_seconds: Annotated[float, Field(ge=0, le=60)] = 2.0
    """How long charges of ended tasks are gathered for one write of the usage."""
    fold_most: Annotated[int, Field(ge=1, le=200)] = 200
    """Charges in one such write."""
    retention_ttl_seconds: Annotated[float, Field(ge=0, le=RESULT_DAYS * DAY_SECONDS)] = 3600.0
    """How long an ended task stays in the Kubernetes API."""
    retention_max_finished: Annotated[int, Field(ge=0)] = 20_000
    """Ended tasks in the Kubernetes API; beyond it the oldest go earlier."""
    retention_least_seconds: Annotated[float, Field(ge=0)] = 600.0
    """How long an ended task stays at least: a create that looks for a task
    must find it or its archive (contract §2.2). Shorter for tests only."""
    retention_ended_per_account: Annotated[int, Field(ge=1)] = MOST_ENDED
    """Ended tasks of one account in the Kubernetes API (contract §12.1a).
    Another number for tests only."""
    reconcile_seconds: Annotated[float, Field(gt=0, le=7 * DAY_SECONDS)] = 3600.0
    """From one comparison of the object store with the Kubernetes API to the next."""
    orphan_seconds: Annotated[float, Field(ge=0, le=365 * DAY_SECONDS)] = DAY_SECONDS
    """How old bytes have to be that nothing names before they are removed."""
    proof_seconds: Annotated[float, Field(gt=0, le=DAY_SECONDS)] = 300.0
    """From one comparison of the storage ledger with the Kubernetes API to the next."""
    claim_seconds: Annotated[float, Field(ge=0)] = 120.0
    """How long a claim of storage may lack an object: longer than a create can take.
    Shorter for tests only."""
    record_quota_bytes: Annotated[int, Field(ge=0, le=2**53 - 1)] = 0
    """The quota of the etcd behind the Kubernetes API; 0: its size is not checked."""
    record_stop_percent: Annotated[int, Field(ge=10, le=95)] = 80
    """Of the quota, from where on API processes refuse requests that create."""
    record_seconds: Annotated[float, Field(gt=0, le=60)] = 30.0
    """Between two checks of the size."""
    trace_providers: bool = False
    """Whether calls that start jobs carry `traceparent`, where tracing is on."""
    failpoints: str = ""
    """Steps at which the process kills itself, for tests (`failpoints`)."""

    @field_validator("callback_allowed_cidrs", "fetch_allowed_cidrs", "denied_cidrs", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(ip_network(part.strip()) for part in value.split(",") if part.strip())

    @field_validator("callback_schedule", mode="before")
    @classmethod
    def _split_schedule(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("callback_schedule")
    @classmethod
    def _check_schedule(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value[0] != 0:
            raise ValueError("the first attempt is made at the task's end: begin with 0")
        return value

    @model_validator(mode="after")
    def _check_ordinal(self) -> Self:
        if self.ordinal >= self.replicas:
            raise ValueError("GATEWAY_ORDINAL must be below GATEWAY_REPLICAS")
        return self

    @property
    def liveness_endpoint(self) -> str | None:
        """The URL of kopf's liveness endpoint, if it is wanted."""
        host = f"[{self.liveness_host}]" if ":" in self.liveness_host else self.liveness_host
        return f"http://{host}:{self.liveness_port}/healthz" if self.liveness_port else None

    @property
    def lease(self) -> str:
        """Name of the Lease that shows that this replica's watch is alive."""
        return f"{OPERATOR_LEASE}{self.ordinal}"

    @property
    def account_defaults(self) -> AccountDefaults:
        """The limits of accounts that do not set their own."""
        return AccountDefaults(self.paid_rpm, self.account_bytes)

    @property
    def shards(self) -> Shards:
        """The shards this replica owns."""
        return Shards.divide(self.replicas, self.ordinal)

    @property
    def rules(self) -> RetentionRules:
        """The periods that objects are kept."""
        return RetentionRules(
            finished=self.retention_ttl_seconds,
            most=self.retention_max_finished,
            least=self.retention_least_seconds,
            ended=self.retention_ended_per_account,
        )
