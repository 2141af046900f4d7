"""The Kubernetes API for admins, for the installation and for the local run.

A layer over the package `kubernetes`: it says who changes an object, explains refusals, and waits
for what a fresh installation is lacking.
"""

import asyncio
import contextlib
import difflib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateway_cli.cluster import FIELD_MANAGER
from gateway_cli.cluster.errors import (
    BeingRemoved,
    ClusterError,
    Conflict,
    NotServed,
    NotThere,
    Unreachable,
    explain_refusal,
    explain_silence,
)
from gateway_cli.cluster.gateways import NoGateway, require_gateway
from gateway_cli.session import SELECTED, Selection, exit_on_error
from gateway_core.api.ids import API_VERSION, GROUP
from gateway_core.api.resource import Object, Resource, skeleton
from gateway_core.failures import describe_failure
from gateway_core.kube.errors import KubernetesError, VersionExpired

if TYPE_CHECKING:
    from gateway_cli.cluster.api import Api

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
MOST_ATTEMPTS = 8
"""Attempts at a change while other writers change the same object."""
CALL_SECONDS = 20.0
WATCH_SECONDS = 240
PAUSE_SECONDS = 0.2
SUGGESTIONS = 3
PAGE = 200
"""Objects in a page of a list; the largest have 200 KB each."""
_PASSING = (BeingRemoved, Conflict, NotServed, NotThere, Unreachable)
"""Refusals that may pass while an installation is starting, or being removed."""
_STRICT = {"field_manager": FIELD_MANAGER, "field_validation": "Strict"}

Kind = type[Resource]
Change = dict[str, Any]
Result = TypeVar("Result")


@asynccontextmanager
async def open_cluster(
    namespace: str | None,
    *,
    patience: float = 0.0,
    call_seconds: float = CALL_SECONDS,
    kubeconfig: Path | None = None,
) -> AsyncIterator["Cluster"]:
    """Open the cluster of `kubeconfig`, else the one selected; `patience` as in `Cluster`.

    Raises:
        ClusterError: no configuration names a cluster, or its credentials cannot be read.
    """
    # the package costs half a second, which help and completion of commands do without
    from gateway_cli.cluster.api import Api
    from gateway_core.kube.connection import NoCluster
    from gateway_core.kube.kubeconfig import Overrides, find_connection

    selected = Selection(kubeconfig) if kubeconfig else SELECTED.get()
    try:
        chosen = (selected.kubeconfig, Overrides(**selected.overrides))
        connection = await asyncio.to_thread(find_connection, *chosen)
        api = await asyncio.to_thread(Api, connection, selected.call_seconds or call_seconds)
    except NoCluster as error:
        raise ClusterError(str(error)) from error
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"the cluster's credentials cannot be used: {describe_failure(error)}"
        ) from error
    namespace = namespace or selected.namespace or connection.namespace or "default"
    try:
        yield Cluster(api, namespace, connection.server, patience)
    finally:
        api.close()


class Cluster:
    """Objects of one namespace; refusals are ClusterErrors that say what to do.

    `retry` repeats for `patience` seconds what may yet succeed: the API server may be starting, and
    a kind be served a moment after its CRD is accepted.
    """

    def __init__(self, api: "Api", namespace: str, server: str, patience: float = 0.0) -> None:
        self._api = api
        self.namespace = namespace
        self.server = server
        self._patience = patience
        self.resources: dict[tuple[str, str], tuple[str, bool]] = {}
        """Plurals of the kinds seen in discovery, and whether they are namespaced."""

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Return the answer to one request. ClusterError."""
        with _explaining(f"{method} {path}"):
            return await self._api.call(method, path, body, query, content_type)

    async def read_text(self, path: str) -> str:
        """Return the text at a path of the API server, such as a pod's proxy. ClusterError."""
        with _explaining(f"GET {path}"):
            return await self._api.read_text(path)

    async def _run(self, work: Callable[..., Any], *place: Any, **options: Any) -> Object:
        """Return the object or list that a method of the package returns. ClusterError."""
        with _explaining(f"{work.__name__.partition('_')[0]} {place[3]}"):
            return await self._api.run(work, *place, **options)

    def _place(self, kind: Kind) -> tuple[str, str, str, str]:
        return GROUP, API_VERSION.partition("/")[2], self.namespace, kind.plural

    async def get(self, kind: Kind, name: str) -> Object:
        """Return the object. NotThere if there is none; the text has names that are like it."""
        try:
            return await self._run(
                self._api.objects.get_namespaced_custom_object, *self._place(kind), name
            )
        except NotThere as error:
            raise await self._describe_missing(kind, name) from error

    async def list_all(self, kind: Kind, labels: str = "", **fields: str | None) -> list[Object]:
        """Return all objects whose fields are as given, e.g. `**{"spec.accountName": "acme"}`.

        A field that is None is not asked for; "" is one that is absent. `labels` is a selector.
        """
        return (await self._list(kind, _select(fields), labels=labels))[0]

    async def follow(
        self, kind: Kind, labels: str = "", **fields: str | None
    ) -> AsyncIterator[tuple[list[Object], list[str]]]:
        """Yield all such objects, then each change as it comes, without end.

        A step is the objects that are new or changed, and the names of those that no longer match.
        An object may be repeated without a change.
        """
        selector = _select(fields)
        while True:
            found, version = await self._list(kind, selector, labels=labels)
            yield found, []
            with _explaining(f"watch {kind.plural}"), contextlib.suppress(VersionExpired):
                while True:
                    async for event in self._api.watch(
                        *self._place(kind),
                        seconds=WATCH_SECONDS,
                        resource_version=version,
                        field_selector=selector,
                        label_selector=labels,
                    ):
                        meta = event["object"]["metadata"]
                        version = meta["resourceVersion"]
                        if event["type"] == "DELETED":
                            yield [], [meta["name"]]
                        elif event["type"] != "BOOKMARK":
                            yield [event["object"]], []

    async def list_moment(self, kinds: Iterable[Kind]) -> list[Object]:
        """Return all objects of these kinds as they were at one moment."""
        found: list[Object] = []
        version = ""
        for kind in kinds:
            listed, version = await self._list(kind, "", version)
            found += listed
        return found

    async def _list(
        self, kind: Kind, selector: str, at_version: str = "", labels: str = ""
    ) -> tuple[list[Object], str]:
        """Return all objects, and the resourceVersion of the list."""
        found: list[Object] = []
        asked = {"field_selector": selector, "label_selector": labels, "limit": PAGE}
        options: dict[str, Any] = asked
        if at_version:
            options = asked | {"resource_version": at_version, "resource_version_match": "Exact"}
        while True:
            listed = await self._run(
                self._api.objects.list_namespaced_custom_object, *self._place(kind), **options
            )
            found += listed["items"]
            token = listed["metadata"].get("continue")
            if not token:
                return found, listed["metadata"]["resourceVersion"]
            # the token names the version
            options = {**asked, "_continue": token}

    async def create(self, kind: Kind, name: str, spec: Change, **metadata: Any) -> Object:
        """Create an object; fields of `spec` that are None are left out. AlreadyThere."""
        given = {"spec": {key: value for key, value in spec.items() if value is not None}}
        head = skeleton(kind, name, **metadata)
        try:
            return await self._run(
                self._api.objects.create_namespaced_custom_object,
                *self._place(kind),
                head | given,
                **_STRICT,
            )
        except NotThere:
            # there is no such namespace
            await require_gateway(self)
            raise

    async def change(
        self, kind: Kind, name: str, decide: Callable[[Object], Change | None]
    ) -> Object:
        """Return the object after the merge patch that `decide` makes of what was read.

        Compare-and-set: it is decided anew where another writer changed the object meanwhile. None
        changes nothing.

        Raises:
            NotThere, OutcomeUnknown: as they say.
            Conflict: others keep changing it.
        """

        async def attempt() -> Object:
            obj = await self.get(kind, name)
            patch = decide(obj)
            if patch is None:
                return obj
            version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
            return await self._run(
                self._api.objects.patch_namespaced_custom_object,
                *self._place(kind),
                name,
                body,
                **_STRICT,
            )

        return await retry_conflicts(f"{kind.kind_name} {name}", attempt)

    async def patch_status(self, kind: Kind, name: str, status: Change) -> Object:
        """Merge `status` into the object's status. Concurrent writes of other fields stay."""
        return await self._run(
            self._api.objects.patch_namespaced_custom_object_status,
            *self._place(kind),
            name,
            {"status": status},
            **_STRICT,
        )

    async def delete(self, kind: Kind, name: str) -> None:
        """Delete the object. NotThere."""
        await self.get(kind, name)
        await self._run(self._api.objects.delete_namespaced_custom_object, *self._place(kind), name)

    async def retry(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `work`, repeated while its refusal may pass."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return await work()
            except _PASSING:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    async def _describe_missing(self, kind: Kind, name: str) -> ClusterError:
        text = f"there is no {kind.kind_name} {name} in namespace {self.namespace}"
        try:
            known = await self.list_all(kind)
            if not known:
                await require_gateway(self)
        except NotServed as error:
            return error
        except NoGateway as error:
            return NotThere(f"{text}, and no gateway; {error.where}")
        except ClusterError:
            return NotThere(text)
        return NotThere(text + _suggest(name, known))


def _select(fields: Mapping[str, str | None]) -> str:
    """Return the field selector; a field that is None is not asked for."""
    return ",".join(f"{path}={value}" for path, value in fields.items() if value is not None)


def on_cluster(
    namespace: str | None,
    work: Callable[[Cluster], Awaitable[Result]],
    *,
    interrupted: str | None = None,
) -> Result:
    """Run `work` on the selected cluster; a CommandError ends the command.

    `interrupted`: the note after Ctrl-C, as of `exit_on_error`.
    """

    async def run() -> Result:
        async with open_cluster(namespace) as cluster:
            return await work(cluster)

    with exit_on_error(interrupted=interrupted):
        return asyncio.run(run())


async def retry_conflicts(what: str, attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Return the result of `attempt` (read, decide, write) once no other writer comes between."""
    for _ in range(MOST_ATTEMPTS):
        try:
            return await attempt()
        except Conflict:
            continue
    raise Conflict(f"{what} is being changed by others: try again")


@contextmanager
def _explaining(call: str) -> Iterator[None]:
    try:
        yield
    except KubernetesError as error:
        raise explain_refusal(error, call) from error
    except ValueError as error:
        # the body is no JSON: something else than an API server answers there
        raise Unreachable(explain_silence(error, call)) from error


def _suggest(name: str, known: Iterable[Object]) -> str:
    """Return suggestions: similar names, or objects whose display name it is."""
    shown = {obj["metadata"]["name"]: obj["spec"].get("displayName") for obj in known}
    called = [found for found, display in shown.items() if display == name]
    alike = called or difflib.get_close_matches(name, shown, SUGGESTIONS)
    if alike:
        return "; did you mean " + " or ".join(alike[:SUGGESTIONS]) + "?"
    return "" if shown else "; there is none at all"
