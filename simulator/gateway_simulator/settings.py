"""The simulator's settings: read once from the environment by `__main__`, then passed down."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway_simulator.behaviours import Spread, SpreadField


class Settings(BaseSettings):
    """What an operator of the simulator may choose; `docs/simulator.md` lists the variables."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_SIMULATOR_", frozen=True)

    host: str = "127.0.0.1"
    """Address that the simulator is served on; empty for all of both families."""
    port: int = Field(default=9010, ge=1, le=65535)
    """Port that the simulator is served on."""
    token: SecretStr = Field(min_length=1)
    """The bearer token that callers of /v1 present."""
    seconds: Annotated[SpreadField, NoDecode] = Spread(2.0, 2.0)
    """How long a job takes, unless a control rule says otherwise."""
    state_dir: Path | None = None
    """Where the jobs are kept over a restart; without it they live in memory only."""
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", validation_alias="GATEWAY_LOG_LEVEL"
    )
    """The least severe lines that are logged."""
    log_format: Literal["console", "json"] = Field(
        default="console", validation_alias="GATEWAY_LOG_FORMAT"
    )
    """Lines for people, or a JSON object each."""
