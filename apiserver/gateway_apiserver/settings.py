"""What a deployment may choose for the API process and the media host."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from gateway_core.accounts.sso import SignOnPolicy
from gateway_core.api.ids import SHARDS
from gateway_core.callbacks.schedule import CALLBACK_SECONDS, CallbackSeconds
from gateway_core.mail import Security
from gateway_web.settings import (
    Count,
    HeaderName,
    Networks,
    Origin,
    Port,
    ProcessSettings,
    ServiceSettings,
    split_commas,
)


class ApiSettings(ServiceSettings):
    """The API process."""

    health_port: Port = 8085
    """Where probes and metrics are served: a port that clients do not reach."""
    api_host: str = "127.0.0.1"
    """Address that clients' calls are served on; empty for all of both families."""
    api_port: Port = 8080
    """Port that clients' calls are served on."""
    oauth_access_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600
    """Life of an access token (§10.7)."""
    oauth_refresh_idle_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 2_592_000
    """Life of a refresh token that is not used."""
    oauth_family_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 15_552_000
    """Life of a grant, however often it is refreshed."""
    oauth_registrations_per_minute: Count = 20
    """Registrations of one address in a minute."""
    oauth_registrations_per_day: Count = 100
    """The same in a day."""
    oauth_unused_clients: Count = 1000
    """Registered clients that no user has given access to, at most."""
    oidc_issuer: str = ""
    """Issuer of the OpenID Connect provider for single sign-on; empty for none. The client's secret
    is the file `oidc-client-secret` beside the other secrets."""
    oidc_client_id: str = ""
    """The gateway's id at that provider."""
    oidc_title: Annotated[str, Field(max_length=64)] = "single sign-on"
    """What the button calls the provider."""
    oidc_users: Literal["match", "create"] = "match"
    """Whether a person without a GatewayUser gets one."""
    oidc_account: str = ""
    """The account of such a user; none if empty."""
    oidc_role: Literal["member", "viewer"] = "member"
    """The role of such a user in that account."""
    oidc_domains: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_commas)] = ()
    """Domains of emails that may come in by single sign-on; empty for all."""
    oidc_trusted_domains: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_commas)] = ()
    """Domains whose emails count without `email_verified`: the provider alone gives them out."""
    sign_ins_per_minute: Count = 60
    """Attempts to sign in, or to choose a password, from one address in a minute."""
    invitations: bool = True
    """Permission for owners and admins of accounts to invite people and make password links."""
    smtp_host: str = ""
    """Mail server that sends the links of invitations; empty to show them to the owner alone. The
    password is the file `smtp-password` beside the other secrets."""
    smtp_port: Port = 587
    """Its port."""
    smtp_security: Security = "starttls"
    """Encryption of the connection to the mail server."""
    smtp_user: Annotated[str, Field(max_length=254)] = ""
    """User to authenticate as; empty for none."""
    smtp_from: Annotated[str, Field(max_length=254)] = ""
    """Address that the mails come from."""
    media_url: str = "http://127.0.0.1:8081"
    """The media host's address as clients know it, where temporary files are read and put."""
    temporary_storage_bytes: Annotated[int, Field(ge=0, le=2**53 - 1)] = 1_073_741_824
    """Bytes of temporary files that an account may have at once."""
    files_per_account: Annotated[int, Field(ge=0, le=10_000_000)] = 100_000
    """How many files and pending Uploads an account may have at once, of any size."""
    temporary_files_per_account: Annotated[int, Field(ge=0, le=10_000_000)] = 10_000
    """Temporary files that an account may have at once."""
    fetch_allowed_cidrs: Networks = ()
    """Private networks that the sources of temporary files may be in (§11.6)."""
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
    cors_allowed_origins: Annotated[
        tuple[Origin, ...], NoDecode, BeforeValidator(split_commas)
    ] = ()
    """Origins of web pages that may call `/v1`, `/v1beta` and `/api/v1` (§0.11)."""
    docs_enabled: bool = True
    """Whether `/docs` shows the operations in a browser; `/openapi.json` is always served."""
    task_id_header: HeaderName = "X-Task-Id"
    """Header with the id of the task that a response concerns (§2.1)."""
    llm_headers: Literal["off", "public", "routes"] = "public"
    """Which `x-gateway-*` headers responses of LLM calls have."""
    llm_cache_bytes: Annotated[int, Field(ge=0, le=2**40)] = 64 * 1024 * 1024
    """Bytes of kept answers of language models in Redis; 0 keeps none."""
    llm_cache_account_bytes: Annotated[int, Field(ge=0, le=2**40)] = 8 * 1024 * 1024
    """The same for one account."""
    moderation_default_model: Annotated[str, Field(max_length=253)] = ""
    """What judges a moderation that names no model; empty: it has to name one (§6)."""
    reuse_port: bool = False
    """Whether other API processes listen on the same port (`SO_REUSEPORT`), as in the local run.
    The process then listens, on the health port too, once it is ready."""
    mcp_replicas: Annotated[int, Field(ge=0, le=10000)] = 0
    """Pods of the MCP process, which share the accounts' rates with those of the API."""
    replicas: Annotated[int, Field(ge=1, le=10000)] = 1
    """API processes of the installation. They share the accounts' rates, for the time without a
    counter store (§12.5), and what providers take at a time."""
    operator_url: str = ""
    """Where notices of providers go, `{ordinal}` being the replica's number; empty for nowhere."""
    operator_replicas: Annotated[int, Field(ge=1, le=SHARDS)] = 1
    """Replicas of the operator: the number of a shard's owner follows from it."""
    callback_timeout_seconds: CallbackSeconds = CALLBACK_SECONDS
    """The operator's, for as long as the API waits for a test delivery."""

    @property
    def counting_processes(self) -> int:
        """Processes that count paid calls of an account: those of the API and of MCP."""
        return self.replicas + self.mcp_replicas

    @property
    def sign_on_policy(self) -> SignOnPolicy:
        """The rules of who may come in by single sign-on."""
        domains = tuple(domain.lower() for domain in self.oidc_domains)
        return SignOnPolicy(self.oidc_users, self.oidc_account, self.oidc_role, domains)


class MediaSettings(ProcessSettings):
    """The media host."""

    health_port: Port = 8086
    """Where probes and metrics are served: a port that clients do not reach."""
    max_connections: Count = 1000
    """Connections on the port that clients reach."""
    max_connections_per_address: Count = 800
    """Of one address, as at the API."""
    media_host: str = "127.0.0.1"
    """Address that bytes are served on; empty for all of both families."""
    media_port: Port = 8081
    """Port that bytes are served on."""
