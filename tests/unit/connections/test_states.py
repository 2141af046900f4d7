"""The transitions of a connection's states."""

from gateway_web.http1.states import TRANSITIONS, Event, State


def test_docstring_has_the_transitions() -> None:
    assert State.__doc__ is not None
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in State.__doc__.splitlines()
        if line.strip().startswith("|")
    ]
    (_, *events), _, *states = rows
    documented = {
        (Event[event], State[state], State[after])
        for state, *cells in states
        for event, after in zip(events, cells, strict=True)
        if after
    }
    assert documented == {
        (event, before, after)
        for event, table in TRANSITIONS.items()
        for before, after in table.items()
    }
