"""An asynchronous video API as data: requests, state words and JMESPath expressions.

The part of a GatewayProvider of type `http`, and headers, which all types have.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway_core.api.resource import SET_LIST, Part, checked, rule

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

    name: Annotated[HeaderName, Field(description="Name of the header.")]
    value: Annotated[
        str,
        Field(
            max_length=4096,
            description="Value; {credential} stands for the value of the Secret that"
            " credentialsSecretRef names.",
        ),
    ]


Headers = Annotated[
    list[Header],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ),
]


class SubmitRequest(Part):
    """The call that starts a job."""

    method: Annotated[Method, Field(description="HTTP method; default POST.")] = "POST"
    path: PathTemplate
    headers: Annotated[
        Headers | None,
        Field(
            description="Headers of this request besides those of the provider; one of the same"
            " name replaces it."
        ),
    ] = None
    body: Annotated[
        Expression,
        Field(
            description="JMESPath over {input, model, reference, notifyUrl} that yields the JSON"
            " body; members that are null are left out. notifyUrl is an address that"
            " makes the gateway poll at once, null without notifications."
        ),
    ]
    job_id: Annotated[Expression, Field(description="JMESPath over the response: the job's id.")]
    idempotency_header: Annotated[
        HeaderName | None,
        Field(
            description="Header that the provider honours as idempotency key; its value is the"
            " task's uid."
        ),
    ] = None
    error_message: Annotated[
        Expression | None,
        Field(description="JMESPath over a response of 4xx: what is wrong with the input."),
    ] = None


class StateWords(Part):
    """Which of the provider's words mean what; any other word means that it is still running."""

    running: Annotated[
        Words | None,
        Field(description="Words of a job that is under way. Words in no list mean the same."),
    ] = None
    succeeded: Annotated[Words, Field(description="Words of a job whose outputs can be fetched.")]
    failed: Annotated[Words, Field(description="Words of a job that failed.")]
    cancelled: Annotated[Words | None, Field(description="Words of a job that was cancelled.")] = (
        None
    )


class PollRequest(Part):
    """The call that asks after a job."""

    method: Annotated[Method, Field(description="HTTP method; default GET.")] = "GET"
    path: PathTemplate
    headers: Annotated[
        Headers | None,
        Field(
            description="Headers of this request besides those of the provider; one of the same"
            " name replaces it."
        ),
    ] = None
    body: Annotated[
        Expression | None,
        Field(description="JMESPath over {jobId} that yields the JSON body. Absent: no body."),
    ] = None
    state: Annotated[
        Expression, Field(description="JMESPath over the response: the word of the job's state.")
    ]
    state_words: Annotated[StateWords, Field(description="Meaning of the state's words.")]
    result_id: Annotated[
        Expression | None,
        Field(description="JMESPath over the response: {resultId} in the path of `result`."),
    ] = None
    outputs: Annotated[
        Expression,
        Field(
            description="JMESPath over the response, or over that of `result` if there is one: a"
            " URL or a list of URLs."
        ),
    ]
    output_seconds: Annotated[
        Expression | None,
        Field(
            description="JMESPath, as outputs: seconds of output that the provider made. Absent:"
            " the request's duration is charged."
        ),
    ] = None
    error_message: Annotated[
        Expression | None, Field(description="JMESPath over the response: why the job failed.")
    ] = None
    min_interval_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=3600,
            description="Shortest time between two polls of a job, in seconds; default 1.",
        ),
    ] = 1
    max_interval_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=3600,
            description="Longest time between two polls of a job, in seconds; default 15. In"
            " between, a tenth of the age of the job.",
        ),
    ] = 15
    notified_interval_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=3600,
            description="Seconds between polls of a job whose provider was given notifyUrl. Absent:"
            " as of any other job.",
        ),
    ] = None


class ResultRequest(Part):
    """The call that fetches a succeeded job's outputs, where the poll's answer lacks them."""

    method: Annotated[Method, Field(description="HTTP method; default GET.")] = "GET"
    path: PathTemplate
    headers: Annotated[
        Headers | None,
        Field(
            description="Headers of this request besides those of the provider; one of the same"
            " name replaces it."
        ),
    ] = None
    body: Annotated[
        Expression | None,
        Field(
            description="JMESPath over {jobId, resultId} that yields the JSON body. Absent: no"
            " body."
        ),
    ] = None
    error_message: Annotated[
        Expression | None,
        Field(
            description="JMESPath over the response, whatever its status, that gives the reason why"
            " the job failed, or null if it succeeded. For APIs that report a failed job as ended"
            " and return the error as its result."
        ),
    ] = None


class CancelRequest(Part):
    """The call that stops a job, where the provider has one."""

    method: Annotated[Method, Field(description="HTTP method; default POST.")] = "POST"
    path: PathTemplate
    headers: Annotated[
        Headers | None,
        Field(
            description="Headers of this request besides those of the provider; one of the same"
            " name replaces it."
        ),
    ] = None
    body: Annotated[
        Expression | None,
        Field(description="JMESPath over {jobId} that yields the JSON body. Absent: no body."),
    ] = None


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

    method: Annotated[Method, Field(description="HTTP method; default GET.")] = "GET"
    path: PathTemplate
    headers: Annotated[
        Headers | None,
        Field(
            description="Headers of this request besides those of the provider; one of the same"
            " name replaces it."
        ),
    ] = None
    body: Annotated[
        Expression | None,
        Field(description="JMESPath over {reference} that yields the JSON body. Absent: no body."),
    ] = None
    jobs: Annotated[
        Expression | None,
        Field(
            description="JMESPath over the response: a list of jobs, of which one may be the right"
            " one."
        ),
    ] = None
    job_id: Annotated[
        Expression,
        Field(
            description="JMESPath over the response, or over each of `jobs`: the job's id, null if"
            " there is none."
        ),
    ]
    reference: Annotated[
        Expression | None,
        Field(
            description="JMESPath, as jobId: the reference that the job was submitted with. A job"
            " with another one is ignored."
        ),
    ] = None
    visible_after_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=600,
            description="Seconds for which a job that was made may be missing in the response;"
            " default 0.",
        ),
    ] = 0


class ErrorWords(Part):
    """Errors that the provider tells of in the body of an answer, whatever its status."""

    code: Annotated[
        Expression,
        Field(description="JMESPath over any response: the error's code, null if there is none."),
    ]
    refused: Annotated[
        Words | None, Field(description="Codes of input that is refused for good.")
    ] = None
    busy: Annotated[
        Words | None,
        Field(description="Codes of calls that made no job and should be tried again."),
    ] = None
    denied: Annotated[Words | None, Field(description="Codes of refused credentials.")] = None
    unknown_job: Annotated[
        Words | None, Field(description="Codes of a job that does not exist.")
    ] = None
    retry_after: Annotated[
        Expression | None,
        Field(description="JMESPath over the response: seconds after which to try again."),
    ] = None


class HttpProvider(Part):
    """An HTTP API with jobs."""

    base_url: Annotated[
        str,
        Field(
            max_length=2048,
            pattern=r"^https?://[^/?#@]+(/[^?#]*)?$",
            description="Address that the paths of all requests are appended to, without a slash at"
            " its end.",
        ),
    ]
    headers: Annotated[Headers | None, Field(description="Headers of every request.")] = None
    request_timeout_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=300,
            description="Longest time of one request in seconds, body included; default 30.",
        ),
    ] = 30
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
            description="Hosts besides baseUrl's from which outputs may be fetched; *.example.com"
            " for all subdomains.",
            json_schema_extra=SET_LIST,
        ),
    ] = None
    output_headers: Annotated[
        Headers | None,
        Field(description="Headers with which an output at baseUrl's origin is fetched."),
    ] = None
    max_output_bytes: Annotated[
        int,
        Field(
            ge=1,
            le=2**40,
            description="Largest output in bytes; default 2 GiB. The task fails if one is larger.",
        ),
    ] = 2 * 2**30
