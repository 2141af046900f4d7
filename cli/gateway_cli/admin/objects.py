"""Objects of one kind as their commands list, show, change and delete them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import AlreadyThere, explain_stay, refuse_removed
from gateway_cli.output import Column, Document, Format, print_done, print_list, print_one
from gateway_cli.progress import Reporter
from gateway_cli.session import EXIT_UNDER_WAY, CommandError
from gateway_core.api.resource import Object, Resource

Patch = dict[str, Any]

WAIT_SECONDS = 300.0
PAUSE_SECONDS = 0.5


class StillThere(CommandError):
    """A deleted object is there after `WAIT_SECONDS`."""

    exit_code = EXIT_UNDER_WAY


@dataclass(frozen=True, slots=True)
class KindView:
    """A kind: its word in the texts, its document, its columns in a list and its lines alone."""

    kind: type[Resource]
    word: str
    describe: Callable[[Object], Document]
    columns: Sequence[Column]
    lines: Sequence[Column]

    def print_all(self, namespace: str | None, output: Format, **fields: str | None) -> None:
        """Prints the objects whose fields are as given; see `Cluster.list_all`."""
        found = on_cluster(namespace, lambda cluster: cluster.list_all(self.kind, **fields))
        documents = [self.describe(obj) for obj in found]
        print_list(documents, self.columns, output, noun=f"{self.word}s")

    def print_one(
        self,
        name: str,
        namespace: str | None,
        output: Format,
        complete: Callable[[Cluster, Object], Awaitable[Object]] | None = None,
    ) -> None:
        """Prints one object, after `complete` has brought its status up to date."""

        async def read(cluster: Cluster) -> Object:
            obj = await cluster.get(self.kind, name)
            return await complete(cluster, obj) if complete else obj

        print_one(self.describe(on_cluster(namespace, read)), self.lines, output)

    def change(
        self,
        name: str,
        patch: Patch | Callable[[Object], Patch | None],
        text: str | Callable[[Document], str],
        namespace: str | None,
        output: Format,
    ) -> None:
        """Changes fields of an object and prints what it is now; null takes a field out."""
        decide = patch if callable(patch) else lambda _: patch
        self.print_changed(
            on_cluster(namespace, lambda cluster: cluster.change(self.kind, name, decide)),
            text,
            output,
        )

    def print_changed(
        self, obj: Object, text: str | Callable[[Document], str], output: Format
    ) -> None:
        """Prints what was done to the object; for scripts its document after the change."""
        document = self.describe(obj)
        done = text(document) if callable(text) else text
        print_done(f"{self.word} {document['name']} {done}", document, output)

    async def create(self, cluster: Cluster, name: str, spec: Patch) -> Object:
        """Makes an object. AlreadyThere; BeingRemoved, with what keeps the one of its name."""
        try:
            return await cluster.create(self.kind, name, spec)
        except AlreadyThere:
            refuse_removed(await cluster.get(self.kind, name))
            raise

    def delete(self, name: str, namespace: str | None, output: Format) -> None:
        """Deletes an object, waits until it is gone, and says so."""

        async def run(cluster: Cluster) -> None:
            await cluster.delete(self.kind, name)
            obj = await self._find(cluster, name)
            deadline = time.monotonic() + WAIT_SECONDS
            if obj is None or not obj["metadata"].get("deletionTimestamp"):
                return
            async with Reporter.on_stderr().stage(f"removing what belongs to {self.word} {name}"):
                while obj is not None and obj["metadata"].get("deletionTimestamp"):
                    if time.monotonic() > deadline:
                        text = f"{self.word} {name} is still there: {explain_stay(obj)}"
                        raise StillThere(f"{text}. The operator goes on, and removes it then")
                    await asyncio.sleep(PAUSE_SECONDS)
                    obj = await self._find(cluster, name)

        note = "the deletion goes on without this command"
        on_cluster(namespace, run, interrupted=note)
        document = {"name": name, "deleted": True}
        print_done(f"{self.word} {name} is deleted", document, output)

    async def _find(self, cluster: Cluster, name: str) -> Object | None:
        found = await cluster.list_all(self.kind, **{"metadata.name": name})
        return found[0] if found else None
