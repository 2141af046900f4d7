"""GatewayTask: one asynchronous call to a hosted model, from its request to its result.

The API creates and reads it, the operator reconciles it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

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

TaskPhase = Literal["Pending", "Submitting", "Running", "Completed", "Failed"]
"""The states of a task, in the words that `kubectl`, the command line and the console show."""
PHASES: tuple[TaskPhase, ...] = get_args(TaskPhase)
PENDING = PHASES[0]
TERMINAL_PHASES = frozenset({"Completed", "Failed"})


def name_phase(status: Mapping[str, Any]) -> str:
    """Return the phase of a status as on the wire; a task without one is Pending."""
    return status.get("phase") or PENDING


SETTLED = "Settled"


MOST_TEXT = 255
"""Characters of `status.callback.lastAnswer`."""
MOST_REDELIVERIES = 1000
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

    account_name: Annotated[Name, Field(description="Name of the GatewayAccount that pays.")]
    key_name: Annotated[
        LongName | None,
        Field(
            description="Name of the GatewayKey that made the call; absent for tasks made with"
            " kubectl."
        ),
    ] = None
    guardrail_names: Annotated[
        GuardrailNames | None,
        Field(
            description="Guardrails that the key had at admission: the charge counts in their"
            " limits."
        ),
    ] = None
    service: Annotated[Name, Field(description="Provider segment of the REST path.")]
    action: Annotated[
        str,
        Field(
            max_length=63,
            pattern=r"^[a-z0-9_]+$",
            description="Operation, the second segment of the REST path, e.g. reference_to_video.",
        ),
    ]
    model_id: Annotated[
        LongName, Field(description="Id of the model (`spec.modelId` of a GatewayModel).")
    ]
    input: Annotated[
        str | None,
        Field(
            max_length=MAX_INLINE_INPUT,
            description="The operation's input as JSON text. Exactly one of input and inputRef is"
            " specified.",
        ),
    ] = None
    input_ref: Annotated[
        ObjectRef | None,
        Field(description="Place of the input in the object store, if it has more than 8 KiB."),
    ] = None
    fingerprint: Fingerprint = None
    callback_url: Annotated[
        str | None,
        Field(
            max_length=2048,
            pattern="^https?://",
            description="Address that receives the result. Absent: no callback.",
        ),
    ] = None
    reserved_micros: Annotated[
        Micros | None, Field(description="Money reserved at admission, in micro-dollars.")
    ] = None
    route: Annotated[
        KeyedRoute | None,
        Field(
            description="Provider with idempotency keys and its name of the model: the recorded"
            " intent to submit there. Obeyed only in tasks that the API has admitted."
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
            description="Seconds from creation after which an unfinished task fails with"
            " deadline_exceeded; default 3600.",
        ),
    ] = 3600
    redeliveries: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_REDELIVERIES,
            description="Raise it to have the callback delivered once more, with the same id and"
            " body; default 0.",
            json_schema_extra=checked(rule("self >= oldSelf", "may only be raised")),
        ),
    ] = 0


class UpstreamJob(Part):
    """The intent to submit, and then the job, at a provider."""

    provider_name: Annotated[Name, Field(description="Name of the GatewayProvider.")]
    upstream_model: Annotated[
        LongName | None, Field(description="The provider's name of the model.")
    ] = None
    intent_time: Annotated[
        Time | None,
        Field(
            description="When the intent was recorded: before the first call that may create a job."
        ),
    ] = None
    job_id: Annotated[
        str | None,
        Field(
            max_length=512, description="The provider's id of the job; absent until it is known."
        ),
    ] = None


class Video(Part):
    """One output in the gateway's own storage, and the address it is served at."""

    url: Annotated[
        str, Field(max_length=2048, description="Address at which clients fetch the video.")
    ]
    key: Annotated[
        str,
        Field(min_length=1, max_length=1024, description="Key of the video in the object store."),
    ]
    bytes: Annotated[int, Field(ge=0, le=2**53 - 1, description="Number of bytes.")]
    sha256: Annotated[Sha256, Field(description="SHA-256 of the bytes, in hex.")]
    content_type: Annotated[str, Field(max_length=127, description="Media type, e.g. video/mp4.")]


class TaskResult(Part):
    """What a completed task yields."""

    videos: Annotated[
        list[Video],
        Field(
            min_length=1,
            max_length=16,
            json_schema_extra=ATOMIC_LIST,
            description="The outputs, in the provider's order.",
        ),
    ]


class FailureLimit(Part):
    """The budget that a task failed by, for its callback (contract §11.1)."""

    limit_cents: Annotated[int, Field(ge=0, le=2**53 - 1, description="The limit, in cents.")]
    used_cents: Annotated[
        int,
        Field(
            ge=0,
            le=2**53 - 1,
            description="Spending in the window at that time, in cents, rounded up.",
        ),
    ]
    reset_time: Annotated[
        Time | None, Field(description="When the window ends; absent if never.")
    ] = None
    window: Annotated[Window, Field(description="Window of the limit.")]


class Failure(Part):
    """Why a task failed, in the words its client reads."""

    code: Annotated[
        str, Field(max_length=63, description="Machine-readable reason, e.g. generation_failed.")
    ]
    message: Annotated[Text, Field(description="Reason as a sentence, as the client reads it.")]
    limit: Annotated[
        FailureLimit | None,
        Field(description="The spending limit that was exceeded, if that is the reason."),
    ] = None


class Callback(Part):
    """How far the delivery of the task's end to `callbackUrl` has come (contract §11)."""

    id: Annotated[
        str, Field(max_length=63, description="Id of the message, the same at every attempt.")
    ]
    state: Annotated[
        str, Field(max_length=16, description="Pending, then Delivered or Undelivered.")
    ]
    attempts: Annotated[
        int,
        Field(
            ge=0, le=1000, description="Attempts made, since the last redelivery if there was one."
        ),
    ] = 0
    next_attempt_time: Annotated[
        Time | None, Field(description="When the next attempt is due; absent after the last.")
    ] = None
    last_attempt_time: Annotated[
        Time | None, Field(description="When the last attempt was made.")
    ] = None
    last_status: Annotated[
        int | None,
        Field(
            ge=100,
            le=999,
            description="HTTP status of the last attempt; absent if there was no response.",
        ),
    ] = None
    last_answer: Annotated[
        str | None,
        Field(
            max_length=MOST_TEXT,
            description="Outcome of the last attempt in words: the status line, or the connection's"
            " error.",
        ),
    ] = None
    redeliveries: Annotated[
        int, Field(ge=0, le=1000, description="Value of spec.redeliveries that was carried out.")
    ] = 0


class TaskStatus(Status):
    """Observed state of the task. `phase` is an open summary of the conditions."""

    phase: Annotated[
        str | None,
        Field(
            max_length=32,
            description="Pending, Submitting, Running, Completed or Failed: a summary of the"
            " conditions; absent until the operator has seen the task.",
        ),
    ] = None
    work: Annotated[
        str | None,
        Field(
            max_length=16,
            description="Absent while open; Settled once the task has ended and its callback, if"
            " it has one, was delivered or given up.",
        ),
    ] = None
    upstream: Annotated[
        UpstreamJob | None, Field(description="The intent to submit, and the job, at a provider.")
    ] = None
    result: Annotated[
        TaskResult | None,
        Field(json_schema_extra=IMMUTABLE, description="Outputs of a completed task."),
    ] = None
    failure: Annotated[
        Failure | None, Field(json_schema_extra=IMMUTABLE, description="Why a failed task failed.")
    ] = None
    reserved_micros: Annotated[
        Micros | None,
        Field(
            description="Money reserved for the task, in micro-dollars, if admission did not record"
            " it in the request."
        ),
    ] = None
    charged_micros: Annotated[
        Micros | None,
        Field(description="Charge of the ended task, in micro-dollars; 0 if it failed."),
    ] = None
    callback: Annotated[
        Callback | None, Field(description="Delivery of the result to callbackUrl.")
    ] = None
    cost: Annotated[str | None, Field(max_length=32, description="Charge in dollars.")] = None
    start_time: Annotated[Time | None, Field(description="When the provider accepted the job.")] = (
        None
    )
    completion_time: Annotated[Time | None, Field(description="When the task ended.")] = None


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
        condition_column("Message", "Succeeded", "message"),
        ("Provider", "string", ".status.upstream.providerName", 1),
        ("Job", "string", ".status.upstream.jobId", 1),
        ("Key", "string", ".spec.request.keyName", 1),
        ("Finished", "date", ".status.completionTime", 1),
        ("Callback", "string", ".status.callback.state", 1),
        ("CallbackAttempts", "integer", ".status.callback.attempts", 1),
        ("CallbackNext", "string", ".status.callback.nextAttemptTime", 1),
        ("CallbackAnswer", "string", ".status.callback.lastAnswer", 1),
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
