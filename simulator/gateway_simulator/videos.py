"""The MP4 files under `clips/`, which every job's output is one of; used by `routes`.

`tools/make_clips.sh` draws them. They last two and a half seconds, whatever a job asked for.
"""

from importlib.resources import files
from itertools import product
from typing import get_args

from gateway_simulator.jobs import AspectRatio


class Videos:
    """The clips, read into memory once (a quarter of a megabyte)."""

    def __init__(self) -> None:
        folder = files("gateway_simulator") / "clips"
        self._clips = {
            (ratio, sound): (folder / _name(ratio, sound=sound)).read_bytes()
            for ratio, sound in product(get_args(AspectRatio), (True, False))
        }

    def get(self, ratio: AspectRatio, *, sound: bool) -> bytes:
        """Return the clip of an aspect ratio, with or without sound."""
        return self._clips[ratio, sound]


def _name(ratio: str, *, sound: bool) -> str:
    return f"{ratio.replace(':', 'x')}-{'audio' if sound else 'silent'}.mp4"
