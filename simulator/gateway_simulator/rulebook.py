"""Which rule applies to a request: match, count and probability; used by `provider`."""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gateway_simulator.behaviours import Control, Point, Rule

R = TypeVar("R", bound=Rule)


class Rulebook:
    """The rules in force, with how often each has been applied."""

    def __init__(self) -> None:
        self.replace(Control())

    def replace(self, control: Control) -> None:
        """Put other rules in force, their counts starting afresh."""
        self.control = control
        # Only tests depend on the draws, so a seedable generator is the right one.
        self.source = random.Random(control.seed)  # noqa: S311
        self._applied = [0] * len(control.rules)

    def take(
        self,
        kind: type[R],
        point: Point,
        prompts: Sequence[str] = (),
        *,
        accept: Callable[[R], bool] | None = None,
    ) -> R | None:
        """Return the first rule of a kind that applies to a request, counting it as applied.

        `prompts` are those of the jobs that the request is about: none where they are unknown.
        A rule that matches and loses its draw leaves the request to the next one.
        """
        for index, rule in enumerate(self.control.rules):
            if (
                isinstance(rule, kind)
                and self._matches(rule, point, prompts)
                and (accept is None or accept(rule))
                and (rule.count is None or self._applied[index] < rule.count)
                and (rule.probability >= 1 or self.source.random() < rule.probability)
            ):
                self._applied[index] += 1
                return rule
        return None

    def describe(self) -> dict[str, Any]:
        """Return the document in force, each rule with how often it has been `applied`."""
        document = self.control.model_dump(mode="json")
        for rule, applied in zip(document["rules"], self._applied, strict=True):
            rule["applied"] = applied
        return document

    @staticmethod
    def _matches(rule: Rule, point: Point, prompts: Sequence[str]) -> bool:
        if point not in rule.points or rule.match.on not in (None, point):
            return False
        wanted = rule.match.prompt_contains
        return wanted is None or any(wanted in prompt for prompt in prompts)
