"""Calls of the Kubernetes API over kubectl credentials; `gateway_cli.compose` opens them."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from gateway_cli.cluster.errors import Unreachable, read_refusal

FIELD_MANAGER = "gatewayctl"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

Object = dict[str, Any]


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
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            async with self._session.request(
                method, path, params=query, json=body, headers=headers
            ) as response:
                answer: Object = await response.json(content_type=None)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Unreachable(
                f"the Kubernetes API does not answer {method} {path}"
                f" ({error or type(error).__name__}). Is this the right --kubeconfig and"
                " --context, and is the cluster up?"
            ) from error
        if status < 300:
            return answer
        reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
        raise read_refusal(f"{method} {path}", status, reason, message)
