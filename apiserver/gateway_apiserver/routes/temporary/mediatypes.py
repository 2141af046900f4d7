"""What a file is, by its first bytes and its name: told to clients, and trusted for nothing."""

import mimetypes

import puremagic

HEAD_BYTES = 4096
UNKNOWN = "application/octet-stream"
_SURE = 0.4
"""Of puremagic's confidence: a magic number of four bytes or more, or a shorter one that fits the
name."""


def find_media_type(head: bytes, filename: str) -> str:
    """The type of a file that begins with `head`."""
    try:
        matches = puremagic.magic_string(head, filename)
    except (puremagic.PureError, ValueError):
        matches = []
    for match in matches:
        if match.mime_type and match.confidence >= _SURE:
            return str(match.mime_type)
    return mimetypes.guess_type(filename, strict=False)[0] or UNKNOWN
