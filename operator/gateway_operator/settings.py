"""The operator's settings: one frozen object, read once from the environment in `__main__`."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway_core.contract.names import SHARDS
from gateway_operator.shards import Shards


class Settings(BaseSettings):
    """Environment variables are these names in capitals with the prefix GATEWAY_."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    namespace: str = "model-gateway"
    redis_url: str = "redis://127.0.0.1:6379/0"
    store_dir: Path
    secrets_dir: Path
    media_url: str
    health_host: str = "127.0.0.1"
    health_port: int = 8081
    notify_url: Annotated[str, Field(pattern=r"^(https?://[^\s?#]+)?$")] = ""
    """The API's address as providers reach it, for their notices; empty if they are not to push."""
    allowed_cidrs: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = ()
    log_level: str = "info"
    log_format: Literal["console", "json"] = "json"
    replicas: Annotated[int, Field(ge=1, le=SHARDS)] = 1
    ordinal: Annotated[int, Field(ge=0, lt=SHARDS)] = 0
    sweep_seconds: float = 60.0
    heartbeat_seconds: float = 10.0
    failpoints: str = ""

    @field_validator("allowed_cidrs", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(ip_network(part.strip()) for part in value.split(",") if part.strip())

    @model_validator(mode="after")
    def _check_ordinal(self) -> Self:
        if self.ordinal >= self.replicas:
            raise ValueError("GATEWAY_ORDINAL must be below GATEWAY_REPLICAS")
        return self

    @property
    def shards(self) -> Shards:
        """The shards this replica owns."""
        return Shards.divide(self.replicas, self.ordinal)
