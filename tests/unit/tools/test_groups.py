"""What shares servers stays in one worker; all else is spread."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.groups import GroupScheduling, name_group, rank

IDS = [
    "tests/crash/accounts/test_keys.py::test_one",
    "tests/crash/accounts/test_keys.py::test_two[a@b::c]",
    "tests/integration/tasks/test_reads.py::test_one",
    "tests/crash/operators/test_shards.py::test_one",
    "tests/integration/requests/test_rates.py::test_one",
]


class Worker:
    """What the scheduler knows of one."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += [IDS[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def spread(log: Any) -> list[Worker]:
    """Has all tests given to two workers that are ready for the next as soon as they have one."""
    options = {"tx": ["2*popen"], "loadscopereorder": False}
    config: Any = SimpleNamespace(getvalue=options.get, option=SimpleNamespace(**options))
    scheduling, workers = GroupScheduling(config, log), [Worker(), Worker()]
    for worker in workers:
        node: Any = worker
        scheduling.add_node(node)
        scheduling.add_node_collection(node, IDS)
    scheduling.schedule()
    return workers


def test_a_group_is_given_to_one_worker_whole() -> None:
    class Log:
        def __getattr__(self, name: str) -> Any:
            return Log()

        def __call__(self, *_: object) -> None:
            """Says nothing."""

    sent = [worker.sent for worker in spread(Log())]
    assert sorted([*sent[0], *sent[1]]) == sorted(IDS)
    groups = [{name_group(nodeid) for nodeid in ids} for ids in sent]
    assert all(groups)
    assert not groups[0] & groups[1]


def test_the_id_that_pytest_gives_a_test_names_its_group(request: pytest.FixtureRequest) -> None:
    assert name_group(request.node.nodeid) == "unit/tools/test_groups"


def test_long_groups_come_first_and_short_ones_last() -> None:
    folders = ("unit", "crash", "ports", "integration")
    ids = [f"tests/{folder}/test_x.py::test_y" for folder in folders]
    assert sorted(ids, key=rank) == [ids[3], ids[1], ids[2], ids[0]]
