"""GatewayTask: one asynchronous call to a hosted model, from its request to its result.

The API creates and reads it, the operator reconciles it.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from gateway_core.api.limits import GuardrailNames, Window
from gateway_core.api.model import KeyedRoute
from gateway_core.api.resource import (
    AGE,
    ATOMIC_LIST,
    IMMUTABLE,
    REQUEST_RULE,
    DesiredState,
    Fingerprint,
    LongName,
    Micros,
    Name,
    ObjectRef,
    Part,
    Resource,
    Sha256,
    Status,
    Text,
    Time,
    checked,
    condition_column,
    rule,
)

TERMINAL_PHASES = frozenset({"Completed", "Failed"})


SETTLED = "Settled"


MOST_TEXT = 255
"""Characters of `status.callback.lastAnswer`."""
MAX_INLINE_INPUT = 8192
"""Bytes of canonical JSON up to which the object itself has the input."""

TASK_NAME_RULE = rule(
    "self.metadata.name.matches('^task-[a-z0-9-]{1,57}$')",
    "metadata.name must be `task-` and 1 to 57 lowercase letters, digits or dashes",
)

TERMINAL_RULE = rule(
    "!has(oldSelf.phase) || !(oldSelf.phase in ['Completed', 'Failed'])"
    " || (has(self.phase) && self.phase == oldSelf.phase"
    " && has(self.result) == has(oldSelf.result) && has(self.failure) == has(oldSelf.failure)"
    " && has(self.chargedMicros) == has(oldSelf.chargedMicros)"
    " && (!has(self.chargedMicros) || self.chargedMicros == oldSelf.chargedMicros))",
    "a terminal state may not be changed",
)
"""The end of a task never changes, whichever writer tries (I3)."""


class TaskRequest(Part):
    """What was asked for; it never changes."""

    account_name: Annotated[Name, Field(description="The account that pays.")]
    key_name: Annotated[
        LongName | None, Field(description="The key it came with; absent with kubectl.")
    ] = None
    guardrail_names: Annotated[
        GuardrailNames | None,
        Field(description="The guardrails that its key had: the charge counts in their pools."),
    ] = None
    service: Annotated[Name, Field(description="Provider segment of the REST path.")]
    action: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9_]+$")]
    model_id: LongName
    input: Annotated[
        str | None,
        Field(max_length=MAX_INLINE_INPUT, description="The operation's input as JSON text."),
    ] = None
    input_ref: Annotated[
        ObjectRef | None, Field(description="The input's place, where it is over 8 KiB.")
    ] = None
    fingerprint: Fingerprint = None
    callback_url: Annotated[str | None, Field(max_length=2048, pattern="^https?://")] = None
    reserved_micros: Annotated[
        Micros | None, Field(description="Micro-dollars held at admission.")
    ] = None
    route: Annotated[
        KeyedRoute | None,
        Field(
            description="A provider with idempotency keys: the intent to submit there, recorded"
            " with the task. Believed of tasks that the API has admitted."
        ),
    ] = None


class TaskSpec(Part):
    """Desired state of one call."""

    request: Annotated[
        TaskRequest,
        Field(
            json_schema_extra=checked(
                REQUEST_RULE,
                rule(
                    "has(self.input) != has(self.inputRef)",
                    "exactly one of `input` and `inputRef` must be specified",
                ),
            )
        ),
    ]
    desired_state: DesiredState = "Completed"
    deadline_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=604800,
            description="Seconds from creation after which an unfinished task fails.",
        ),
    ] = 3600
    redeliveries: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="Raise it to have the callback delivered once more.",
            json_schema_extra=checked(rule("self >= oldSelf", "may only be raised")),
        ),
    ] = 0


class UpstreamJob(Part):
    """The intent to submit, and then the job, at a provider."""

    provider_name: Name
    upstream_model: LongName | None = None
    intent_time: Annotated[
        Time | None, Field(description="Recorded before the first call that may create a job.")
    ] = None
    job_id: Annotated[str | None, Field(max_length=512)] = None


class Video(Part):
    """One output in the gateway's own storage, and the address it is served at."""

    url: Annotated[str, Field(max_length=2048)]
    key: Annotated[str, Field(min_length=1, max_length=1024)]
    bytes: Annotated[int, Field(ge=0, le=2**53 - 1)]
    sha256: Sha256
    content_type: Annotated[str, Field(max_length=127)]


class TaskResult(Part):
    """What a completed task yields."""

    videos: Annotated[
        list[Video], Field(min_length=1, max_length=16, json_schema_extra=ATOMIC_LIST)
    ]


class FailureLimit(Part):
    """The budget that a task failed by, for its callback (contract §11.1)."""

    limit_cents: Annotated[int, Field(ge=0, le=2**53 - 1)]
    used_cents: Annotated[int, Field(ge=0, le=2**53 - 1)]
    reset_time: Time | None = None
    window: Window


class Failure(Part):
    """Why a task failed, in the words its client reads."""

    code: Annotated[str, Field(max_length=63)]
    message: Text
    limit: FailureLimit | None = None


class Callback(Part):
    """How far the delivery of the task's end to `callbackUrl` has come (contract §11)."""

    id: Annotated[str, Field(max_length=63, description="The message's id, at every attempt.")]
    state: Annotated[
        str, Field(max_length=16, description="Pending, then Delivered or Undelivered.")
    ]
    attempts: Annotated[
        int, Field(ge=0, le=1000, description="Attempts made, since the last redelivery if any.")
    ] = 0
    next_attempt_time: Time | None = None
    last_attempt_time: Time | None = None
    last_status: Annotated[int | None, Field(ge=100, le=999)] = None
    last_answer: Annotated[
        str | None, Field(max_length=MOST_TEXT, description="What the last attempt came to.")
    ] = None
    redeliveries: Annotated[
        int, Field(ge=0, le=1000, description="How far spec.redeliveries has been followed.")
    ] = 0


class TaskStatus(Status):
    """Observed state of the task. `phase` is an open summary of the conditions."""

    phase: Annotated[str | None, Field(max_length=32)] = None
    work: Annotated[
        str | None,
        Field(
            max_length=16,
            description="Absent while open; Settled once the task has ended and its callback, if"
            " it has one, was delivered or given up.",
        ),
    ] = None
    upstream: UpstreamJob | None = None
    result: Annotated[TaskResult | None, Field(json_schema_extra=IMMUTABLE)] = None
    failure: Annotated[Failure | None, Field(json_schema_extra=IMMUTABLE)] = None
    reserved_micros: Micros | None = None
    charged_micros: Micros | None = None
    callback: Callback | None = None
    cost: Annotated[str | None, Field(max_length=32, description="The charge in dollars.")] = None
    start_time: Time | None = None
    completion_time: Time | None = None


class GatewayTask(Resource):
    """One asynchronous call to a hosted model."""

    kind_name: ClassVar[str] = "GatewayTask"
    plural: ClassVar[str] = "gatewaytasks"
    short_name: ClassVar[str] = "gwtask"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.request.accountName", 0),
        ("Model", "string", ".spec.request.modelId", 0),
        ("Phase", "string", ".status.phase", 0),
        condition_column("Reason", "Succeeded", "reason"),
        ("Cost", "string", ".status.cost", 0),
        ("Provider", "string", ".status.upstream.providerName", 1),
        ("Job", "string", ".status.upstream.jobId", 1),
        ("Key", "string", ".spec.request.keyName", 1),
        ("Finished", "date", ".status.completionTime", 1),
        condition_column("Message", "Succeeded", "message", 1),
        ("Callback", "string", ".status.callback.state", 1),
        ("Attempts", "integer", ".status.callback.attempts", 1),
        ("Next", "string", ".status.callback.nextAttemptTime", 1),
        ("Answer", "string", ".status.callback.lastAnswer", 1),
        AGE,
    ]
    selectable: ClassVar[list[str]] = [
        ".spec.redeliveries",
        ".spec.request.accountName",
        ".spec.request.modelId",
        ".status.phase",
        ".status.work",
        ".status.upstream.providerName",
    ]
    rules: ClassVar[list[dict[str, Any]]] = [TASK_NAME_RULE]

    spec: TaskSpec
    status: Annotated[TaskStatus, Field(json_schema_extra=checked(TERMINAL_RULE))] = Field(
        default_factory=TaskStatus
    )
