"""Defaults, fingerprints and unsupported values of a model (§2.1).

A value outside the operation is a 400 (`test_validation`), one the model lacks is a 409.
"""

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


def check_narrowed(rule: FieldRule, changes: dict[str, Any]) -> None:
    """Check a body against the one rule of its model."""
    body = check(**changes)
    check_model("sim-q4", body, apply_defaults(OPERATION, body, rules(rule)), rules(rule))


class TestDefaults:
    def test_defaults_are_those_of_the_operation(self) -> None:
        assert apply_defaults(OPERATION, SMALLEST, {}) == {
            **SMALLEST,
            "aspect_ratio": "16:9",
            "audio": True,
            "duration_seconds": 5,
            "output_resolution": "720p",
        }

    def test_default_of_the_model_comes_first(self) -> None:
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

    def test_unsupported_field_has_no_default(self) -> None:
        own = rules(FieldRule(name="audio", supported=False))
        assert "audio" not in apply_defaults(OPERATION, SMALLEST, own)

    def test_default_is_normalised_like_a_given_value(self) -> None:
        own = rules(FieldRule(name="duration_seconds", default="8.0"))
        default = apply_defaults(OPERATION, SMALLEST, own)
        explicit = apply_defaults(OPERATION, check(duration_seconds=8), own)
        assert to_canonical_json(default) == to_canonical_json(explicit)


class TestFingerprint:
    def digest(self, **changes: Any) -> str:
        return fingerprint(apply_defaults(OPERATION, check(**changes), {}))

    def test_omitted_default_equals_an_explicit_one(self) -> None:
        defaults = {"aspect_ratio": "16:9", "audio": True, "output_resolution": "720p"}
        absent = {"callback_url": None, "audio": None}
        durations = [{"duration_seconds": 5}, {"duration_seconds": 5.0}]
        for fields in (defaults, absent, *durations):
            assert self.digest(**fields) == self.digest()

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
    def test_fingerprint_depends_on_the_value_of_every_field(self, name: str, value: Any) -> None:
        assert self.digest(**{name: value}) != self.digest()

    @given(st.permutations(list(SMALLEST.items())))
    def test_order_of_members_does_not_matter(self, items: list[tuple[str, Any]]) -> None:
        assert fingerprint(dict(items)) == fingerprint(SMALLEST)

    def test_order_of_urls_matters(self) -> None:
        urls = [IMAGE, "https://example.com/b.png"]
        assert self.digest(reference_image_urls=urls) != self.digest(
            reference_image_urls=urls[::-1]
        )


RESOLUTIONS = FieldRule(name="output_resolution", allowed=["540p", "720p"])
IMAGES = FieldRule(name="reference_image_urls", max_items=1)
NO_SOUNDS = FieldRule(name="reference_audio_urls", supported=False)


class TestNarrowing:
    """A value inside the operation that the selected model does not support: 409, simple form."""

    @pytest.mark.parametrize(
        ("rule", "value", "text"),
        [
            (RESOLUTIONS, "4k", "output_resolution: it must be one of 540p, 720p"),
            (FieldRule(name="duration_seconds", minimum=5), 4, "it must be at least 5"),
            (FieldRule(name="duration_seconds", maximum=8), 9, "it must be at most 8"),
            (IMAGES, [IMAGE, IMAGE], "reference_image_urls: it must have at most 1 items"),
            (FieldRule(name="prompt", max_length=4), "a cat", "must have at most 4 characters"),
            (FieldRule(name="audio", supported=False), False, "does not support audio"),
            (NO_SOUNDS, [], "does not support reference_audio_urls"),
        ],
    )
    def test_unsupported_field_or_value_is_a_conflict(
        self, rule: FieldRule, value: Any, text: str
    ) -> None:
        with pytest.raises(Conflict) as refusal:
            check_narrowed(rule, {rule.name: value})
        assert text in refusal.value.message

    @pytest.mark.parametrize(
        ("rule", "changes"),
        [
            (FieldRule(name="audio", supported=False), {}),
            (FieldRule(name="audio", supported=False), {"audio": None}),
            # a length is counted in code points
            (FieldRule(name="prompt", max_length=2), {"prompt": "🐈🐈"}),
        ],
    )
    def test_supported_body_is_no_conflict(self, rule: FieldRule, changes: dict[str, Any]) -> None:
        check_narrowed(rule, changes)


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
    def test_invalid_rule_is_described(self, rule: FieldRule, text: str) -> None:
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
    def test_valid_rule_has_no_problem(self, rule: FieldRule) -> None:
        assert check_rule(OPERATION, rule) is None
