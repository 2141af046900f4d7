"""The table of steps names each step of each process once, and the file that kills there."""

from pathlib import Path

import pytest

from gateway_apiserver.failpoints import NAMES as API_STEPS
from gateway_mcpserver.failpoints import NAMES as MCP_STEPS
from gateway_operator.context import NAMES as OPERATOR_STEPS
from tests.crash.steps import STEPS, When
from tests.faults.__main__ import list_parts

PROCESSES = {"api": API_STEPS, "mcp": MCP_STEPS, "operator": OPERATOR_STEPS}


@pytest.mark.parametrize(("process", "names"), PROCESSES.items(), ids=PROCESSES)
def test_every_step_of_a_process_has_a_file_that_kills_there(
    process: str, names: tuple[str, ...]
) -> None:
    killed = [step.name for step in STEPS if step.process == process]
    assert sorted(killed) == sorted(names)


@pytest.mark.parametrize("process", PROCESSES)
def test_process_is_killed_at_a_step_of_each_class_in_every_run(process: str) -> None:
    classes = {step.when for step in STEPS if step.process == process and step.is_chosen}
    assert classes == set(When)


@pytest.mark.parametrize("file", sorted({step.file for step in STEPS}))
def test_file_of_a_step_kills_at_what_the_table_says(file: str) -> None:
    constants = {"test_failpoints.py": "TASKS", "test_kills.py": "MCP"}
    name = file.rpartition("/")[2]
    constant = constants.get(name, name.removeprefix("test_").removesuffix(".py").upper())
    text = (Path(__file__).parent / file).read_text()
    processes = {step.process for step in STEPS if step.file == file}
    assert all(f'choose("{process}", {constant})' in text for process in processes)


def test_files_of_steps_are_parts_of_the_long_run() -> None:
    parts = {str(part.path) for part in list_parts()}
    assert {f"tests/crash/{step.file}" for step in STEPS} <= parts
