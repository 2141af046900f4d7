"""What the dashboard of the chart shows: its rows, in order; a module for those of one concern."""

from tools.panels.llm import LLM
from tools.panels.parts import Panel, Row
from tools.panels.processes import PROCESSES
from tools.panels.runs import CALLBACKS, PROVIDERS, TASKS
from tools.panels.storage import BATCHES, FILES
from tools.panels.traffic import ADMISSION, MCP, REQUESTS

__all__ = ["ROWS", "Panel", "Row"]

ROWS: tuple[Row, ...] = (
    REQUESTS,
    MCP,
    ADMISSION,
    LLM,
    TASKS,
    PROVIDERS,
    CALLBACKS,
    BATCHES,
    FILES,
    PROCESSES,
)
