"""Which job of a look-up's answer is the one that was asked for; used by `http`.

A provider that does not filter would otherwise have a task take over the job of another account.
"""

from typing import Any

from gateway_core.adapters.upstreams.answers import read_job_id
from gateway_core.contract.provider import LookupRequest
from gateway_core.domain.expressions import Expression, ExpressionError
from gateway_core.ports.upstream import UpstreamUnclear

_SHAPE = "The provider's answer has another shape than it declares."


class JobFinder:
    """Reads the answers to one provider's look-up."""

    def __init__(self, lookup: LookupRequest) -> None:
        self._jobs = Expression(lookup.jobs) if lookup.jobs else None
        self._job_id = Expression(lookup.job_id)
        self._reference = Expression(lookup.reference) if lookup.reference else None

    def find(self, document: Any, reference: str) -> str | None:
        """The id of the job submitted under `reference`, None if there is none in the answer.

        Raises UpstreamUnclear for an answer of another shape, and for one that should hold this job
        alone and holds another's.
        """
        if self._jobs is None:
            job_id = _evaluate(self._job_id, document)
            if job_id is None:
                return None
            if not self._is_meant(document, reference):
                raise UpstreamUnclear("The provider answered about another job.")
            return read_job_id(job_id)
        jobs = _evaluate(self._jobs, document)
        if jobs is None:
            return None
        if not isinstance(jobs, list):
            raise UpstreamUnclear(_SHAPE)
        for job in jobs:
            job_id = _evaluate(self._job_id, job)
            if job_id is not None and self._is_meant(job, reference):
                return read_job_id(job_id)
        return None

    def _is_meant(self, document: Any, reference: str) -> bool:
        return self._reference is None or _evaluate(self._reference, document) == reference


def _evaluate(expression: Expression, document: Any) -> Any:
    try:
        return expression.evaluate(document)
    except ExpressionError as error:
        raise UpstreamUnclear(_SHAPE) from error
