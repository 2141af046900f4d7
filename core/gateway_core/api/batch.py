"""GatewayBatch: the requests of a file, run against a moderation model (contract §5).

The API creates it; the operator validates the file, runs its lines and writes the results to Files.
Lines, results and the run's progress are in the object store; counts and times in the object.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway_core.api.file import Segments
from gateway_core.api.limits import GuardrailNames
from gateway_core.api.resource import (
    AGE,
    ATOMIC_LIST,
    REQUEST_RULE,
    DesiredState,
    Fingerprint,
    LongName,
    Micros,
    Name,
    ObjectRef,
    Part,
    Resource,
    Status,
    Time,
    checked,
    condition_column,
    rule,
)

ACTION = "moderations"
"""Action of the models that batches may use."""
WINDOW_SECONDS = 86_400
MOST_LINES = 50_000
MOST_ERRORS = 100
MOST_MESSAGE_BYTES = 160
"""Bytes of one line's error, in UTF-8 (§12.1a)."""
MOST_METADATA_BYTES = 10 * 1024
"""Bytes of all keys and values of a client's metadata, in UTF-8 (§12.1a)."""

BATCH_NAME_RULE = rule(
    "self.metadata.name.matches('^batch-[a-z0-9-]{1,57}$')",
    "metadata.name must be `batch-` and 1 to 57 lowercase letters, digits or dashes",
)

TERMINAL_PHASES = ("Completed", "Failed", "Expired", "Cancelled")

TERMINAL_RULE = rule(
    "!has(oldSelf.phase) || !(oldSelf.phase in ['Completed', 'Failed', 'Expired', 'Cancelled'])"
    " || (has(self.phase) && self.phase == oldSelf.phase"
    " && has(self.outputFileName) == has(oldSelf.outputFileName)"
    " && (!has(self.outputFileName) || self.outputFileName == oldSelf.outputFileName)"
    " && has(self.errorFileName) == has(oldSelf.errorFileName)"
    " && (!has(self.errorFileName) || self.errorFileName == oldSelf.errorFileName)"
    " && has(self.counts) == has(oldSelf.counts)"
    " && (!has(self.counts) || self.counts == oldSelf.counts)"
    " && has(self.chargedMicros) == has(oldSelf.chargedMicros)"
    " && (!has(self.chargedMicros) || self.chargedMicros == oldSelf.chargedMicros))",
    "a terminal state may not be changed",
)
"""The end of a batch never changes, whichever writer tries (I3)."""

RUN_END_RULE = rule(
    " && ".join(
        f"(!has(oldSelf.{name}) || !has(self.{name}) || self.{name} == oldSelf.{name})"
        for name in ("runEnd", "results", "outputFileName", "errorFileName")
    ),
    "how a run has ended, and what is made of it, may not be changed",
)
"""All replicas create the same Files; an empty File is dropped at the end."""

Metadata = Annotated[
    dict[str, Annotated[str, Field(max_length=512)]],
    Field(
        max_length=16,
        json_schema_extra=checked(
            rule("self.all(key, size(key) <= 64)", "a key may have at most 64 characters"),
            rule(
                "self.map(key, size(bytes(key)) + size(bytes(self[key]))).sum()"
                f" <= {MOST_METADATA_BYTES}",
                f"all keys and values together may have at most {MOST_METADATA_BYTES} bytes",
            ),
        ),
    ),
]


class BatchRequest(Part):
    """What was asked for; it never changes."""

    account_name: Annotated[Name, Field(description="The account that pays.")]
    key_name: Annotated[
        LongName | None, Field(description="The key it came with; absent with kubectl.")
    ] = None
    guardrail_names: Annotated[
        GuardrailNames | None,
        Field(description="The guardrails that its key had: the charge counts in their pools."),
    ] = None
    endpoint: Literal["/v1/moderations"] = "/v1/moderations"
    completion_window: Literal["24h"] = "24h"
    input_file_name: Annotated[Name, Field(description="The GatewayFile whose lines are run.")]
    segments: Annotated[
        Segments | None,
        Field(description="Where its bytes lay at creation; absent with kubectl, or of many."),
    ] = None
    metadata: Annotated[Metadata | None, Field(description="The client's own, as he gave it.")] = (
        None
    )
    output_expires_after_seconds: Annotated[
        int | None, Field(ge=3600, le=2_592_000, description="Life of the output Files.")
    ] = None
    fingerprint: Fingerprint = None


class BatchSpec(Part):
    """Desired state of one run."""

    request: Annotated[BatchRequest, Field(json_schema_extra=checked(REQUEST_RULE))]
    desired_state: DesiredState = "Completed"


class LineError(Part):
    """What is wrong with the file, at a line if it has one (1-based)."""

    code: Annotated[str, Field(max_length=63)]
    message: Annotated[
        str,
        Field(
            # in the CRD alone: objects of older releases have messages of up to 512 bytes
            json_schema_extra={
                "maxLength": MOST_MESSAGE_BYTES,
                "x-kubernetes-validations": [
                    rule(
                        f"size(bytes(self)) <= {MOST_MESSAGE_BYTES}",
                        f"a message may have at most {MOST_MESSAGE_BYTES} bytes",
                    )
                ],
            }
        ),
    ]
    param: Annotated[str | None, Field(max_length=63)] = None
    line: Annotated[int | None, Field(ge=1, le=2**31 - 1)] = None


class BatchCounts(Part):
    """Lines in all, and of those ended: with an answer of 2xx, or otherwise."""

    total: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    completed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    failed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    sent: Annotated[
        int | None,
        Field(ge=0, le=2**31 - 1, description="At the end: those that were sent to a provider."),
    ] = None


class BatchStatus(Status):
    """How far it has come. `phase` is the wire's status in CamelCase; each time is set once."""

    phase: Annotated[str | None, Field(max_length=32)] = None
    work: Annotated[
        str | None,
        Field(
            max_length=16,
            description="Absent while open; Settled once the batch has ended, its charge is in its"
            " account's usage and nothing but its Files is left in the store.",
        ),
    ] = None
    model_id: Annotated[LongName | None, Field(description="The model all lines name.")] = None
    service: Name | None = None
    counts: BatchCounts | None = None
    errors: Annotated[
        list[LineError] | None, Field(max_length=MOST_ERRORS, json_schema_extra=ATOMIC_LIST)
    ] = None
    start_time: Annotated[Time | None, Field(description="When it went in progress.")] = None
    finalizing_time: Time | None = None
    cancelling_time: Time | None = None
    completion_time: Annotated[Time | None, Field(description="When it ended, however.")] = None
    run_end: Annotated[
        Literal["Completed", "Expired", "Cancelled"] | None,
        Field(description="Why no more lines are run; what is left is to write the Files."),
    ] = None
    results: Annotated[
        ObjectRef | None,
        Field(description="The list of what the Files are made of, fixed as the run ended."),
    ] = None
    output_file_name: Annotated[
        Name | None, Field(description="Named before it is written; told to clients at the end.")
    ] = None
    error_file_name: Name | None = None
    reserved_micros: Micros | None = None
    charged_micros: Micros | None = None
    cost: Annotated[str | None, Field(max_length=32, description="The charge in dollars.")] = None


class GatewayBatch(Resource):
    """The requests of a file, run one by one."""

    kind_name: ClassVar[str] = "GatewayBatch"
    plural: ClassVar[str] = "gatewaybatches"
    short_name: ClassVar[str] = "gwbatch"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.request.accountName", 0),
        ("Model", "string", ".status.modelId", 0),
        ("Phase", "string", ".status.phase", 0),
        ("Total", "integer", ".status.counts.total", 0),
        ("Completed", "integer", ".status.counts.completed", 0),
        ("Failed", "integer", ".status.counts.failed", 0),
        ("Cost", "string", ".status.cost", 0),
        ("Input", "string", ".spec.request.inputFileName", 1),
        ("Output", "string", ".status.outputFileName", 1),
        ("Errors", "string", ".status.errorFileName", 1),
        ("Key", "string", ".spec.request.keyName", 1),
        ("Finished", "date", ".status.completionTime", 1),
        condition_column("Message", "Succeeded", "message", 1),
        AGE,
    ]
    selectable: ClassVar[list[str]] = [
        ".spec.request.accountName",
        ".spec.request.inputFileName",
        ".status.phase",
        ".status.work",
    ]
    rules: ClassVar[list[dict[str, Any]]] = [BATCH_NAME_RULE]

    spec: BatchSpec
    status: Annotated[
        BatchStatus, Field(json_schema_extra=checked(TERMINAL_RULE, RUN_END_RULE))
    ] = Field(default_factory=BatchStatus)
