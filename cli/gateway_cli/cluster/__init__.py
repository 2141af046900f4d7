"""The Kubernetes API as gatewayctl's commands see it: calls, and what their refusals mean."""

from typing import Any

Object = dict[str, Any]
"""An object as JSON has it."""
