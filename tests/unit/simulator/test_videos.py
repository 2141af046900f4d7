"""The clips: real MP4 files, small, one for each aspect ratio with and without sound."""

import struct
from itertools import product

import pytest

from gateway_simulator.jobs import Videos

SIZES = {
    "16:9": (320, 180),
    "9:16": (320, 568),
    "1:1": (320, 320),
    "4:3": (320, 240),
    "3:4": (320, 426),
}


def read_boxes(data: bytes) -> list[tuple[bytes, bytes]]:
    boxes, offset = [], 0
    while offset < len(data):
        size, name = struct.unpack_from(">I4s", data, offset)
        assert size >= 8
        boxes.append((name, data[offset + 8 : offset + size]))
        offset += size
    assert offset == len(data)
    return boxes


@pytest.mark.parametrize(("ratio", "sound"), list(product(SIZES, (True, False))))
def test_each_clip_is_a_short_mp4_that_starts_fast(ratio, sound):
    video = Videos().get(ratio, sound=sound)
    assert len(video) < 40_000
    boxes = dict(read_boxes(video))
    assert list(boxes)[:2] == [b"ftyp", b"moov"]
    assert len(boxes[b"mdat"]) > 5_000
    movie = read_boxes(boxes[b"moov"])
    scale, duration = struct.unpack_from(">II", dict(movie)[b"mvhd"], 12)
    assert 2 <= duration / scale <= 3
    tracks = [dict(read_boxes(body)) for name, body in movie if name == b"trak"]
    assert [b"vmhd" in track[b"mdia"] for track in tracks] == [True, False][: 1 + sound]
    width, height = struct.unpack_from(">II", tracks[0][b"tkhd"], 76)
    assert (width >> 16, height >> 16) == SIZES[ratio]


def test_job_gets_the_clip_it_asked_for(client, submit, poll, clock):
    videos = Videos()
    for ratio, sound in product(SIZES, (True, False)):
        job = submit(aspect_ratio=ratio, with_audio=sound)
        clock.now += 10
        content = client.get(poll(job)["outputs"][0]["url"]).content
        assert content == videos.get(ratio, sound=sound)
