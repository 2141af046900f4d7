"""The calls a provider resource declares, compiled once and filled in for each job.

Used by `http`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from yarl import URL

from gateway_core.contract.provider import Header, HttpProvider
from gateway_core.domain.expressions import Expression, prune_nulls
from gateway_core.domain.providers import JOB, LOOKUP, RESULT, SUBMIT_PATH, Request
from gateway_core.domain.templates import PathTemplate, fill_header


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is ready to be sent."""

    method: str
    url: URL
    headers: dict[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A request as declared, its parts compiled."""

    method: str
    base: str
    path: PathTemplate
    headers: Mapping[str, str]
    body: Expression | None

    def fill(
        self, values: Mapping[str, str], document: Mapping[str, Any] | None = None, **extra: str
    ) -> Call:
        """The request for `values` in the path and `document` (else the same values) in the body.

        `extra` are further headers. Raises ValueError or TypeError where a value does not fit.
        """
        url = URL(self.base + self.path.fill(values), encoded=True)
        body = None
        headers = {**self.headers, **extra}
        if self.body is not None:
            content = prune_nulls(self.body.evaluate(values if document is None else document))
            if content is None:
                raise ValueError("the body came out as null")
            body = orjson.dumps(content)
            headers = {"content-type": "application/json", **headers}
        return Call(self.method, url, headers, body)


@dataclass(frozen=True, slots=True)
class CallPlans:
    """All calls of one provider."""

    submit: CallPlan
    poll: CallPlan
    result: CallPlan | None
    cancel: CallPlan | None
    lookup: CallPlan | None


def compile_calls(http: HttpProvider, credential: str | None) -> CallPlans:
    """The provider's calls. Raises ValueError for an expression or template that is not good."""
    base = http.base_url.rstrip("/")
    common = fill_headers(http.headers, credential)

    def plan(request: Request, names: Collection[str]) -> CallPlan:
        return CallPlan(
            request.method,
            base,
            PathTemplate(request.path, names),
            {**common, **fill_headers(request.headers, credential)},
            None if request.body is None else Expression(request.body),
        )

    return CallPlans(
        submit=plan(http.submit, SUBMIT_PATH),
        poll=plan(http.poll, JOB),
        result=plan(http.result, RESULT) if http.result else None,
        cancel=plan(http.cancel, JOB) if http.cancel else None,
        lookup=plan(http.lookup, LOOKUP) if http.lookup else None,
    )


def fill_headers(headers: list[Header] | None, credential: str | None) -> dict[str, str]:
    """Headers by lower-case name. Raises TemplateError as `fill_header` does."""
    return {header.name.lower(): fill_header(header.value, credential) for header in headers or ()}


def decode_credential(credential: bytes | str | None) -> str | None:
    """The credential as text. Raises ValueError for bytes that are none."""
    if isinstance(credential, bytes):
        try:
            credential = credential.decode()
        except UnicodeDecodeError:
            raise ValueError("the credential is not UTF-8 text") from None
    return credential.strip() or None if credential else None
