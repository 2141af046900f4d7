"""Calls of the Kubernetes API over kubectl credentials; `gateway_cli.compose` opens them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from gateway_cli.cluster import Object
from gateway_cli.cluster.errors import OutcomeUnknown, Unreachable, read_refusal

FIELD_MANAGER = "gatewayctl"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

ATTEMPTS = 5
PAUSE_SECONDS = 1.0
"""A call that the API server is too busy for has done nothing, and is repeated as often."""


class ClusterCalls:
    """One cluster, with one namespace for objects that name none."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str) -> None:
        self._session = session
        self.namespace = namespace

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """The answer to one request.

        Raises:
            ClusterError: the subclass tells what kind of refusal it is.
        """
        for _ in range(1, ATTEMPTS):
            status, answer = await self._send(method, path, body, query, content_type)
            if status != 429:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            status, answer = await self._send(method, path, body, query, content_type)
        if status < 300:
            return answer
        reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
        raise read_refusal(f"{method} {path}", status, reason, message)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        content_type: str,
    ) -> tuple[int, Object]:
        """Status and body of the answer. Unreachable, OutcomeUnknown."""
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            async with self._session.request(
                method, path, params=query, json=body, headers=headers
            ) as response:
                return response.status, await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            unsent = method == "GET" or isinstance(error, aiohttp.ClientConnectorError)
            raise (Unreachable if unsent else OutcomeUnknown)(
                f"the Kubernetes API does not answer {method} {path}"
                f" ({error or type(error).__name__}). Is this the right --kubeconfig and"
                " --context, and is the cluster up?"
            ) from error
