"""The pages of the console for the documents, taken from a running gateway as `make pictures` does.

A change of a page that the script does not find its way on fails here, not when pictures are made.
"""

import struct

import pytest
from tools.pictures.console import SCALE, WIDTH, draw_console

pytestmark = [pytest.mark.timeout(600)]


async def test_pages_are_taken_whole_and_small():
    files = await draw_console()
    assert set(files) == {"console-overview.png", "console-task.png", "console-playground.png"}
    for name, data in files.items():
        assert data.startswith(b"\x89PNG\r\n"), name
        width, height = struct.unpack(">II", data[16:24])
        assert width == WIDTH * SCALE, name
        assert height > 1000, name
        assert len(data) < 250_000, name
