"""Profile hook of `make paths`, which Python imports first where PYTHONPATH names its folder.

SIGRTMIN begins a window and SIGRTMIN+1 ends it; each leaves a file in GATEWAY_PATHS_FOLDER, the
second with the calls of each function of the product in that window. Where GATEWAY_PATHS_REQUESTS
is set, only calls that a connection's bytes have caused are counted: those in `data_received` of a
protocol of the product, and in the tasks and threads that inherit its context.
"""

import json
import os
import signal
import sys
import threading
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

_FOLDER = Path(os.environ["GATEWAY_PATHS_FOLDER"])
_ONLY_REQUESTS = bool(os.environ.get("GATEWAY_PATHS_REQUESTS"))
_RECEIVERS = ("data_received", "buffer_updated")
_LEFT_OUT = "gateway_core.api"
_is_request: ContextVar[bool] = ContextVar("is_request", default=False)
_calls = Counter[str]()
_is_open = False


def _count(frame: FrameType, event: str, _: object) -> None:
    module = str(frame.f_globals.get("__name__"))
    if event != "call" or not _is_open or not module.startswith("gateway_"):
        return
    code = frame.f_code
    if code.co_name in _RECEIVERS:
        _is_request.set(True)
    if module.startswith(_LEFT_OUT) or (_ONLY_REQUESTS and not _is_request.get()):
        return
    # the argument of RESUME is 0 at the start of a function, and not where it goes on
    if code.co_code[frame.f_lasti + 1] & 3 == 0:
        _calls[f"{module}:{code.co_qualname}"] += 1


def _begin(*_: object) -> None:
    global _is_open
    _calls.clear()
    _is_open = True
    sys.setprofile(_count)
    _write("begun", "")


def _end(*_: object) -> None:
    global _is_open
    _is_open = False
    sys.setprofile(None)
    _write("ended", json.dumps(_calls))


def _write(name: str, text: str) -> None:
    path = _FOLDER / f"{os.getpid()}.{name}"
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


threading.setprofile(_count)
signal.signal(signal.SIGRTMIN, _begin)
signal.signal(signal.SIGRTMIN + 1, _end)
