"""kopf is there without the package that it would load on sight."""

import importlib
import sys

import pytest

import gateway_operator
from gateway_operator import handlers


def test_operator_imports_kopf_without_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    # the new modules are this test's alone
    monkeypatch.setattr(gateway_operator, "handlers", handlers)
    for name in list(sys.modules):
        if name.partition(".")[0] in ("kopf", "kubernetes") or name == handlers.__name__:
            monkeypatch.delitem(sys.modules, name)
    importlib.import_module(handlers.__name__)
    assert "kopf" in sys.modules
    assert "kubernetes" not in sys.modules


def test_package_can_be_imported_after_kopf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with handlers._not_installed("colorsys"), pytest.raises(ImportError):
        importlib.import_module("colorsys")
    importlib.import_module("colorsys")
