"""GatewayProvider: an upstream that runs models, described as data.

Type `http` describes an asynchronous video API in requests, state words and JMESPath expressions,
so a new provider is one YAML file. The API calls providers of types `openai` and `google`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway_core.api.account import SecretKeyRef
from gateway_core.api.http_provider import Headers, HttpProvider
from gateway_core.api.resource import (
    AGE,
    HEALTH_COLUMNS,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    REFERRED_NAME_RULE,
    Health,
    Part,
    Resource,
    Status,
    Time,
    checked,
    rule,
)


class DirectProvider(Part):
    """An API that answers a call at once, without a job."""

    base_url: Annotated[
        str,
        Field(
            max_length=2048,
            pattern=r"^https?://[^/?#@]+(/[^?#]*)?$",
            description="Address up to the version, e.g. https://api.example.com/v1.",
        ),
    ]
    headers: Annotated[
        Headers | None,
        Field(
            description="Headers of every request. If none has {credential}, it is sent in"
            " Authorization (type openai) or x-goog-api-key (type google)."
        ),
    ] = None
    request_timeout_seconds: Annotated[
        int,
        Field(
            ge=1, le=300, description="Longest time of a moderation call in seconds; default 30."
        ),
    ] = 30
    connect_timeout_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=60,
            description="Longest time in seconds to connect for an LLM call, TLS included; default"
            " 5.",
        ),
    ] = 5
    idle_timeout_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=600,
            description="Longest wait in seconds for the next byte of an LLM call's response, the"
            " first one included; default 120.",
        ),
    ] = 120


class OpenAIProvider(DirectProvider):
    """An API in the OpenAI dialect: chat completions, moderations, perhaps responses."""

    has_responses: Annotated[
        bool,
        Field(
            description="Whether it serves /responses; default false: the gateway translates such"
            " calls to chat completions."
        ),
    ] = False


class GoogleProvider(DirectProvider):
    """An API in the Google dialect: generateContent and streamGenerateContent."""


class ProviderSpec(Part):
    """An upstream as a platform team declares it."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            rule("self.type != 'http' || has(self.http)", "`http` must be specified for type http"),
            rule(
                "self.type == 'http' || !has(self.http)",
                "`http` may be specified for type http alone",
            ),
            rule(
                "(self.type == 'openai') == has(self.openai)",
                "`openai` must be specified for type openai, and only there",
            ),
            rule(
                "(self.type == 'google') == has(self.google)",
                "`google` must be specified for type google, and only there",
            ),
            rule(
                "!(self.type in ['http', 'openai', 'google']) || !has(self.config)",
                "`config` may be specified for other types than http, openai and google alone",
            ),
        )
    )

    type: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern="^[a-z0-9-]+$",
            description="http: an API with asynchronous jobs. openai, google: an API of that"
            " dialect, which answers at once. Any other: the name of a code adapter in"
            " the operator's image.",
        ),
    ]
    credentials_secret_ref: Annotated[
        SecretKeyRef | None,
        Field(
            description="Secret with the provider's credential. For types openai and google it may"
            " have several, one on each line, which LLM calls take in turn."
        ),
    ] = None
    max_concurrent_requests: Annotated[
        int,
        Field(
            ge=1,
            le=10000,
            description="Most calls at a time: of all operators together, and for types openai and"
            " google as many of all API processes; default 64.",
        ),
    ] = 64
    requests_per_second: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="Most calls per second: of all operators together for batches, and as many"
            " of all API processes together for LLM calls. Absent: as many as the"
            " provider does not answer with 429.",
        ),
    ] = None
    on_unknown_submission: Annotated[
        Literal["Fail", "Resubmit"],
        Field(
            description="What to do if it is unknown whether a job was made, and the provider has"
            " neither idempotency keys nor a look-up; default Fail. Resubmit may pay"
            " twice."
        ),
    ] = "Fail"
    http: Annotated[
        HttpProvider | None,
        Field(description="Requests and responses of an API with jobs; exactly for type http."),
    ] = None
    openai: Annotated[
        OpenAIProvider | None,
        Field(description="An API in the OpenAI dialect; exactly for type openai."),
    ] = None
    google: Annotated[
        GoogleProvider | None,
        Field(description="An API in the Google dialect; exactly for type google."),
    ] = None
    config: Annotated[
        str | None,
        Field(
            max_length=16384,
            description="Configuration of the code adapter of this type; its format is the"
            " adapter's.",
        ),
    ] = None


TestOutcome = Literal["Succeeded", "Refused", "Failed"]


class ProviderTest(Part):
    """The latest result of calls with the provider's declaration and credential."""

    outcome: Annotated[
        TestOutcome,
        Field(
            description="Succeeded, Refused (the provider refuses the credential, or the address or"
            " model), or Failed (it does not answer, or fails)."
        ),
    ]
    time: Annotated[Time, Field(description="When a call was seen to end so.")]
    generation: Annotated[
        int, Field(ge=0, description="`metadata.generation` of the provider that was called.")
    ]
    message: Annotated[
        str | None, Field(max_length=1024, description="What was seen, as a sentence.")
    ] = None


class ProviderStatus(Status):
    """Observed state of the provider."""

    test: Annotated[
        ProviderTest | None,
        Field(
            description="Calls that show whether the credential works: clients' own, or those of"
            " `gatewayctl providers test`. Written when the outcome changes, and hourly."
        ),
    ] = None

    health: Annotated[
        Health | None,
        Field(description="Calls of this provider in the last three minutes; absent without any."),
    ] = None


class GatewayProvider(Resource):
    """An upstream that runs models."""

    kind_name: ClassVar[str] = "GatewayProvider"
    plural: ClassVar[str] = "gatewayproviders"
    short_name: ClassVar[str] = "gwprov"
    columns: ClassVar[list[Any]] = [
        ("Type", "string", ".spec.type", 0),
        *READY_COLUMNS,
        *HEALTH_COLUMNS,
        ("URL", "string", ".spec['http','openai','google'].baseUrl", 1),
        MESSAGE_COLUMN,
        AGE,
    ]
    selectable: ClassVar[list[str]] = [".spec.type"]
    rules: ClassVar[list[dict[str, Any]]] = [REFERRED_NAME_RULE]

    spec: ProviderSpec
    status: ProviderStatus = Field(default_factory=ProviderStatus)
