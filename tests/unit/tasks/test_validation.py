"""The field rules of contract §2.1: a value outside the operation is a 400."""

import time
import timeit
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway_core.api.errors import InvalidRequest
from gateway_core.tasks.operations import REFERENCE_TO_VIDEO as OPERATION
from gateway_core.tasks.validation import (
    check_shape,
    parse_body,
)

IMAGE = "https://example.com/a.png"
SMALLEST = {"model": "sim-q4", "prompt": "a cat", "reference_image_urls": [IMAGE]}


def check(**changes: Any) -> dict[str, Any]:
    """What a good body with changes comes to; a change to `...` leaves the field out."""
    body = {name: value for name, value in {**SMALLEST, **changes}.items() if value is not ...}
    return check_shape(OPERATION, body)


def refuse(**changes: Any) -> dict[str, list[str]]:
    """The problems by field of a body that is refused."""
    with pytest.raises(InvalidRequest) as refusal:
        check(**changes)
    assert refusal.value.errors is not None
    assert all(name in refusal.value.message for name in refusal.value.errors)
    return refusal.value.errors


class TestBody:
    @pytest.mark.parametrize(
        "raw",
        [
            *(b"", b" ", b"{", b"nonsense", b'{"a":NaN}', b"\xff{}", b"{} {}", b"{} // none"),
            *(b"{'a': 1}", b'{"a": 1,}', b'{"a": "\\ud800"}', '{"a": 1}'.encode("utf-16")),
            b"[" * 100_000,
            b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        ],
        ids=lambda raw: repr(raw[:12]),
    )
    def test_invalid_json_is_refused_in_the_simple_form(self, raw: bytes) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            parse_body(raw)
        assert refusal.value.errors is None
        assert refusal.value.code == "invalid_json"

    @pytest.mark.parametrize(
        "number", ["1e400", "-1E9999", "1.5e+999", "9" * 400, "-" + "9" * 5000, "9" * 309 + ".5"]
    )
    def test_number_beyond_a_double_is_bounded_and_refused(self, number: str) -> None:
        text = r"1e400 \" 1e400"
        raw = f'{{"seconds":{number},"é":[{number}, 1.25, 1e-400, -7],"text":"{text}"}}'
        body = parse_body(raw.encode())
        assert abs(body["seconds"]) == 1e308
        assert (body["seconds"] < 0) == number.startswith("-")
        assert body["é"] == [body["seconds"], 1.25, 0.0, -7]
        assert body["text"] == '1e400 " 1e400'
        assert refuse(duration_seconds=body["seconds"]) == {"duration_seconds": ["must be 3 to 16"]}

    @pytest.mark.parametrize(
        "raw",
        [
            *(b'{"a":1e400', b'{"a":01e400}', b'{"a":1.e400}', b'{"a":1e400,}', b'{"a":1e400x}'),
            *(b'{"a":1e400,"b":NaN}', b'{"a":1e400,"b":"\\ud800"}', b'{"\xff":1e400}', b'"1e400'),
            b'{"a":' + b"[" * 5000 + b"1e400" + b"]" * 5000 + b"}",
        ],
    )
    def test_invalid_json_with_a_large_number_is_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            parse_body(raw)
        assert refusal.value.code == "invalid_json"

    @settings(max_examples=40)
    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**53), 2**53)
            | st.floats(-1e300, 1e300)
            # which orjson writes and reads alike
            | st.text(st.characters(exclude_categories=["Cs"])),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
            max_leaves=10,
        )
    )
    def test_values_beside_a_large_number_are_unchanged(self, value: Any) -> None:
        try:
            plain = orjson.dumps(value)
        except (TypeError, ValueError):
            return
        raw = b'{"large":-1e400,"value":' + plain + b"}"
        assert parse_body(raw) == {"large": -1e308, "value": orjson.loads(plain)}

    def test_long_numbers_take_no_longer_to_bound_than_short_ones(self) -> None:
        def measure(number: bytes) -> float:
            numbers = b",".join([number] * (200_000 // (len(number) + 1)))
            raw = b'{"values":[' + numbers + b",1e999]}"
            return min(timeit.repeat(lambda: parse_body(raw), timer=time.thread_time, number=1))

        assert measure(b"9" * 308) < measure(b"9")

    @pytest.mark.parametrize("raw", [b"[]", b'"text"', b"1", b"null", b"true"])
    def test_json_that_is_no_object_is_refused_in_the_simple_form(self, raw: bytes) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            parse_body(raw)
        assert refusal.value.errors is None

    def test_smallest_body_is_accepted_as_it_is(self) -> None:
        assert check() == SMALLEST

    def test_unknown_properties_are_named(self) -> None:
        errors = refuse(colour="red", Prompt="x")
        assert errors == {"colour": ["is not a known field"], "Prompt": ["is not a known field"]}

    def test_unknown_property_is_refused_even_if_null(self) -> None:
        assert set(refuse(colour=None)) == {"colour"}

    def test_error_names_every_problem_of_every_field(self) -> None:
        errors = refuse(model=5, prompt="", duration_seconds=99, audio="yes", colour=1)
        assert set(errors) == {"model", "prompt", "duration_seconds", "audio", "colour"}

    @pytest.mark.parametrize("name", ["model", "prompt", "reference_image_urls"])
    @pytest.mark.parametrize("value", [..., None])
    def test_required_fields_are_required(self, name: str, value: Any) -> None:
        assert refuse(**{name: value}) == {name: ["is required"]}

    @pytest.mark.parametrize(
        "name",
        [
            "reference_audio_urls",
            "aspect_ratio",
            "audio",
            "duration_seconds",
            "output_resolution",
            "callback_url",
        ],
    )
    def test_null_on_an_optional_field_is_absence(self, name: str) -> None:
        assert check(**{name: None}) == SMALLEST


CHOICES = {
    "aspect_ratio": ["16:9", "9:16", "1:1", "4:3", "3:4"],
    "output_resolution": ["540p", "720p", "1080p", "2k", "4k"],
}
ACCEPTED = [
    *(("prompt", value) for value in ("x", " a cat ", "🐈" * 20_000)),
    *(("audio", value) for value in (True, False)),
    *((name, value) for name, values in CHOICES.items() for value in values),
]
BLANKS = ["", " ", "\n\t", "\u00a0", "\u2003\u3000", "\u2028"]
RESOLUTIONS = "must be one of 540p, 720p, 1080p, 2k, 4k"
REFUSED: list[tuple[str, list[Any], str]] = [
    ("prompt", BLANKS, "must not be blank"),
    ("prompt", ["🐈" * 20_001], "must have 1 to 20000 characters"),
    ("prompt", [5, True, ["a"], {"a": 1}, 1.5], "must be a string"),
    ("duration_seconds", ["5", "", True, False, 5.5, [5], {"a": 5}], "must be an integer"),
    ("duration_seconds", [2, 17, 0, -5, 2.0, 10**30, 1e300], "must be 3 to 16"),
    ("audio", [0, 1, "true", "", [], 1.0], "must be true or false"),
    ("output_resolution", ["", "16:10", "720P", " 720p", "8k"], RESOLUTIONS),
    ("output_resolution", [720, True, ["720p"]], "must be a string"),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_valid_value_is_accepted_as_it_is(name: str, value: Any) -> None:
    assert check(**{name: value})[name] == value


@pytest.mark.parametrize(("name", "values", "problem"), REFUSED)
def test_invalid_value_is_refused_with_its_problem(
    name: str, values: list[Any], problem: str
) -> None:
    for value in values:
        assert refuse(**{name: value}) == {name: [problem]}, value


@pytest.mark.parametrize("value", [3, 5, 5.0, 16, 16.0, 3e0])
def test_whole_duration_is_an_integer(value: Any) -> None:
    accepted = check(duration_seconds=value)["duration_seconds"]
    assert accepted == value
    assert type(accepted) is int


MALFORMED = {
    "relative": ["", "example.com/a.png", "//example.com/a.png", "/a.png"],
    "scheme": [
        *("ftp://example.com/a.png", "file:///etc/passwd", "data:image/png;base64,AAAA"),
        "javascript:alert(1)",
    ],
    "no host": [
        *("https:example.com", "https:/example.com", "https://", "https:///a.png"),
        *("https://?a=b", "https://:443/"),
    ],
    "user": [
        *("https://user@example.com/", "https://user:secret@example.com/", "https://@example.com/"),
    ],
    "character": [
        *("https://example.com/a b", "https://example.com/\ta", "https://exa\nmple.com/"),
        *("https://example.com/a\r\nHost: evil", "https://example.com\\@evil.example/"),
        *("https://example.com/\x7f", "https://example.com/\u009b"),
    ],
    "port": [
        *("https://example.com:0/", "https://example.com:65536/", "https://example.com:port/"),
    ],
    "bracket": ["https://[::1/", "https://[::1]evil/", "https://evil[::1]/", "https://::1]/"],
}


class TestUrls:
    def test_numbers_of_urls_are_bounded(self) -> None:
        for count in (1, 15):
            urls = [f"https://example.com/{n}.png" for n in range(count)]
            assert check(reference_image_urls=urls)["reference_image_urls"] == urls
        for count in (0, 16):
            assert refuse(reference_image_urls=[IMAGE] * count) == {
                "reference_image_urls": ["must have 1 to 15 items"]
            }
        assert check(reference_audio_urls=[]) == {**SMALLEST, "reference_audio_urls": []}
        assert check(reference_audio_urls=[IMAGE] * 3)
        assert refuse(reference_audio_urls=[IMAGE] * 4) == {
            "reference_audio_urls": ["must have up to 3 items"]
        }

    def test_bad_item_is_named_by_its_index(self) -> None:
        errors = refuse(reference_image_urls=[IMAGE, "nonsense", IMAGE, 5, None])
        assert errors == {
            "reference_image_urls": [
                "[1] must be an absolute http or https URL",
                "[3] must be a string",
                "[4] must be a string",
            ]
        }

    @pytest.mark.parametrize("value", [IMAGE, {"0": IMAGE}, 5, True])
    def test_urls_must_be_an_array(self, value: Any) -> None:
        assert refuse(reference_image_urls=value) == {
            "reference_image_urls": ["must be an array of URLs"]
        }

    @pytest.mark.parametrize(
        "url",
        [
            "http://example.com",
            "https://example.com:8443/a?b=c#d",
            "HTTPS://EXAMPLE.COM/A.PNG",
            "https://example.com/%20a",
            "https://bücher.example/a.png",
            "https://192.0.2.1/a.png",
            "https://[2001:db8::1]:8080/a.png",
            "https://example.com/no-extension-at-all",
            "https://example.com/a.gif",
            "https://example.com/@a",
        ],
    )
    def test_absolute_http_url_is_accepted(self, url: str) -> None:
        assert check(reference_image_urls=[url], callback_url=url)["callback_url"] == url

    @pytest.mark.parametrize("url", [url for urls in MALFORMED.values() for url in urls])
    def test_malformed_url_is_refused(self, url: str) -> None:
        errors = refuse(reference_image_urls=[url], callback_url=url)
        assert set(errors) == {"reference_image_urls", "callback_url"}
        assert errors["reference_image_urls"][0].startswith("[0] must")

    def test_length_of_a_url_is_bounded(self) -> None:
        longest = "https://example.com/" + "a" * (2048 - 20)
        assert check(callback_url=longest)
        assert refuse(callback_url=longest + "a") == {
            "callback_url": ["must have at most 2048 characters"]
        }

    @given(st.text(max_size=60))
    @example("http://[")
    @example("http://\ud800")
    @example("http://a:\uff11/")
    def test_any_text_is_accepted_or_refused_by_its_field(self, text: str) -> None:
        try:
            check(callback_url=text)
        except InvalidRequest as refusal:
            assert set(refusal.errors or ()) == {"callback_url"}  # noqa: PT017


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([f.name for f in OPERATION.fields]), json_values))
def test_any_body_is_accepted_or_refused_by_its_fields(body: dict[str, Any]) -> None:
    try:
        taken = check_shape(OPERATION, body)
    except InvalidRequest as refusal:
        assert refusal.errors  # noqa: PT017
    else:
        assert check_shape(OPERATION, taken) == taken, "what was taken is taken again as it is"
