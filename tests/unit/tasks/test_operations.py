"""What a model makes of its operation: defaults, fingerprints, and what it does not support (§2.1).

A value outside the operation is a 400 (`test_validation`), one the model lacks is a 409.
"""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.errors import Conflict
from gateway_core.api.model import FieldRule
from gateway_core.tasks.operations import REFERENCE_TO_VIDEO as OPERATION
from gateway_core.tasks.validation import (
    apply_defaults,
    check_model,
    check_rule,
    check_shape,
    fingerprint,
    to_canonical_json,
)

IMAGE = "https://example.com/a.png"
SMALLEST = {"model": "sim-q4", "prompt": "a cat", "reference_image_urls": [IMAGE]}


def check(**changes: Any) -> dict[str, Any]:
    """What a good body with changes comes to."""
    return check_shape(OPERATION, {**SMALLEST, **changes})


def rules(*made: FieldRule) -> dict[str, FieldRule]:
    return {rule.name: rule for rule in made}


class TestDefaults:
    def test_the_operations(self) -> None:
        assert apply_defaults(OPERATION, SMALLEST, {}) == {
            **SMALLEST,
            "aspect_ratio": "16:9",
            "audio": True,
            "duration_seconds": 5,
            "output_resolution": "720p",
        }

    def test_the_models_own_come_first(self) -> None:
        own = rules(
            FieldRule(name="output_resolution", default='"1080p"'),
            FieldRule(name="duration_seconds", default="8"),
            FieldRule(name="audio", default="false"),
        )
        complete = apply_defaults(OPERATION, SMALLEST, own)
        assert complete["output_resolution"] == "1080p"
        assert complete["duration_seconds"] == 8
        assert complete["audio"] is False

    def test_given_value_precedes_default(self) -> None:
        own = rules(FieldRule(name="output_resolution", default='"1080p"'))
        given_body = {**SMALLEST, "output_resolution": "540p"}
        assert apply_defaults(OPERATION, given_body, own)["output_resolution"] == "540p"

    def test_a_field_the_model_has_not_gets_none(self) -> None:
        own = rules(FieldRule(name="audio", supported=False))
        assert "audio" not in apply_defaults(OPERATION, SMALLEST, own)

    def test_a_default_is_normalised_as_if_it_had_been_given(self) -> None:
        own = rules(FieldRule(name="duration_seconds", default="8.0"))
        default = apply_defaults(OPERATION, SMALLEST, own)
        explicit = apply_defaults(OPERATION, check(duration_seconds=8), own)
        assert to_canonical_json(default) == to_canonical_json(explicit)


class TestFingerprint:
    def digest(self, **changes: Any) -> str:
        return fingerprint(apply_defaults(OPERATION, check(**changes), {}))

    @pytest.mark.parametrize(
        ("name", "default"),
        [
            ("aspect_ratio", "16:9"),
            ("audio", True),
            ("duration_seconds", 5),
            ("duration_seconds", 5.0),
            ("output_resolution", "720p"),
            ("callback_url", None),
            ("audio", None),
        ],
    )
    def test_an_omitted_default_is_an_explicit_one(self, name: str, default: Any) -> None:
        assert self.digest(**{name: default}) == self.digest()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("aspect_ratio", "1:1"),
            ("audio", False),
            ("duration_seconds", 6),
            ("output_resolution", "4k"),
            ("callback_url", "https://example.com/done"),
            ("prompt", "a dog"),
            ("prompt", "a cat "),
            ("model", "sim-q5"),
            ("reference_image_urls", [IMAGE, IMAGE]),
            ("reference_audio_urls", []),
        ],
    )
    def test_every_field_counts(self, name: str, value: Any) -> None:
        assert self.digest(**{name: value}) != self.digest()

    @given(st.permutations(list(SMALLEST.items())))
    def test_the_order_of_members_does_not(self, items: list[tuple[str, Any]]) -> None:
        assert fingerprint(dict(items)) == fingerprint(SMALLEST)

    def test_the_order_of_urls_does(self) -> None:
        urls = [IMAGE, "https://example.com/b.png"]
        assert self.digest(reference_image_urls=urls) != self.digest(
            reference_image_urls=urls[::-1]
        )

    def test_fingerprint_is_hex_sha256(self) -> None:
        assert len(self.digest()) == 64
        assert set(self.digest()) <= set(string.hexdigits.lower())


class TestNarrowing:
    """A value inside the operation that the selected model does not support: 409, simple form."""

    def conflict(self, rule: FieldRule, **changes: Any) -> str:
        given_body = check(**changes)
        complete = apply_defaults(OPERATION, given_body, rules(rule))
        with pytest.raises(Conflict) as refusal:
            check_model("sim-q4", given_body, complete, rules(rule))
        return refusal.value.message

    @pytest.mark.parametrize(
        ("rule", "changes", "text"),
        [
            (
                FieldRule(name="output_resolution", allowed=["540p", "720p"]),
                {"output_resolution": "4k"},
                "does not support this output_resolution: it must be one of 540p, 720p",
            ),
            (
                FieldRule(name="duration_seconds", minimum=5),
                {"duration_seconds": 4},
                "duration_seconds: it must be at least 5",
            ),
            (
                FieldRule(name="duration_seconds", maximum=8),
                {"duration_seconds": 9},
                "duration_seconds: it must be at most 8",
            ),
            (
                FieldRule(name="reference_image_urls", max_items=1),
                {"reference_image_urls": [IMAGE, IMAGE]},
                "reference_image_urls: it must have at most 1 items",
            ),
            (
                FieldRule(name="prompt", max_length=4),
                {"prompt": "a cat"},
                "prompt: it must have at most 4 characters",
            ),
            (
                FieldRule(name="audio", supported=False),
                {"audio": False},
                "does not support audio",
            ),
            (
                FieldRule(name="reference_audio_urls", supported=False),
                {"reference_audio_urls": []},
                "does not support reference_audio_urls",
            ),
        ],
    )
    def test_unsupported_field_or_value_is_a_conflict(
        self, rule: FieldRule, changes: dict[str, Any], text: str
    ) -> None:
        assert text in self.conflict(rule, **changes)

    def test_length_is_counted_in_code_points(self) -> None:
        rule = FieldRule(name="prompt", max_length=2)
        complete = apply_defaults(OPERATION, check(prompt="🐈🐈"), rules(rule))
        check_model("sim-q4", complete, complete, rules(rule))

    def test_a_field_that_is_not_supported_and_not_given_is_no_conflict(self) -> None:
        rule = FieldRule(name="audio", supported=False)
        complete = apply_defaults(OPERATION, check(), rules(rule))
        check_model("sim-q4", check(), complete, rules(rule))

    def test_null_is_not_given(self) -> None:
        rule = FieldRule(name="audio", supported=False)
        given_body = check(audio=None)
        check_model("sim-q4", given_body, given_body, rules(rule))


class TestRules:
    """What is wrong with a model's own rules, for its Ready condition."""

    @pytest.mark.parametrize(
        ("rule", "text"),
        [
            (FieldRule(name="colour"), "colour is not a field of reference_to_video"),
            (FieldRule(name="model", allowed=["a"]), "model is not a field"),
            (FieldRule(name="callback_url", supported=False), "callback_url is not a field"),
            (FieldRule(name="prompt", supported=False), "prompt is required"),
            (
                FieldRule(name="output_resolution", allowed=["8k"]),
                "output_resolution cannot be narrowed to 8k",
            ),
            (FieldRule(name="prompt", allowed=["a"]), "prompt cannot be narrowed to a"),
            (FieldRule(name="audio", default="yes"), "the default of audio must be JSON"),
            (FieldRule(name="audio", default="1"), "the default of audio must be true or false"),
            (
                FieldRule(name="duration_seconds", default="99"),
                "the default of duration_seconds must be 3 to 16",
            ),
            (
                FieldRule(name="duration_seconds", minimum=8),
                "the default of duration_seconds must be at least 8",
            ),
            (
                FieldRule(name="output_resolution", allowed=["4k"]),
                "the default of output_resolution must be one of 4k",
            ),
            (
                FieldRule(name="output_resolution", allowed=["4k"], default='"720p"'),
                "the default of output_resolution must be one of 4k",
            ),
            (FieldRule(name="audio", default="null"), "the default of audio must be"),
        ],
    )
    def test_bad(self, rule: FieldRule, text: str) -> None:
        assert (check_rule(OPERATION, rule) or "").startswith(text)

    @pytest.mark.parametrize(
        "rule",
        [
            FieldRule(name="audio", supported=False),
            FieldRule(name="output_resolution", allowed=["4k"], default='"4k"'),
            FieldRule(name="duration_seconds", minimum=8, default="8"),
            FieldRule(name="duration_seconds", maximum=10),
            FieldRule(name="reference_audio_urls", max_items=0),
            FieldRule(name="prompt", max_length=500),
        ],
    )
    def test_good(self, rule: FieldRule) -> None:
        assert check_rule(OPERATION, rule) is None
