"""The gateway's objects and Secrets of one namespace, as the admin's commands use them.

Made by `gateway_cli.compose`. Every change is a compare-and-set on what was read.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from gateway_cli.cluster import Object
from gateway_cli.cluster.calls import FIELD_MANAGER, MERGE_PATCH, ClusterCalls
from gateway_cli.cluster.errors import ClusterError, Conflict, NotServed, NotThere
from gateway_core.contract.names import API_VERSION
from gateway_core.contract.resource import Resource

Kind = type[Resource]
Change = dict[str, Any]

MOST_ATTEMPTS = 8
"""How often a change is decided anew because somebody else's came between."""
PAGE = 500
SUGGESTIONS = 3


class GatewayObjects:
    """Reads, makes and changes objects; refusals are ClusterErrors that say what to do."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls

    @property
    def namespace(self) -> str:
        """Where the objects are."""
        return self._calls.namespace

    async def get(self, kind: Kind, name: str) -> Object:
        """The object.

        Raises:
            NotThere: there is none; the text has names that are like it.
        """
        try:
            return await self._calls.call("GET", f"{self._path(kind)}/{quote(name, safe='')}")
        except NotThere as error:
            raise await self._describe_missing(kind, name) from error

    async def list_all(self, kind: Kind, **fields: str | None) -> list[Object]:
        """All objects whose fields are as given, e.g. `**{"spec.accountName": "acme"}`.

        A field that is None is not asked for; "" is one that is absent.
        """
        selector = ",".join(
            f"{path}={value}" for path, value in fields.items() if value is not None
        )
        query = {"limit": str(PAGE), **({"fieldSelector": selector} if selector else {})}
        found: list[Object] = []
        while True:
            page = await self._calls.call("GET", self._path(kind), query=query)
            found += page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return found
            query["continue"] = token

    async def create(self, kind: Kind, name: str, spec: Change, **metadata: Any) -> Object:
        """Makes an object. AlreadyThere, Refused."""
        body = {
            "apiVersion": API_VERSION,
            "kind": kind.kind_name,
            "metadata": {"name": name, **metadata},
            "spec": {key: value for key, value in spec.items() if value is not None},
        }
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._calls.call("POST", self._path(kind), body, query)

    async def change(
        self, kind: Kind, name: str, decide: Callable[[Object], Change | None]
    ) -> Object:
        """The object after the merge patch that `decide` makes of what was read.

        It is decided anew where the object was changed meanwhile; None changes nothing.

        Raises:
            NotThere, Refused, OutcomeUnknown: as they say.
            ClusterError: others keep changing it.
        """
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        for _ in range(MOST_ATTEMPTS):
            obj = await self.get(kind, name)
            patch = decide(obj)
            if patch is None:
                return obj
            version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
            path = f"{self._path(kind)}/{name}"
            try:
                return await self._calls.call("PATCH", path, body, query, MERGE_PATCH)
            except Conflict:
                continue
        raise ClusterError(f"{kind.kind_name} {name} is being changed by others: try again")

    async def delete(self, kind: Kind, name: str) -> None:
        """Deletes the object. NotThere."""
        await self.get(kind, name)
        await self._calls.call("DELETE", f"{self._path(kind)}/{name}")

    async def get_secret(self, name: str) -> Object:
        """A Secret. NotThere."""
        return await self._calls.call("GET", f"{self._secrets}/{quote(name, safe='')}")

    async def list_secrets(self, labels: Mapping[str, str]) -> list[Object]:
        """All Secrets that have those labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        page = await self._calls.call("GET", self._secrets, query={"labelSelector": selector})
        found: list[Object] = page["items"]
        return found

    async def create_secret(
        self, name: str, content: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        """Makes a Secret. AlreadyThere."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": dict(labels)},
            "type": "Opaque",
            "stringData": dict(content),
        }
        await self._calls.call("POST", self._secrets, body, {"fieldManager": FIELD_MANAGER})

    async def delete_secret(self, name: str) -> None:
        """Deletes a Secret. NotThere."""
        await self._calls.call("DELETE", f"{self._secrets}/{quote(name, safe='')}")

    @property
    def _secrets(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    def _path(self, kind: Kind) -> str:
        return f"/apis/{API_VERSION}/namespaces/{self.namespace}/{kind.plural}"

    async def _describe_missing(self, kind: Kind, name: str) -> ClusterError:
        text = f"there is no {kind.kind_name} {name} in namespace {self.namespace}"
        try:
            known = await self.list_all(kind)
        except NotServed as error:
            return error
        except ClusterError:
            return NotThere(text)
        return NotThere(text + _suggest(name, known))


def _suggest(name: str, known: Iterable[Object]) -> str:
    """What to try instead: names that are like it, or objects that are shown by that name."""
    shown = {obj["metadata"]["name"]: obj["spec"].get("displayName") for obj in known}
    called = [found for found, display in shown.items() if display == name]
    alike = called or difflib.get_close_matches(name, shown, SUGGESTIONS)
    if alike:
        return "; did you mean " + " or ".join(alike[:SUGGESTIONS]) + "?"
    return "" if shown else "; there is none at all: is this the right --namespace?"
