"""Problems of a process's settings. Pure."""

from pydantic import ValidationError

from gateway_core.failures import describe_detail


def list_problems(error: ValidationError) -> list[str]:
    """Return the problems without values, each after the environment variable that has it.

    A problem of several settings has no place, and its text names them.
    """
    problems = []
    for detail in error.errors(include_input=False):
        name = "_".join(["GATEWAY", *map(str, detail["loc"])]).upper()
        text = describe_detail(detail)
        problems.append(f"{name}: {text}" if detail["loc"] else text)
    return problems
