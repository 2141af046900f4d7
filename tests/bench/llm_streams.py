"""Time that the gateway's own code takes for a stream of 64 chunks, in microseconds of CPU.

python -m tests.bench.llm_streams
"""

import time
from collections.abc import Callable

from gateway_core.llm.formats.chat_stream import ChatStream
from gateway_core.llm.formats.google_stream import GoogleStream
from gateway_core.llm.formats.responses_stream import ResponsesStream
from gateway_core.llm.formats.streams import LlmStream
from tests.fakes.llm_streams import chat_chunks, google_chunks, responses_events, write_frames

TEXTS = tuple(f" token{number}" for number in range(64))
ROUNDS = 200
REPEATS = 15


def measure(make: Callable[[], LlmStream], pieces: list[bytes]) -> float:
    """The least time of a stream."""
    least = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(ROUNDS):
            stream = make()
            for piece in pieces:
                stream.feed(piece)
            stream.finish()
        least = min(least, (time.process_time() - start) / ROUNDS)
    return least * 1e6


def main() -> None:
    """Print a line for each format, fed with one frame at a time and with 8 KiB at a time."""
    chat = [*(write_frames([chunk]) for chunk in chat_chunks(*TEXTS)), b"data: [DONE]\n\n"]
    events = [write_frames([event], named=True) for event in responses_events(*TEXTS)]
    google = [write_frames([chunk], line_end=b"\r\n") for chunk in google_chunks(*TEXTS)]
    cases: list[tuple[str, Callable[[], LlmStream], list[bytes]]] = [
        ("chat", lambda: ChatStream("public", include_usage=False), chat),
        ("chat with usage", lambda: ChatStream("public", include_usage=True), chat),
        ("responses", lambda: ResponsesStream("public"), events),
        ("google", lambda: GoogleStream("public"), google),
    ]
    for name, make, frames in cases:
        whole = b"".join(frames)
        large = [whole[start : start + 8192] for start in range(0, len(whole), 8192)]
        print(f"{name:16} {measure(make, frames):6.0f} {measure(make, large):6.0f}")


if __name__ == "__main__":
    main()
