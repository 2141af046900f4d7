"""Which tests stay in one worker of pytest-xdist, and in which order: for `tests/conftest.py`."""

from xdist.scheduler.loadscope import LoadScopeScheduling

ONE_SERVER = ("integration", "callbacks", "conformance")
"""Folders whose tests share one running gateway, and so one worker."""
LONGEST_FIRST = ("integration",)
"""Folders whose groups take longest: begun last, one would run on when the others have ended."""
SHORTEST_LAST = ("conformance", "ports", "crd", "chart", "cli", "documents", "unit")
"""Folders whose groups are short, in order: the last to end then is a short one."""


class GroupScheduling(LoadScopeScheduling):
    """Keeps the tests of a group in one worker, whose servers are started once then.

    A scheduler of our own: the groups of `--dist=loadgroup` go by a suffix of the node's id, which
    pytest-xdist writes where pytest does not read it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return name_group(nodeid)


def name_group(nodeid: str) -> str:
    """The group of a test, `tests/FOLDER/FILE.py::NAME`: FOLDER/FILE, or its folder."""
    path = nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
    folder = path.partition("/")[0]
    return folder if folder in ONE_SERVER else path


def rank(nodeid: str) -> tuple[int, str]:
    """What groups are sorted by."""
    group = name_group(nodeid)
    folder = group.partition("/")[0]
    if folder in LONGEST_FIRST:
        return -1, group
    return SHORTEST_LAST.index(folder) + 1 if folder in SHORTEST_LAST else 0, group
