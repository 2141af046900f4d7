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

    account_name: Annotated[Name, Field(description="Name of the GatewayAccount that pays.")]
    key_name: Annotated[
        LongName | None,
        Field(description="Name of the GatewayKey that created it; absent with kubectl."),
    ] = None
    guardrail_names: Annotated[
        GuardrailNames | None,
        Field(
            description="Guardrails that the key had at admission: charges count in their limits."
        ),
    ] = None
    endpoint: Annotated[Literal["/v1/moderations"], Field(description="Endpoint of all lines.")] = (
        "/v1/moderations"
    )
    completion_window: Annotated[
        Literal["24h"],
        Field(
            description="Time within which the batch ends; the rest of the lines is then not run."
        ),
    ] = "24h"
    input_file_name: Annotated[
        Name, Field(description="Name of the GatewayFile whose lines are run.")
    ]
    segments: Annotated[
        Segments | None,
        Field(
            description="Places of the input's bytes at creation; absent with kubectl, or if there"
            " are many."
        ),
    ] = None
    metadata: Annotated[
        Metadata | None, Field(description="Notes of the client, up to 16 names with values.")
    ] = None
    output_expires_after_seconds: Annotated[
        int | None,
        Field(
            ge=3600,
            le=2_592_000,
            description="Lifetime of the output Files in seconds from their creation. Absent: 30"
            " days.",
        ),
    ] = None
    fingerprint: Fingerprint = None


class BatchSpec(Part):
    """Desired state of one run."""

    request: Annotated[BatchRequest, Field(json_schema_extra=checked(REQUEST_RULE))]
    desired_state: DesiredState = "Completed"


class LineError(Part):
    """What is wrong with the file, at a line if it has one (1-based)."""

    code: Annotated[str, Field(max_length=63, description="Machine-readable reason.")]
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
            },
            description="Reason as a sentence.",
        ),
    ]
    param: Annotated[
        str | None, Field(max_length=63, description="Field of the line that is wrong.")
    ] = None
    line: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="Number of the line in the input, from 1; absent if the whole file is"
            " meant.",
        ),
    ] = None


class BatchCounts(Part):
    """Lines in all, and of those ended: with an answer of 2xx, or otherwise."""

    total: Annotated[int, Field(ge=0, le=2**31 - 1, description="Lines of the input.")] = 0
    completed: Annotated[
        int, Field(ge=0, le=2**31 - 1, description="Lines that were answered with a status of 2xx.")
    ] = 0
    failed: Annotated[int, Field(ge=0, le=2**31 - 1, description="Lines that ended otherwise.")] = 0
    sent: Annotated[
        int | None,
        Field(
            ge=0, le=2**31 - 1, description="Lines that were sent to a provider; set at the end."
        ),
    ] = None


class BatchStatus(Status):
    """How far it has come. `phase` is the wire's status in CamelCase; each time is set once."""

    phase: Annotated[
        str | None,
        Field(
            max_length=32,
            description="Validating, InProgress, Finalizing, Cancelling, Completed, Failed, Expired"
            " or Cancelled.",
        ),
    ] = None
    work: Annotated[
        str | None,
        Field(
            max_length=16,
            description="Absent while open. Settled once the batch has ended, its charge is in the"
            " account's usage, and only its Files are left in the object store.",
        ),
    ] = None
    model_id: Annotated[
        LongName | None, Field(description="Id of the model that all lines name.")
    ] = None
    service: Annotated[
        Name | None,
        Field(description="Service (provider segment of the REST paths) of that model."),
    ] = None
    counts: Annotated[
        BatchCounts | None, Field(description="Lines of the input, and those that have ended.")
    ] = None
    errors: Annotated[
        list[LineError] | None,
        Field(
            max_length=MOST_ERRORS,
            json_schema_extra=ATOMIC_LIST,
            description="Errors of the input, at most 100, if the batch failed validation.",
        ),
    ] = None
    start_time: Annotated[
        Time | None, Field(description="When the first line was run: the batch went in progress.")
    ] = None
    finalizing_time: Annotated[
        Time | None, Field(description="When the writing of the output Files began.")
    ] = None
    cancelling_time: Annotated[
        Time | None, Field(description="When the cancellation was seen.")
    ] = None
    completion_time: Annotated[
        Time | None, Field(description="When the batch ended, in any way.")
    ] = None
    run_end: Annotated[
        Literal["Completed", "Expired", "Cancelled"] | None,
        Field(description="Why no more lines are run; from then on only the Files are written."),
    ] = None
    results: Annotated[
        ObjectRef | None,
        Field(
            description="List in the object store of what the Files are made of, fixed at the end"
            " of the run."
        ),
    ] = None
    output_file_name: Annotated[
        Name | None,
        Field(
            description="Name of the GatewayFile with the answers; chosen before it is written,"
            " shown to clients at the end."
        ),
    ] = None
    error_file_name: Annotated[
        Name | None, Field(description="Name of the GatewayFile with the failed lines; likewise.")
    ] = None
    reserved_micros: Annotated[
        Micros | None, Field(description="Money reserved for the lines, in micro-dollars.")
    ] = None
    charged_micros: Annotated[
        Micros | None, Field(description="Charge of the lines that completed, in micro-dollars.")
    ] = None
    cost: Annotated[str | None, Field(max_length=32, description="Charge in dollars.")] = None


class GatewayBatch(Resource):
    """The requests of a file, run one by one."""

    kind_name: ClassVar[str] = "GatewayBatch"
    plural: ClassVar[str] = "gatewaybatches"
    short_name: ClassVar[str] = "gwbatch"
    columns: ClassVar[list[Any]] = [
        ("Account", "string", ".spec.request.accountName", 0),
        ("Model", "string", ".status.modelId", 0),
        ("Phase", "string", ".status.phase", 0),
        condition_column("Reason", "Succeeded", "reason"),
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
