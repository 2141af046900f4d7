"""What a request says of its JSON body."""

import pytest

from gateway_core.api.errors import UnsupportedMediaType
from gateway_web.errors import list_error_headers
from gateway_web.middleware.bodies import read_json_length

JSON = (b"content-type", b"application/json; charset=utf-8")
LENGTH = (b"content-length", b"12")


@pytest.mark.parametrize("encoding", [b"", b" Identity", b"UTF-8"])
def test_length_of_a_plain_body_is_known(encoding: bytes) -> None:
    assert read_json_length([JSON, LENGTH, (b"content-encoding", encoding)]) == 12


def test_encoded_body_is_refused_with_the_type_that_is_accepted() -> None:
    with pytest.raises(UnsupportedMediaType, match="no Content-Encoding") as caught:
        read_json_length([JSON, LENGTH, (b"content-encoding", b"gzip")])
    assert list_error_headers(caught.value) == [
        (b"accept", b"application/json"),
        (b"accept-encoding", b"identity"),
    ]
