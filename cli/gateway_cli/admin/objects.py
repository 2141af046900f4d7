"""Objects of one kind as their commands list, show, change and delete them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.output import Column, Document, Format, print_done, print_list, print_one
from gateway_core.api.resource import Object, Resource

Patch = dict[str, Any]


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

    def delete(self, name: str, namespace: str | None, output: Format) -> None:
        """Deletes an object and says so."""
        on_cluster(namespace, lambda cluster: cluster.delete(self.kind, name))
        document = {"name": name, "deleted": True}
        print_done(f"{self.word} {name} is deleted", document, output)
