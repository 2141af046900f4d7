"""What a batch's run is made of: its marks, where its input lies, and whose it is.

A batch from REST comes admitted: its name carries the API's keyed tag, and what it says of its
input was looked up then. Of any other only the names are believed: its File is read, of its own
account, and its key is judged as REST would judge it.
"""

from collections.abc import Sequence
from datetime import datetime

from gateway_core.accounts.guardrails import Policy, Rules, build_policy, read_rules
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    BATCH_FINALIZER,
    BATCH_PREFIX,
    SHARD_LABEL,
    Ownership,
    name_to_id,
    shard_of,
)
from gateway_core.api.resource import Object, ObjectRef
from gateway_core.api.times import parse_time
from gateway_core.batches.lines import Problem
from gateway_core.kube.errors import ObjectNotFound
from gateway_operator.batches.tools import BatchTools
from gateway_operator.tasks.credentials import Unseen, dump_spec, find_policy
from gateway_operator.tasks.inputs import Unacceptable

SIGHT_SECONDS = 10.0
"""How long what is applied together with a batch may take to be seen here."""


class Unfit(Exception):
    """The batch cannot be run: what it fails by."""

    def __init__(self, reason: Reason, *problems: Problem, total: int = 0) -> None:
        super().__init__(problems[0].message if problems else "")
        self.reason = reason
        self.problems = problems
        self.total = total


class NotYet(Exception):
    """Something needed is not there yet; the batch is looked at again after a pause."""


class Intake:
    """Takes batches in."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools

    def is_admitted(self, batch: GatewayBatch) -> bool:
        """Whether the API has made the batch: only it can make a name with this tag."""
        request = batch.spec.request
        if request.fingerprint is None:
            return False
        wire_id = name_to_id(batch.metadata.name)
        found = self._tools.base.mint.check(BATCH_PREFIX, request.account_name, wire_id)
        return found is Ownership.MINTED

    async def mark(self, obj: Object, batch: GatewayBatch) -> Object:
        """Gives the object the labels and the finalizer it should have, if they differ."""
        wanted = {
            ACCOUNT_LABEL: batch.spec.request.account_name,
            SHARD_LABEL: str(shard_of(batch.metadata.name)),
        }
        labels, finalizers = batch.metadata.labels, batch.metadata.finalizers
        if BATCH_FINALIZER in finalizers and wanted.items() <= labels.items():
            return obj
        if batch.metadata.deletion_timestamp is not None:
            return obj
        marks = {"labels": wanted, "finalizers": sorted({*finalizers, BATCH_FINALIZER})}
        return await self._tools.register.amend(obj, {"metadata": marks})

    async def find_segments(self, batch: GatewayBatch) -> Sequence[ObjectRef]:
        """Where the input lies. Unfit, NotYet, KubernetesUnavailable.

        A File whose deletion has begun is there until the batches that name it have ended; for one
        that was admitted or has begun, so it is for clients too.
        """
        request = batch.spec.request
        is_admitted = self.is_admitted(batch)
        if is_admitted and request.segments is not None:
            return request.segments
        name = request.input_file_name
        try:
            obj = await self._tools.base.kube.get(GatewayFile.plural, name)
        except ObjectNotFound:
            obj = None
        begun = is_admitted or batch.status.start_time is not None
        file = None if obj is None else GatewayFile.model_validate(obj)
        if file is not None and file.spec.request.account_name != request.account_name:
            file = None
        if file is None or not (begun or self._is_there(file)):
            self._wait_for_sight(batch)
            text = f"File {name_to_id(name)} does not exist."
            raise Unfit(Reason.INVALID_REQUEST, Problem("file_not_found", text, "input_file_id"))
        if file.spec.request.purpose != "batch":
            text = f"File {name_to_id(name)} is not for batches: its purpose must be `batch`."
            fault = Problem("invalid_file_purpose", text, "input_file_id")
            raise Unfit(Reason.INVALID_REQUEST, fault)
        return file.spec.request.segments

    def find_policy(self, batch: GatewayBatch) -> Policy | None:
        """What restricts the batch; None where it names no key. Unfit, NotYet."""
        base, request = self._tools.base, batch.spec.request
        if self.is_admitted(batch):
            return self._recall_policy(batch)
        account = base.accounts.get(request.account_name)
        if account is None or account.spec.suspended:
            if account is None:
                self._wait_for_sight(batch)
            problem = "is suspended" if account else "does not exist"
            raise _refuse(f"Account {request.account_name} {problem}.")
        try:
            return find_policy(base, request)
        except Unseen as unseen:
            self._wait_for_sight(batch)
            raise _refuse(str(unseen.refusal)) from None
        except Unacceptable as refusal:
            raise _refuse(str(refusal)) from None

    def _recall_policy(self, batch: GatewayBatch) -> Policy | None:
        """The limits of the key and the guardrails that an admitted batch is recorded with.

        They are held against it as they are now; what is gone restricts nothing any more.
        """
        base, request = self._tools.base, batch.spec.request
        if request.key_name is None:
            return None
        key = base.keys.get(request.key_name)
        own = key is not None and key.spec.account_name == request.account_name
        rules = read_rules(dump_spec(key)) if key is not None and own else Rules()
        found = map(base.policies.find_guardrail, request.guardrail_names or ())
        guardrails = [g for g in found if g is not None and g.account == request.account_name]
        return build_policy(request.key_name, rules, guardrails)

    def _is_there(self, file: GatewayFile) -> bool:
        """Whether clients see the File."""
        if file.metadata.deletion_timestamp is not None:
            return False
        expiry: datetime | None = None
        if file.spec.request.expiration_time is not None:
            expiry = parse_time(file.spec.request.expiration_time)
        return expiry is None or self._tools.now() < expiry

    def _wait_for_sight(self, batch: GatewayBatch) -> None:
        """Raises NotYet where what is missing may only not have been seen yet."""
        if self._tools.age(batch) < SIGHT_SECONDS:
            raise NotYet


def _refuse(text: str) -> Unfit:
    return Unfit(Reason.INVALID_REQUEST, Problem("invalid_value", text))
