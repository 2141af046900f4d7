"""What a request says of its JSON body."""

import pytest

from gateway_core.api.errors import UnsupportedMediaType
from gateway_web.errors import list_error_headers
from gateway_web.middleware.bodies import read_json_length

JSON = (b"content-type", b"application/json; charset=utf-8")
LENGTH = (b"content-length", b"12")


@pytest.mark.parametrize("more", [[], [(b"content-encoding", b" Identity")]])
def test_length_of_a_plain_body_is_known(more: list[tuple[bytes, bytes]]) -> None:
    assert read_json_length([JSON, LENGTH, *more]) == 12


def test_encoded_body_is_refused_with_the_type_that_is_accepted() -> None:
    with pytest.raises(UnsupportedMediaType, match="without a Content-Encoding") as caught:
        read_json_length([JSON, LENGTH, (b"content-encoding", b"gzip")])
    assert list_error_headers(caught.value) == [(b"accept", b"application/json")]
