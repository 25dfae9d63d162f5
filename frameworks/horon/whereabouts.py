"""Says where this rank's main thread is, when other ranks wait for it and ask.

A thread of its own sleeps in the runtime until then. When it cannot answer, because native code
holds the interpreter's lock, the runtime says that instead (runtime/core/inquiries.h).
"""

from __future__ import annotations

import os
import sys
import threading

from horon import _core

_FRAMES = 6
_thread: threading.Thread | None = None


def start() -> None:
    """After init(); once for each membership in a job."""
    global _thread
    if _thread is not None and _thread.is_alive():
        return
    _thread = threading.Thread(target=_answer, name="horon-whereabouts", daemon=True)
    _thread.start()


def stop() -> None:
    """After shutdown(): the thread has ended, or is about to."""
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join(timeout=5)


def _answer() -> None:
    main = threading.main_thread().ident
    while _core.await_inquiry():
        _core.tell_doing(_stack(sys._current_frames().get(main)))


def _stack(frame) -> str:
    """The innermost frames, innermost first, on one line."""
    calls = []
    while frame is not None and len(calls) < _FRAMES:
        code = frame.f_code
        calls.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    if not calls:
        return "at its end"
    return "at " + ", called from ".join(calls) + (", ..." if frame is not None else "")
