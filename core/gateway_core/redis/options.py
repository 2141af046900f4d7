"""How the processes reach Redis: one server by its URL, or a master that Sentinels name."""

from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, SecretStr, StringConstraints, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from redis.asyncio.connection import parse_url

HostPort = Annotated[
    str, StringConstraints(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):\d{1,5}$")
]
"""`host:port`, an IPv6 address in brackets."""


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Where Redis is, and how to prove who calls. Its text has no secrets."""

    url: str = field(repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    sentinels: tuple[HostPort, ...] = ()
    sentinel_service: str = ""
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)


def check_url(value: str) -> str:
    """Return the URL, if redis-py takes it. ValueError, whose text has no part of it."""
    try:
        parse_url(value)
    except ValueError:
        raise ValueError(
            "must be redis://HOST:PORT/DB, rediss://… or unix://…, special characters as %XX"
        ) from None
    return value


def _split(value: object) -> object:
    return (
        tuple(filter(None, value.replace(" ", "").split(","))) if isinstance(value, str) else value
    )


class RedisSettings(BaseSettings):
    """Settings of Redis, the same for every process that counts."""

    # an error's text would have the password
    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True, hide_input_in_errors=True)

    redis_url: Annotated[str, AfterValidator(check_url)] = "redis://127.0.0.1:6379/0"
    """Redis of rates, limits, reservations and sessions: `redis://USER:PASSWORD@HOST:PORT/DB`, or
    `rediss://…` with TLS. Its host and port are not used with Sentinels."""
    redis_username: str = ""
    """User of Redis's access control lists, if the URL does not have it."""
    redis_password: SecretStr = SecretStr("")
    """Password of Redis, if the URL does not have it."""
    redis_ca_file: str = ""
    """Certificate authorities that Redis's and the Sentinels' certificates may also be of."""
    redis_certificate_file: str = ""
    """Certificate that the process shows to Redis and the Sentinels; none if empty."""
    redis_key_file: str = ""
    """Private key of that certificate."""
    redis_sentinels: Annotated[tuple[HostPort, ...], NoDecode, BeforeValidator(_split)] = ()
    """Sentinels as `host:port,[address]:port`, which name the master; the URL does if empty."""
    redis_sentinel_service: str = "mymaster"
    """Name under which the Sentinels watch the master."""
    redis_sentinel_username: str = ""
    """User of the Sentinels' access control lists."""
    redis_sentinel_password: SecretStr = SecretStr("")
    """Password of the Sentinels."""

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if bool(self.redis_certificate_file) != bool(self.redis_key_file):
            raise ValueError("redis_certificate_file and redis_key_file are set together")
        return self

    @property
    def redis(self) -> RedisOptions:
        """The options of the connections."""
        return RedisOptions(
            url=self.redis_url,
            username=self.redis_username,
            password=self.redis_password.get_secret_value(),
            ca_file=self.redis_ca_file,
            certificate_file=self.redis_certificate_file,
            key_file=self.redis_key_file,
            sentinels=self.redis_sentinels,
            sentinel_service=self.redis_sentinel_service,
            sentinel_username=self.redis_sentinel_username,
            sentinel_password=self.redis_sentinel_password.get_secret_value(),
        )
