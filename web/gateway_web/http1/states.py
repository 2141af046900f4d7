"""States of a connection, and the one table of what leads from each to the next."""

from enum import IntEnum, auto


class State(IntEnum):
    """The present activity of a connection.

    | State | HEAD_BEGINS | HEAD_ENDS | BODY_ENDS | ANSWERED | UNREADABLE |
    |---|---|---|---|---|---|
    | IDLE | HEAD | | | | |
    | HEAD | HEAD | BODY | | | |
    | BODY | | | ANSWERING | DRAINING | |
    | DRAINING | | | IDLE | | |
    | ANSWERING | NEXT_HEAD | | | IDLE | ENDING |
    | NEXT_HEAD | NEXT_HEAD | BODY | | HEAD | ENDING |

    The columns are events, each a dictionary of this module: the next state of each state. A head
    begins a second time where it is parsed again without its Upgrade. The connection may be closed
    in every state; nothing else leads out of CROWDED and ENDING.
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


# to look a member up in its class takes 0.3 µs in Python 3.11, a dozen times a request
IDLE, HEAD, BODY, DRAINING, ANSWERING, NEXT_HEAD, ENDING, CROWDED = State

HEAD_BEGINS = {IDLE: HEAD, HEAD: HEAD, ANSWERING: NEXT_HEAD, NEXT_HEAD: NEXT_HEAD}
HEAD_ENDS = {HEAD: BODY, NEXT_HEAD: BODY}
BODY_ENDS = {BODY: ANSWERING, DRAINING: IDLE}
"""Also of a request without a body."""
ANSWERED = {BODY: DRAINING, ANSWERING: IDLE, NEXT_HEAD: HEAD}
"""The last response under way is complete."""
UNREADABLE = {ANSWERING: ENDING, NEXT_HEAD: ENDING}
"""What arrives behind whole requests is no HTTP that this server reads."""
