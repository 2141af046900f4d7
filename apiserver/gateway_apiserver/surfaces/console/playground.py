"""Playground: a chat, a new task, the same calls with curl and an SDK, and prices."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.inner import InnerApi, Wrong, find_wrong
from gateway_apiserver.surfaces.console.parts import (
    Cell,
    Code,
    Field,
    Head,
    Hint,
    Notice,
    Part,
    Screen,
    Table,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values
from gateway_apiserver.surfaces.console.snippets import CHAT_PATH, show_chat, show_task
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import InvalidRequest
from gateway_core.billing.price_text import describe_price
from gateway_core.billing.prices import floor_moment
from gateway_core.kube.clock import CLOCK
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.providers.price_list import Schedule, list_schedules
from gateway_core.tasks.operations import CHAT, OPERATIONS
from gateway_core.tasks.operations import Field as InputField
from gateway_web.responses import Response

MOST_MESSAGE = 8000
MOST_PROMPT = 4000
_EXAMPLES = {"urls": ["https://example.com/a"]}
_MODEL, _MESSAGE = "your-model", "your message"
_MESSAGE_FIELD = Field(
    "message", "Message", "textarea", required=True, most=MOST_MESSAGE, param="messages"
)


class PlaygroundPages:
    """Forms for both, and what takes them."""

    def __init__(
        self, console: Console, api: InnerApi, catalog: CatalogView, base_url: str
    ) -> None:
        self._api = api
        self._catalog = catalog
        self._base_url = base_url
        console.add_section(Section("Playground", "/playground", Act.CREATE))
        console.add_page("/playground", self.show, "playground")
        console.add_form("/playground/chat", self.chat, "playground_chat", self.show)
        console.add_form("/playground/task", self.create_task, "playground_task", self.show)

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return the forms of what the catalog has models for."""
        seat.require(Act.CREATE)
        return self._compose(seat, self._show_chat({}))

    async def chat(self, call: Call, seat: Seat, values: Values) -> Screen | Response | None:
        """Have a model answer: as a stream of events where the script asks for it."""
        seat.require(Act.CREATE)
        if not values.get("message", "").strip():
            raise refuse_fields({"message": ["is required"]})
        body = {
            "model": values.get("model", ""),
            "messages": [{"role": "user", "content": values.get("message", "")}],
        }
        if values.get("stream") == "true":
            await self._api.stream(call, seat, CHAT_PATH, {**body, "stream": True})
            return None
        answer = await self._api.write(call, seat, "POST", CHAT_PATH, body)
        text = answer["choices"][0]["message"].get("content") or ""
        shown = self._compose(seat, self._show_chat(values), Code("Answer", text))
        return replace(shown, keeps=True)

    async def create_task(self, call: Call, seat: Seat, values: Values) -> Screen | Response:
        """Start a task, and go to its page; or show the programs that start it."""
        seat.require(Act.CREATE)
        service, _, action = values.get("operation", "").partition("/")
        operation = self._catalog.current.find_task_operation(service, action)
        if operation is None:
            raise InvalidRequest("No model serves this operation now.")
        body = {
            field.name: value
            for field in operation.fields
            if (value := _read_value(field, values.get(field.name, ""))) is not None
        }
        path = f"/api/v1/{service}/{action}"
        if values.get("show"):
            if wrong := find_wrong(body):
                raise refuse_fields(wrong)
            missing = {
                field.name: _EXAMPLES.get(field.type, f"your {field.name}")
                for field in operation.fields
                if field.required and field.name not in body
            }
            code = show_task(self._base_url + path, {**body, **missing})
            return replace(self._compose(seat, code), keeps=True)
        key = values.get("idempotency_key", "")
        made = await self._api.write(call, seat, "POST", path, body, key=key)
        return redirect(f"{seat.home}/tasks/{made['id']}")

    def _show_chat(self, values: Values) -> list[Code]:
        model, message = values.get("model", _MODEL), values.get("message", _MESSAGE)
        return show_chat(self._base_url, model, message)

    def _compose(self, seat: Seat, code: Sequence[Part], *answer: Part) -> Screen:
        """Return the forms, an answer to the chat, and programs."""
        models = sorted(
            {
                model_id
                for (_, action), served in self._catalog.current.models.items()
                if action == CHAT.action
                for model_id in served
            }
        )
        parts: list[Part] = [Notice("No language model is in the catalog.")]
        if models:
            fields = (
                Field("model", "Language model", "select", options=[(one, one) for one in models]),
                _MESSAGE_FIELD,
            )
            path = f"{seat.home}/playground/chat"
            parts = [seat.offer(path, "Send", fields, title="Chat", streams=True)]
        parts += (*answer, *self._task_forms(seat))
        parts += [
            Hint("The account pays for what is sent here, as for any call."),
            self._tabulate_prices(),
        ]
        return Screen("Playground", [*parts, *code])

    def _tabulate_prices(self) -> Table:
        rows = [
            (Cell(entry.model_id, "code"), Cell(entry.action, "word"), Cell(_show_price(entry)))
            for entry in list_schedules(self._catalog.current, floor_moment(CLOCK.now()))
            if entry.catalog_status != "unavailable"
        ]
        heads = (Head("Model"), Head("Operation", "word"), Head("Price in dollars"))
        return Table("Prices", heads, rows, "No model is in the catalog.", is_titled=True)

    def _task_forms(self, seat: Seat) -> list[Part]:
        path = f"{seat.home}/playground/task"
        forms: list[Part] = []
        for (service, action), models in sorted(self._catalog.current.models.items()):
            operation = OPERATIONS[action]
            if not operation.makes_tasks:
                continue
            fields = [
                Field("model", "Model", "select", options=[(name, name) for name in models])
                if field.name == "model"
                else _make_control(field)
                for field in operation.fields
            ]
            hidden = (
                ("operation", f"{service}/{action}"),
                ("idempotency_key", secrets.token_urlsafe(18)),
            )
            title = f"{operation.summary} ({service})"
            form = seat.offer(
                path,
                "Start the task",
                fields,
                hidden=hidden,
                title=title,
                opener=title,
                second=("show", "Show the code"),
            )
            forms.append(form)
        return forms


def _show_price(entry: Schedule) -> str:
    if entry.price is None:
        return "none now"
    return "free" if entry.pricing_status == "free" else describe_price(entry.price)


def _make_control(field: InputField) -> Field:
    label = field.name.replace("_", " ").capitalize().replace(" url", " URL")
    if field.type == "boolean":
        options = [("", "Default"), ("true", "Yes"), ("false", "No")]
        return Field(field.name, label, "select", hint=field.description, options=options)
    if field.type == "choice":
        options = [("", "Default"), *((value, value) for value in field.values)]
        return Field(field.name, label, "select", hint=field.description, options=options)
    if field.type == "integer":
        return Field(field.name, label, "number", hint=field.description, required=field.required)
    if field.type == "urls":
        hint = f"{field.description} One address in each line."
        return Field(
            field.name,
            label,
            "textarea",
            hint=hint,
            required=field.required,
            most=MOST_PROMPT,
            items=("address", "addresses"),
        )
    kind = "textarea" if field.name == "prompt" else "text"
    return Field(field.name, label, kind, "", field.description, (), field.required, MOST_PROMPT)


def _read_value(field: InputField, text: str) -> Any:
    """Return the form's value of a field; None where it was left empty."""
    if not text.strip():
        return None
    if field.type == "boolean":
        return text == "true"
    if field.type == "urls":
        return [line.strip() for line in text.splitlines() if line.strip()]
    if field.type == "integer":
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            return Wrong("must be a whole number")
        return int(text)
    return text
