"""Output of commands: one result on standard output, notes and errors on standard error.

A result is a document of plain values, the same for people and scripts; a table is one way to see
it. JSON and YAML hold it whole, without markup, and their fields are kept from release to release.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway_cli.progress import plain_options

Format = Literal["table", "json", "yaml"]
Output = Annotated[Format, typer.Option("--output", "-o", help="How the result is printed.")]

Document = Mapping[str, Any]
Secret = tuple[str | None, Document, Sequence[str]]
"""A secret that is shown once, the document of the result, and notes for people."""
Done = tuple[str, Document]
"""A sentence for people that says what was done, and the document of the result."""
ANY_WIDTH = 4000
"""Columns of an output that is no terminal: no line is wrapped or cut."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or a line of a description."""

    title: str
    read: str | Callable[[Document], Any]
    right: bool = False

    def show(self, document: Document) -> str:
        """Return the cell's text: empty where there is nothing."""
        value = document.get(self.read) if isinstance(self.read, str) else self.read(document)
        return show_value(value)


def show_value(value: Any) -> str:
    """Return a value for people."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1: `1 task`, `12,000 tasks`."""
    return f"{number:,} {noun if number == 1 else pluralize(noun)}"


def pluralize(noun: str) -> str:
    """Return the plural of a noun: `tasks`, `batches`."""
    return noun + ("es" if noun.endswith(("s", "ch")) else "s")


def print_list(
    documents: Sequence[Document],
    columns: Sequence[Column],
    output: Format,
    *,
    noun: str,
    footer: Document | None = None,
) -> None:
    """Print many documents; `{"items": […]}` for scripts, with `totals` if there is a footer."""
    if output != "table":
        totals = {} if footer is None else {"totals": footer}
        print_data({"items": list(documents), **totals}, output)
    elif documents:
        RowPrinter(columns, output).print(documents, footer)
    else:
        print_note(f"no {noun}")


class RowPrinter:
    """Prints rows as they come, like `kubectl get --watch`: columns as wide as the first rows.

    For scripts one document a line (YAML: one a part).
    """

    def __init__(self, columns: Sequence[Column], output: Format) -> None:
        self._columns = columns
        self._output = output
        self._widths: list[int] | None = None

    def print(self, documents: Sequence[Document], footer: Document | None = None) -> None:
        """Print these rows, the titles before the first of all, the footer after them."""
        if self._output == "json":
            for document in documents:
                print_plain(json.dumps(document, ensure_ascii=False))
        elif self._output == "yaml":
            for document in documents:
                sys.stdout.write("---\n")
                print_data(document, "yaml")
        else:
            rows = [[column.show(document) for column in self._columns] for document in documents]
            titles = [column.title for column in self._columns]
            totals = [column.show(footer) for column in self._columns] if footer else []
            if self._widths is None:
                whole = [titles, *rows, *([totals] if totals else [])]
                self._widths = [max(map(cell_len, column)) for column in zip(*whole, strict=True)]
                self._print_row(titles, self._widths, "bold")
            for row in rows:
                self._print_row(row, self._widths)
            if totals:
                self._print_row(totals, self._widths, "bold")
        sys.stdout.flush()

    def _print_row(self, row: Sequence[str], widths: Sequence[int], style: str = "") -> None:
        line = []
        for column, text, width in zip(self._columns, row, widths, strict=True):
            space = " " * (width - cell_len(text))
            line.append(space + text if column.right else text + space)
        make_console(sys.stdout).print(Text("  ".join(line), style), soft_wrap=True)


def print_one(document: Document, lines: Sequence[Column], output: Format) -> None:
    """Print one document: whole for scripts, the lines that say something for people."""
    if output != "table":
        print_data(document, output)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for line in lines:
        text = line.show(document)
        if text:
            table.add_row(line.title, Text(text))
    make_console(sys.stdout).print(table)


def list_lines(document: Document, show: Mapping[str, Callable[[Document], Any]]) -> list[Column]:
    """Return the lines of one document for people; `show` are fields that they see in another form.

    Micro-dollars are left out where the same is there in dollars.
    """
    names = [
        name
        for name in document
        if name.removesuffix("_micros") not in document or (not name.endswith("_micros"))
    ]
    return [Column(name.replace("_", " ").capitalize(), show.get(name, name)) for name in names]


def print_done(text: str, document: Document, output: Format) -> None:
    """Print what was done; for scripts the document of the result."""
    if output == "table":
        make_console(sys.stdout).print(Text(f"✓ {text}"), soft_wrap=True)
    else:
        print_data(document, output)


def show_one(lines: Sequence[Column]) -> Callable[[Document, Format], None]:
    """Return a printer of one document."""
    return lambda document, output: print_one(document, lines, output)


def show_list(columns: Sequence[Column], noun: str) -> Callable[[Sequence[Document], Format], None]:
    """Return a printer of many documents."""
    return lambda documents, output: print_list(documents, columns, output, noun=noun)


def show_done(result: Done, output: Format) -> None:
    """Print what was done."""
    print_done(*result, output)


def show_secret(result: Secret, output: Format) -> None:
    """Print a secret alone for `$(…)`, and its notes; for scripts the document."""
    secret, document, notes = result
    if output != "table":
        print_data(document, output)
        return
    if secret is not None:
        print_plain(secret)
    for note in notes:
        print_note(note)


def print_plain(text: str) -> None:
    """Print `text` alone, for `$(…)`."""
    sys.stdout.write(text + "\n")


def print_note(text: str) -> None:
    """Print a note beside the result, on standard error."""
    make_console(sys.stderr).print(Text(text), soft_wrap=True)


def clear_screen() -> None:
    """Clear the terminal, for a table that is printed again."""
    sys.stdout.write("\x1b[H\x1b[2J\x1b[3J")


def print_error(text: str) -> None:
    """Print what is wrong and what to do, on standard error."""
    make_console(sys.stderr).print(Text(f"✗ {text}", style="red"), soft_wrap=True)


def print_data(document: Any, output: Format) -> None:
    """Print plain values as JSON or YAML, without markup."""
    if output == "yaml":
        import yaml

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    else:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(text)


def make_console(file: Any) -> Console:
    """Return a console that cuts nothing off where it is read by a program."""
    width = None if file.isatty() else ANY_WIDTH
    return Console(file=file, width=width, highlight=False, **plain_options())
