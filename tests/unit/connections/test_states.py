"""The transitions of a connection's states."""

from gateway_web.http1 import states
from gateway_web.http1.states import State


def test_docstring_has_the_transitions() -> None:
    assert State.__doc__ is not None
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in State.__doc__.splitlines()
        if line.strip().startswith("|")
    ]
    (_, *events), _, *cells_of_states = rows
    documented: dict[str, dict[State, State]] = {event: {} for event in events}
    for before, *cells in cells_of_states:
        for event, after in zip(events, cells, strict=True):
            if after:
                documented[event][State[before]] = State[after]
    assert documented == {event: getattr(states, event) for event in documented}
    assert {*documented} == {
        name for name, value in vars(states).items() if name.isupper() and isinstance(value, dict)
    }
