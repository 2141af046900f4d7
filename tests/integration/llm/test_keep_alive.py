"""Streams that are silent for longer than 15 s, over real processes (contract §7.2, §8.5)."""

import pytest

from tests.servers.llm_dialects import read_chat, read_google_array, read_responses

COMMENT = b": keep-alive\n\n"


@pytest.mark.timeout(120)
async def test_silent_stream_gets_the_keep_alive_of_its_dialect_and_sdks_read_on(paused):
    got = await paused.hear()
    for name, read in (("chat", read_chat), ("responses", read_responses)):
        assert got[name].count(COMMENT) == 1
        assert read(got[name]).text == "Hello"
    # an empty line between two frames
    assert got["google"].count(b"\n\n\ndata: ") == 1
    assert b":\x20keep" not in got["google"]
    assert read_google_array(got["array"]).text == "Hello"
    assert (got["openai"], got["genai"]) == ("Hello", "Hello")
