"""States of a connection, and the one table of what leads from each to the next."""

from enum import IntEnum, auto


class State(IntEnum):
    """What a connection waits for or does.

    | State | HEAD_BEGINS | HEAD_ENDS | BODY_ENDS | ANSWERED | UNREADABLE |
    |---|---|---|---|---|---|
    | IDLE | HEAD | | | | |
    | HEAD | HEAD | BODY | | | |
    | BODY | | | ANSWERING | DRAINING | |
    | DRAINING | | | IDLE | | |
    | ANSWERING | NEXT_HEAD | | | IDLE | ENDING |
    | NEXT_HEAD | NEXT_HEAD | BODY | | HEAD | ENDING |

    A head begins a second time where it is parsed again without its Upgrade. The connection may be
    closed in every state; nothing else leads out of CROWDED and ENDING.
    """

    IDLE = auto()
    """No request is under way."""
    HEAD = auto()
    """A head arrives, and all requests before it are answered."""
    BODY = auto()
    """The body of the latest request arrives, and its response is not complete."""
    DRAINING = auto()
    """The body of a request arrives whose response is complete."""
    ANSWERING = auto()
    """All requests have arrived whole, and the response to at least one is not complete."""
    NEXT_HEAD = auto()
    """A head arrives while requests before it are answered: the next request is pipelined."""
    ENDING = auto()
    """The responses under way are the last, and what arrives is dropped."""
    CROWDED = auto()
    """The connection is beyond the bounds of its port: its first request gets 503."""


class Event(IntEnum):
    """What changes the state."""

    HEAD_BEGINS = auto()
    HEAD_ENDS = auto()
    BODY_ENDS = auto()
    """A request without a body has ended, too."""
    ANSWERED = auto()
    """The last response under way is complete."""
    UNREADABLE = auto()
    """What arrives behind whole requests is no HTTP that this server reads."""


TRANSITIONS = {
    Event.HEAD_BEGINS: {
        State.IDLE: State.HEAD,
        State.HEAD: State.HEAD,
        State.ANSWERING: State.NEXT_HEAD,
        State.NEXT_HEAD: State.NEXT_HEAD,
    },
    Event.HEAD_ENDS: {State.HEAD: State.BODY, State.NEXT_HEAD: State.BODY},
    Event.BODY_ENDS: {State.BODY: State.ANSWERING, State.DRAINING: State.IDLE},
    Event.ANSWERED: {
        State.BODY: State.DRAINING,
        State.ANSWERING: State.IDLE,
        State.NEXT_HEAD: State.HEAD,
    },
    Event.UNREADABLE: {State.ANSWERING: State.ENDING, State.NEXT_HEAD: State.ENDING},
}
