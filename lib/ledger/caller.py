"""Finds the line of the user's program that led to an operation, and the function of lib that this
line called, by walking up the stack from torch's dispatcher."""

import os
import sys
import sysconfig
import threading
import traceback

import torch

from lib.backend import peers

LIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Files of lib that may be on the stack around a call although the user did not call them.
OURS = (
    os.path.join(LIB, "ledger", ""),
    os.path.join(LIB, "launch", ""),
    os.path.abspath(peers.__file__),
    os.path.join(LIB, "collectives", "uncompiled.py"),
)
FOREIGN = (os.path.dirname(torch.__file__), sysconfig.get_paths()["stdlib"], "<frozen")
SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"

# Files on the stack between a program's call and the dispatcher. The last two are on it if torch
# warns that a function is deprecated.
TORCHS_CALLS = (
    "distributed_c10d.py",
    "c10d_logger.py",
    "peers.py",
    "typing_extensions.py",
    "warnings.py",
)

_USER, _LIB, _FOREIGN, _BETWEEN = range(4)
_between: set[str] = set()  # files that `look_through` was given
# file -> its kind. The key is not the code object, because two different code objects may be equal.
_kinds: dict[str, int] = {}


def look_through(file: str) -> None:
    """From now on, attribute no op to a line of this file. A dispatch mode needs this, because it
    is on the stack between a program and the function that the program calls, but is part of
    neither the program nor lib."""
    _between.add(file)


def _kind(file):
    if file in _between:
        kind = _BETWEEN
    elif file.startswith(LIB):
        kind = _FOREIGN if file.startswith(OURS) else _LIB
    else:
        kind = _FOREIGN if file.startswith(FOREIGN) or SITE_PACKAGES in file else _USER
    _kinds[file] = kind
    return kind


def locate(frame):
    """The user's line that led to `frame`, and the lib function that it called: ((file, line,
    function), via), e.g. via = "ring.ring_all_reduce", or "" if the line called no such function.

    On a GPU autograd calls hooks and DDP's reducer from a C++ thread, whose stack has no frames of
    the user's, and sometimes no Python frames at all (`frame` is None). The main thread meanwhile
    waits in `loss.backward()`, so we take that line.
    """
    site, outer = _walk(frame, None)
    if site is None and threading.get_ident() not in {
        thread.ident for thread in threading.enumerate()
    }:
        site, outer = _walk(sys._current_frames().get(threading.main_thread().ident), outer)
    if site is not None:
        return site, _via(outer)
    if outer is None:
        return ("?", 0, "?"), ""
    return (outer.f_code.co_filename, outer.f_lineno, outer.f_code.co_name), ""


def _walk(frame, outer):
    """Walk the stack outwards from `frame`. Returns the user's innermost line, or None if there is
    none, and the outermost frame of lib inside it (`outer` if there is none)."""
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _USER:
            return (code.co_filename, frame.f_lineno, code.co_name), outer
        if kind == _LIB:
            outer = frame
        frame = frame.f_back
    return None, outer


def site_of(trace) -> tuple[str, int, str]:
    """Where an exception was raised: (file, line, function) of the user's innermost frame in its
    traceback, or of the outermost frame if none is the user's."""
    site = ("?", 0, "?")
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        kind = _kind(code.co_filename)
        if kind == _USER or site[1] == 0:
            site = (code.co_filename, line, code.co_name)
    return site


def is_programs(frame) -> bool:
    """Did the program or lib call this function of torch.distributed, and not a library such as
    torch's DDP?"""
    while frame is not None and (
        frame.f_code.co_filename.endswith(TORCHS_CALLS) or _stands_between(frame)
    ):
        frame = frame.f_back
    if frame is None:
        return False
    kind = _kinds.get(frame.f_code.co_filename)
    return (_kind(frame.f_code.co_filename) if kind is None else kind) != _FOREIGN


def _stands_between(frame):
    """Is this the frame of a dispatch mode, or of a function of torch that the mode calls?"""
    files = (one.f_code.co_filename for one in (frame, frame.f_back) if one is not None)
    return any(file in _between for file in files)


def _via(frame):
    if frame is None:
        return ""
    module = os.path.splitext(os.path.basename(frame.f_code.co_filename))[0]
    return f"{module}.{frame.f_code.co_name}"
