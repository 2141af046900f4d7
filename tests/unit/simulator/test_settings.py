"""The environment of the process, and its documentation."""

from pathlib import Path
from typing import get_args

import pytest
from pydantic import TypeAdapter

from gateway_simulator.__main__ import main
from gateway_simulator.behaviours import AnyRule, Control, Spread
from gateway_simulator.settings import Settings

MANUAL = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()


def test_settings_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GATEWAY_SIMULATOR_PORT", "9999")
    monkeypatch.setenv("GATEWAY_SIMULATOR_TOKEN", "tell-nobody")
    monkeypatch.setenv("GATEWAY_SIMULATOR_SECONDS", "20-60")
    monkeypatch.setenv("GATEWAY_SIMULATOR_STATE_DIR", str(tmp_path))
    settings = Settings()
    assert (settings.port, settings.seconds, settings.state_dir) == (9999, Spread(20, 60), tmp_path)
    assert "tell-nobody" not in repr(settings)


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({}, "GATEWAY_SIMULATOR_TOKEN: "),
        ({"GATEWAY_SIMULATOR_SECONDS": "x"}, "GATEWAY_SIMULATOR_SECONDS: "),
        ({"GATEWAY_LOG_LEVEL": "x"}, "GATEWAY_LOG_LEVEL: "),
        (
            {"GATEWAY_SIMULATOR_TOKEN": "t", "GATEWAY_SIMULATOR_STATE_DIR": __file__},
            "GATEWAY_SIMULATOR_STATE_DIR: ",
        ),
    ],
)
def test_bad_settings_are_named_and_end_the_process(monkeypatch, capsys, environment, complaint):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main() == 2
    assert complaint in capsys.readouterr().err


def test_every_setting_is_documented():
    for name, field in Settings.model_fields.items():
        variable = field.validation_alias or f"GATEWAY_SIMULATOR_{name.upper()}"
        assert f"`{variable}`" in MANUAL


def test_every_behaviour_field_and_kind_is_documented():
    for field in Control.model_fields:
        assert f"`{field}`" in MANUAL
    for rule in get_args(get_args(AnyRule)[0]):
        [name] = get_args(rule.model_fields["behaviour"].annotation)
        assert f"`{name}`" in MANUAL
        for field in rule.model_fields:
            assert f"`{field}`" in MANUAL, (name, field)
        if "kind" in rule.model_fields:
            for kind in get_args(rule.model_fields["kind"].annotation):
                assert f"`{kind}`" in MANUAL, (name, kind)


def test_every_example_of_a_rule_in_the_manual_is_valid():
    examples = [line for line in MANUAL.splitlines() if line.lstrip().startswith('{"behaviour"')]
    assert len(examples) >= len(get_args(get_args(AnyRule)[0]))
    for example in examples:
        TypeAdapter(AnyRule).validate_json(example.strip().rstrip(","))
