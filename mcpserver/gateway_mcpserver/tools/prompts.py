"""`search_prompts`: examples that admins declare as GatewayPrompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from pydantic import BaseModel, Field, ValidationError

from gateway_core.api.errors import Unavailable
from gateway_core.api.model import GatewayPrompt
from gateway_core.kube.informer import Cache
from gateway_core.tasks.operations import OPERATIONS, Modality
from gateway_core.validation import Whole
from gateway_mcpserver.tools.tool import (
    MOST_NAME_CHARACTERS,
    Arguments,
    Output,
    ReadingTool,
    ToolCall,
)

_log = structlog.get_logger(__name__)


class Prompt(BaseModel):
    """One prompt."""

    id: str
    title: str
    prompt: str
    model: str | None = Field(description="Null for any model of the action.")
    service: str
    action: str
    modality: Modality
    category: str | None
    tags: list[str]
    featured: bool


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """A prompt, and the text in which searches look."""

    prompt: Prompt
    text: str


def project_prompt(obj: Mapping[str, Any]) -> PromptRecord | None:
    """Return the record of a GatewayPrompt; None if this release cannot read it."""
    try:
        read = GatewayPrompt.model_validate(obj)
    except ValidationError as error:
        _log.warning("a prompt cannot be read", name=obj["metadata"]["name"], error=str(error))
        return None
    spec = read.spec
    operation = OPERATIONS.get(spec.action)
    prompt = Prompt(
        id=read.metadata.name,
        title=spec.title,
        prompt=spec.prompt,
        model=spec.model_id,
        service=spec.service,
        action=spec.action,
        modality=operation.modality if operation else "utility",
        category=spec.category,
        tags=spec.tags or [],
        featured=spec.featured,
    )
    words = (prompt.id, prompt.title, prompt.prompt, prompt.category or "", *prompt.tags)
    return PromptRecord(prompt, "\n".join(words).casefold())


Tag = Annotated[str, Field(max_length=MOST_NAME_CHARACTERS)]


class SearchArguments(Arguments):
    """Arguments of `search_prompts`."""

    modality: Annotated[Modality | None, Field(description="Only prompts for this.")] = None
    category: Annotated[
        str | None, Field(max_length=MOST_NAME_CHARACTERS, description="Only of this category.")
    ] = None
    tags: Annotated[
        list[Tag] | None, Field(max_length=32, description="Only prompts that have all of these.")
    ] = None
    q: Annotated[
        str | None, Field(max_length=200, description="Text that title, prompt or tags contain.")
    ] = None
    model: Annotated[
        str | None,
        Field(max_length=MOST_NAME_CHARACTERS, description="Only prompts for this model."),
    ] = None
    featured: Annotated[bool | None, Field(description="Only featured ones, or only others.")] = (
        None
    )
    page: Annotated[int, Whole, Field(ge=1, le=1_000_000)] = 1
    per_page: Annotated[int, Whole, Field(ge=1, le=100)] = 20


class Pagination(BaseModel):
    """Which part of all that was found."""

    page: int
    per_page: int
    total: int


class PromptList(Output):
    """Output of `search_prompts`."""

    count: int = Field(description="Prompts on this page.")
    pagination: Pagination
    prompts: list[Prompt]


class SearchPrompts(ReadingTool[SearchArguments]):
    """The prompts that admins have declared; featured ones first, then by title."""

    name = "search_prompts"
    title = "Search prompts"
    description = "Finds prompts that work well, to be used or adapted in create_task."
    arguments = SearchArguments
    output = PromptList

    def __init__(self, prompts: Cache[PromptRecord]) -> None:
        self._prompts = prompts

    async def run(self, given: SearchArguments, call: ToolCall) -> PromptList:
        """Return one page. Unavailable before the first list."""
        if not self._prompts.synced:
            raise Unavailable("Prompts cannot be read now.", retry_after=1)
        found = [record.prompt for _, record in self._prompts.items() if _matches(given, record)]
        found.sort(key=lambda prompt: (not prompt.featured, prompt.title, prompt.id))
        start = (given.page - 1) * given.per_page
        shown = found[start : start + given.per_page]
        pagination = Pagination(page=given.page, per_page=given.per_page, total=len(found))
        return PromptList(count=len(shown), pagination=pagination, prompts=shown)


def _matches(given: SearchArguments, record: PromptRecord) -> bool:
    prompt = record.prompt
    return (
        (given.modality is None or given.modality == prompt.modality)
        and (given.category is None or given.category == prompt.category)
        and (given.model is None or given.model == prompt.model)
        and (given.featured is None or given.featured == prompt.featured)
        and set(given.tags or ()) <= set(prompt.tags)
        and (given.q is None or given.q.casefold() in record.text)
    )
