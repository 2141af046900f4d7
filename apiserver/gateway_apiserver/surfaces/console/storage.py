"""Batches and files of the account: lists, one batch with its outputs, downloads, deletion."""

from collections.abc import Mapping

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.batches.models import ENDPOINT, WINDOW
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.parts import (
    BEING_READ,
    NOTHING,
    Cell,
    Facts,
    Field,
    Form,
    Head,
    Hint,
    Links,
    Notice,
    Part,
    Region,
    Screen,
    Table,
    at,
    locate,
    number,
    numeric,
    paginate,
    show_bytes,
    show_count,
    state,
)
from gateway_apiserver.surfaces.console.rows import BatchRow
from gateway_apiserver.surfaces.console.seats import (
    Console,
    Seat,
    Section,
    Values,
    read_choice,
    read_query,
)
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.files.models import File, FileQuery, render_file
from gateway_apiserver.surfaces.models import Page
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_apiserver.surfaces.validation import validate_openai
from gateway_core.accounts.roles import Act
from gateway_core.api.ids import name_to_id
from gateway_core.files.files import DIRECT_LIMITS, SHOWN_PURPOSES, Purpose
from gateway_core.kube.row_index import RowIndex
from gateway_web.responses import Response

PER_PAGE = 20
MOST_ERRORS = 20
_OPEN = ("validating", "in_progress", "finalizing")
_TITLES: Mapping[Purpose, str] = {
    "user_data": "user_data: for prompts",
    "batch": "batch: requests of a batch",
}
_PURPOSES = [("", "Any"), *((word, word) for word in SHOWN_PURPOSES)]


class BatchPages:
    """Batches."""

    def __init__(self, console: Console, api: InnerApi, rows: RowIndex[BatchRow]) -> None:
        self._api = api
        self._rows = rows
        console.add_section(Section("Batches", "/batches"))
        one = "/batches/{batch_id}"
        console.add_page("/batches", self.show_list, "batches")
        console.add_form("/batches", self.create, "batch_create", self.show_list)
        console.add_page(one, self.show, "batch")
        console.add_form(f"{one}/cancel", self.cancel, "batch_cancel", self.show)

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """Return a page of batches, the newest first."""
        query, path = read_query(call), f"{seat.home}/batches"
        after = query.get("after", "")
        page = await self._rows.read_page(seat.account.name, after=after, limit=PER_PAGE)
        heads = (Head("Batch"), Head("State"), numeric("Done"), numeric("Failed"), Head("Created"))
        rows = []
        for row in page.rows:
            wire_id = name_to_id(row.name)
            rows.append(
                [
                    Cell(wire_id, "code", f"{path}/{wire_id}"),
                    state(row.status),
                    number(f"{show_count(row.completed)} of {show_count(row.total)}"),
                    number(show_count(row.failed)),
                    at(row.created),
                ]
            )
        empty = "There are no batches yet." if page.is_read else BEING_READ
        table = Table(
            "Batches",
            heads,
            rows,
            empty,
            more=locate(path, after=page.more) if page.more else "",
            first=path if after else "",
        )
        here = locate(path, after=after)
        parts: list[Part] = [Region([table], here, f"{seat.home}/events/batches")]
        if seat.may(Act.CREATE):
            hint = "A file of purpose batch: one moderation request in each line."
            create = Form(
                path,
                "Run the batch",
                (Field("input_file_id", "File id", required=True, hint=hint),),
                token=seat.sign(path),
                title="New batch",
                opener="New batch",
            )
            parts.insert(0, create)
        return Screen("Batches", parts)

    async def create(self, call: Call, seat: Seat, values: Values) -> Response:
        """Run the moderations of a file."""
        seat.require(Act.CREATE)
        body = {
            "input_file_id": values.get("input_file_id", "").strip(),
            "endpoint": ENDPOINT,
            "completion_window": WINDOW,
        }
        made = await self._api.write(call, seat, "POST", "/v1/batches", body)
        return redirect(f"{seat.home}/batches/{made['id']}")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one batch, its progress and its files."""
        wire_id = call.scope["path_params"]["batch_id"]
        each = await self._api.read(call, seat, f"/v1/batches/{wire_id}")
        counts = each["request_counts"]
        total = counts["total"]
        share = (counts["completed"] + counts["failed"]) / total if total else None
        items = [
            ("State", state(each["status"])),
            ("Progress", Cell(f"{counts['completed']:,} of {total:,}", share=share)),
            ("Failed lines", number(show_count(counts["failed"]))),
            ("Model", Cell(each["model"] or NOTHING)),
            ("Created", at(each["created_at"])),
            ("Begun", at(each["in_progress_at"])),
            ("Ended", at(each["completed_at"] or each["failed_at"] or each["cancelled_at"])),
            ("Must end by", at(each["expires_at"])),
        ]
        parts: list[Part] = [Facts(items)]
        errors = (each["errors"] or {}).get("data") or []
        parts += [Notice(error["message"], is_problem=True) for error in errors[:MOST_ERRORS]]
        named = (
            ("Input file", each["input_file_id"]),
            ("Output file", each["output_file_id"]),
            ("Error file", each["error_file_id"]),
        )
        parts.append(
            Links(
                [
                    (title, f"{seat.home}/files/{file_id}/content")
                    for title, file_id in named
                    if file_id
                ]
            )
        )
        path = f"{seat.home}/batches/{wire_id}"
        if each["status"] in _OPEN and seat.may(Act.CREATE):
            action = f"{path}/cancel"
            text = "Lines that are done stay, and are paid for."
            parts.append(
                Form(
                    action,
                    "Cancel the batch",
                    token=seat.sign(action),
                    text=text,
                    opener="Cancel",
                    is_danger=True,
                )
            )
        region = Region(parts, path, f"{seat.home}/events/batches")
        return Screen(wire_id, [region], back=("Batches", f"{seat.home}/batches"))

    async def cancel(self, call: Call, seat: Seat, _: Values) -> Response:
        """End it early."""
        wire_id = call.scope["path_params"]["batch_id"]
        await self._api.write(call, seat, "POST", f"/v1/batches/{wire_id}/cancel")
        return redirect(f"{seat.home}/batches/{wire_id}?done=cancelled")


class FilePages:
    """Files."""

    def __init__(self, console: Console, api: InnerApi, finder: FileFinder) -> None:
        self._api = api
        self._finder = finder
        console.add_section(Section("Files", "/files"))
        one = "/files/{file_id}"
        console.add_page("/files", self.show_list, "files")
        console.add_page(f"{one}/content", self.download, "file_content")
        console.add_form(f"{one}/delete", self.delete, "file_delete", self.show)
        upload = "/files/upload"
        console.add_form(upload, self.upload, "file_upload", self.show_list, uploads=True)
        # where the address of a refused upload is opened anew
        console.add_page(upload, self.go_to_list, "file_upload_again")
        console.add_page(one, self.show, "file")

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """Return a page of files, the newest first."""
        query, path = read_query(call), f"{seat.home}/files"
        chosen = {"purpose": read_choice(query, "purpose", SHOWN_PURPOSES)}
        asked = {"limit": PER_PAGE, "after": query.get("after"), **chosen}
        given = {name: value for name, value in asked.items() if value}
        wanted = validate_openai(FileQuery, given, code="invalid_value")
        records, has_more = await self._finder.list_files(seat.account.name, wanted, for_page=True)
        page = Page[File].of([render_file(record) for record in records], has_more=has_more)
        search = Form(
            path,
            "Show",
            (Field("purpose", "Purpose", "select", chosen["purpose"], options=_PURPOSES),),
            filters=True,
        )
        heads = (Head("Name"), Head("Id"), Head("Purpose"), numeric("Size"), Head("Created"))
        rows = [
            [
                Cell(file.filename, href=f"{path}/{file.id}"),
                Cell(file.id, "code"),
                Cell(file.purpose, "word"),
                number(show_bytes(file.bytes)),
                at(file.created_at),
            ]
            for file in page.data
        ]
        empty = "No file matches." if chosen["purpose"] else "There are no files yet."
        table = paginate(Table("Files", heads, rows, empty), path, chosen, dict(page), query)
        parts: list[Part] = [search, Region([table])]
        if seat.may(Act.CREATE):
            parts.insert(0, _offer_upload(seat))
        parts.append(Hint("Larger files are uploaded in parts, over the API: /v1/uploads."))
        return Screen("Files", parts)

    async def go_to_list(self, _: Call, seat: Seat) -> Response:
        """Lead to the list, whose form uploads a file."""
        return redirect(f"{seat.home}/files")

    async def upload(self, call: Call, seat: Seat, _: Values) -> Response:
        """Store the file of the form."""
        seat.require(Act.CREATE)
        made = await self._api.forward(call, seat, "/v1/files")
        return redirect(f"{seat.home}/files/{made['id']}?done=uploaded")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one file."""
        wire_id = call.scope["path_params"]["file_id"]
        each = await self._api.read(call, seat, f"/v1/files/{wire_id}")
        path = f"{seat.home}/files/{wire_id}"
        items = [
            ("Id", Cell(each["id"], "code")),
            ("Purpose", Cell(each["purpose"])),
            ("Size", Cell(show_bytes(each["bytes"]))),
            ("Created", at(each["created_at"])),
            ("Expires", at(each["expires_at"], otherwise="never")),
        ]
        parts: list[Part] = [Facts(items), Links([("Download", f"{path}/content")])]
        if seat.may(Act.CREATE):
            parts.append(
                Form(
                    f"{path}/delete",
                    "Delete the file",
                    token=seat.sign(f"{path}/delete"),
                    text="Its bytes are gone then. Batches that read it fail.",
                    opener="Delete",
                    is_danger=True,
                )
            )
        return Screen(each["filename"], parts, back=("Files", f"{seat.home}/files"))

    async def download(self, call: Call, seat: Seat) -> Response | None:
        """Return the file's bytes, as an attachment of no type that a browser would show."""
        wire_id = call.scope["path_params"]["file_id"]
        await self._api.send(call, seat, f"/v1/files/{wire_id}/content")
        return None

    async def delete(self, call: Call, seat: Seat, _: Values) -> Response:
        """Delete it."""
        wire_id = call.scope["path_params"]["file_id"]
        await self._api.write(call, seat, "DELETE", f"/v1/files/{wire_id}")
        return redirect(f"{seat.home}/files?done=deleted")


def _offer_upload(seat: Seat) -> Form:
    path = f"{seat.home}/files/upload"
    limits = ", ".join(
        f"{purpose} up to {show_bytes(most)}" for purpose, most in DIRECT_LIMITS.items()
    )
    return Form(
        path,
        "Upload",
        (
            Field("purpose", "Purpose", "select", options=[*_TITLES.items()]),
            Field(
                "file",
                "File",
                "file",
                hint=f"{limits}.",
                required=True,
                most=max(DIRECT_LIMITS.values()),
            ),
        ),
        token=seat.sign(path),
        title="New file",
        opener="Upload a file",
        uploads=True,
    )
