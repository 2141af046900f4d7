"""GatewayProvider: an upstream that runs models, described as data.

Type `http` describes an asynchronous video API in requests, state words and JMESPath expressions,
so a new provider is one YAML file. The API calls providers of types `openai` and `google`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway_core.api.account import SecretKeyRef
from gateway_core.api.resource import (
    AGE,
    HEALTH_COLUMNS,
    MESSAGE_COLUMN,
    READY_COLUMNS,
    REFERRED_NAME_RULE,
    SET_LIST,
    Health,
    Part,
    Resource,
    Status,
    checked,
    rule,
)

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Expression = Annotated[str, Field(min_length=1, max_length=8192, description="JMESPath.")]
PathTemplate = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2048,
        pattern="^/",
        description="Path and query under baseUrl with places to fill in: {model} and {reference} "
        "in submit, {jobId} in poll, result and cancel, {resultId} in result, {reference} in "
        "lookup. A value is escaped as one segment; {+name} keeps its slashes.",
    ),
]
HeaderName = Annotated[
    str, Field(min_length=1, max_length=127, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
]
Words = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=63)]],
    Field(max_length=32, json_schema_extra=SET_LIST),
]


class Header(Part):
    """A header of a request; {credential} stands for the Secret's value."""

    name: HeaderName
    value: Annotated[str, Field(max_length=4096)]


Headers = Annotated[
    list[Header],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ),
]


class SubmitRequest(Part):
    """The call that starts a job."""

    method: Method = "POST"
    path: PathTemplate
    headers: Headers | None = None
    body: Annotated[
        Expression,
        Field(
            description="JMESPath over {input, model, reference, notifyUrl} that yields the JSON "
            "body; members that come out null are left out. notifyUrl is an address that makes the "
            "gateway poll at once, null where push is not set up."
        ),
    ]
    job_id: Annotated[Expression, Field(description="JMESPath over the answer: the job's id.")]
    idempotency_header: Annotated[
        HeaderName | None,
        Field(description="Header that the provider honours as idempotency key; the task's uid."),
    ] = None
    error_message: Annotated[
        Expression | None,
        Field(description="JMESPath over a refusal (4xx): what was wrong with the input."),
    ] = None


class StateWords(Part):
    """Which of the provider's words mean what; any other word means that it is still running."""

    running: Words | None = None
    succeeded: Words
    failed: Words
    cancelled: Words | None = None


class PollRequest(Part):
    """The call that asks after a job."""

    method: Method = "GET"
    path: PathTemplate
    headers: Headers | None = None
    body: Annotated[Expression | None, Field(description="JMESPath over {jobId}.")] = None
    state: Annotated[Expression, Field(description="JMESPath over the answer: the state word.")]
    state_words: StateWords
    result_id: Annotated[
        Expression | None,
        Field(description="JMESPath over the answer: {resultId} of `result`'s path."),
    ] = None
    outputs: Annotated[
        Expression,
        Field(
            description="JMESPath over the answer, or over that of `result` where there is one: "
            "a URL or a list of URLs."
        ),
    ]
    output_seconds: Annotated[
        Expression | None,
        Field(description="JMESPath, as outputs: seconds really made, if the provider tells."),
    ] = None
    error_message: Annotated[
        Expression | None, Field(description="JMESPath over the answer: why the job failed.")
    ] = None
    min_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 1
    max_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    notified_interval_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=3600,
            description="Seconds between polls of a job whose provider was given notifyUrl; "
            "without it as often as any other.",
        ),
    ] = None


class ResultRequest(Part):
    """The call that fetches a succeeded job's outputs, where the poll's answer lacks them."""

    method: Method = "GET"
    path: PathTemplate
    headers: Headers | None = None
    body: Annotated[Expression | None, Field(description="JMESPath over {jobId, resultId}.")] = None


class CancelRequest(Part):
    """The call that stops a job, where the provider has one."""

    method: Method = "POST"
    path: PathTemplate
    headers: Headers | None = None
    body: Annotated[Expression | None, Field(description="JMESPath over {jobId}.")] = None


class LookupRequest(Part):
    """The call that finds a job by the reference it was submitted with (the task's uid)."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "!has(self.jobs) || has(self.reference)",
                "`reference` must be specified with `jobs`",
            )
        )
    )

    method: Method = "GET"
    path: PathTemplate
    headers: Headers | None = None
    body: Annotated[Expression | None, Field(description="JMESPath over {reference}.")] = None
    jobs: Annotated[
        Expression | None,
        Field(description="JMESPath over the answer: a list of jobs, of which one may be meant."),
    ] = None
    job_id: Annotated[
        Expression,
        Field(
            description="JMESPath over the answer, or over each of `jobs`: the job's id, null if "
            "none."
        ),
    ]
    reference: Annotated[
        Expression | None,
        Field(
            description="JMESPath, as jobId: the reference the job was submitted with. A job with "
            "another one is not taken."
        ),
    ] = None
    visible_after_seconds: Annotated[
        int, Field(ge=0, le=600, description="How long a job that was made may be missing here.")
    ] = 0


class ErrorWords(Part):
    """Errors that the provider tells of in the body of an answer, whatever its status."""

    code: Annotated[
        Expression,
        Field(description="JMESPath over any answer: the error's code, null if there is none."),
    ]
    refused: Annotated[Words | None, Field(description="The input is refused for good.")] = None
    busy: Annotated[Words | None, Field(description="No job was made; to be tried again.")] = None
    denied: Annotated[Words | None, Field(description="The credentials are refused.")] = None
    unknown_job: Annotated[Words | None, Field(description="There is no such job.")] = None
    retry_after: Annotated[
        Expression | None,
        Field(description="JMESPath over the answer: seconds after which to try again."),
    ] = None


class HttpProvider(Part):
    """An HTTP API with jobs."""

    base_url: Annotated[str, Field(max_length=2048, pattern=r"^https?://[^/?#@]+(/[^?#]*)?$")]
    headers: Annotated[Headers | None, Field(description="Sent with every request.")] = None
    request_timeout_seconds: Annotated[int, Field(ge=1, le=300)] = 30
    submit: SubmitRequest
    poll: PollRequest
    result: ResultRequest | None = None
    cancel: CancelRequest | None = None
    lookup: LookupRequest | None = None
    errors: ErrorWords | None = None
    output_hosts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253)]] | None,
        Field(
            max_length=32,
            description="Hosts outputs may be fetched from beside baseUrl's; *.x for subdomains.",
            json_schema_extra=SET_LIST,
        ),
    ] = None
    output_headers: Annotated[
        Headers | None, Field(description="Sent when an output of baseUrl's origin is fetched.")
    ] = None
    max_output_bytes: Annotated[int, Field(ge=1, le=2**40)] = 2 * 2**30


class DirectProvider(Part):
    """An API that answers a call at once, without a job."""

    base_url: Annotated[
        str,
        Field(
            max_length=2048,
            pattern=r"^https?://[^/?#@]+(/[^?#]*)?$",
            description="Up to the version, e.g. https://api.example.com/v1.",
        ),
    ]
    headers: Annotated[
        Headers | None,
        Field(
            description="Sent with every request. Without one for the credential the Secret's value"
            " is sent in Authorization (type openai) or x-goog-api-key (type google)."
        ),
    ] = None
    request_timeout_seconds: Annotated[
        int, Field(ge=1, le=300, description="For a whole moderation call.")
    ] = 30
    connect_timeout_seconds: Annotated[
        int, Field(ge=1, le=60, description="For the connection of an LLM call, with TLS.")
    ] = 5
    idle_timeout_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=600,
            description="Longest wait for a byte of an LLM call's response, its first included.",
        ),
    ] = 120


class OpenAIProvider(DirectProvider):
    """An API in the OpenAI dialect: chat completions, moderations, perhaps responses."""

    has_responses: Annotated[
        bool,
        Field(
            description="Whether it serves /responses. Otherwise the gateway translates such calls"
            " to chat completions."
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
            description="http: an API with jobs. openai, google: an API of that dialect, which"
            " answers at once. Any other: the name of a code adapter in the operator's image.",
        ),
    ]
    credentials_secret_ref: Annotated[
        SecretKeyRef | None,
        Field(
            description="Credential of the provider. Of types openai and google it may be several,"
            " one on each line: LLM calls take them in turn."
        ),
    ] = None
    max_concurrent_requests: Annotated[
        int,
        Field(
            ge=1,
            le=10000,
            description="Calls at a time: the operator's, and of types `openai` and `google` as"
            " many of the API.",
        ),
    ] = 64
    requests_per_second: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="What the provider takes in all: of batches, whose replicas divide it by"
            " the shards they own, and as many LLM calls, divided among API processes. Absent: as"
            " much as it does not answer 429 to.",
        ),
    ] = None
    on_unknown_submission: Annotated[
        Literal["Fail", "Resubmit"],
        Field(
            description="What to do when it is unknown whether a job was made and the provider has "
            "neither idempotency keys nor a look-up. Resubmit may pay twice."
        ),
    ] = "Fail"
    http: HttpProvider | None = None
    openai: OpenAIProvider | None = None
    google: GoogleProvider | None = None
    config: Annotated[
        str | None,
        Field(max_length=16384, description="What the code adapter of this type is to know."),
    ] = None


class ProviderStatus(Status):
    """Observed state of the provider."""

    health: Health | None = None


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
