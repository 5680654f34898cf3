"""Gives one process and its children another view of the machine, with Linux's namespaces and
without any external tool. supervisor.py calls it in two steps:

    unshare()  before init is forked: makes namespaces for processes, mounts, network and shared
               memory. An ordinary user makes a user namespace first, which gives the right to make
               the others.
    close()    in init: leaves only loopback of the network; makes every file system read-only
               except for bounded ones in memory, at the work folder and /dev/shm; empties hidden
               folders except for what is needed

See unshare(2), mount_namespaces(7), mount_setattr(2). Standard library only; Linux 5.12 or later.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

from lib import linux

# clone flags
NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
NOSUID, NODEV = 2, 4
# mount_setattr is called by its number, because older C libraries have no function for it
MOUNT_SETATTR, HERE, RECURSIVE, READ_ONLY = 442, -100, 0x8000, 1
DEATH_SIGNAL, DUMPABLE, SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 36, 38  # for prctl
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
C = ctypes.CDLL(None, use_errno=True)


def call(name: str, *args) -> None:
    """Call a function of the C library. Raises OSError if it returns -1."""
    plain = [ctypes.c_ulong(arg) if isinstance(arg, int) and arg >= 0 else arg for arg in args]
    if getattr(C, name)(*plain) == -1:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def unshare() -> None:
    """Move this process into new namespaces. An ordinary user also gets a user namespace, in which
    the process keeps its user and group, and there are no others."""
    if not linux.IS_HERE:
        raise OSError("only Linux has namespaces")
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    call("unshare", NEWNS | NEWIPC | NEWPID | NEWNET | (NEWUSER if os.geteuid() else 0))
    if os.geteuid() != 0:
        Path("/proc/self/setgroups").write_text("deny")
        for file, number in ids.items():
            Path("/proc/self", file).write_text(f"{number} {number} 1")
    call("prctl", DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call(
        "mount",
        source.encode(),
        str(target).encode(),
        kind.encode(),
        flags,
        options.encode() or None,
    )


def _set_read_only(path: str, on: bool, flags: int = 0) -> None:
    attributes = struct.pack("4Q", READ_ONLY if on else 0, 0 if on else READ_ONLY, 0, 0)
    call(
        "syscall",
        MOUNT_SETATTR,
        ctypes.c_long(HERE),
        path.encode(),
        flags,
        attributes,
        len(attributes),
    )


def close(task: dict) -> None:
    """Turn this process's view of the machine into the sealed one. Nothing that follows needs a
    privilege."""
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc", NOSUID | NODEV)
    keep = [
        path for path in [*task["needed"], *task["writable"], task["work"]] if os.path.exists(path)
    ]
    keep = {path: os.open(path, os.O_PATH) for path in keep}
    _set_read_only("/", True, RECURSIVE)
    for folder in sorted(task["hidden"], key=lambda path: path.count("/")):  # outer ones first
        if os.path.isdir(folder):
            _mount("tmpfs", folder, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
            for path, fd in keep.items():
                if path.startswith(folder.rstrip("/") + "/"):
                    _bring_back(path, fd)
            _set_read_only(folder, True)
    for path in task["writable"]:
        _mount(path, path, "", MS_BIND)
        _set_read_only(path, False)
    for folder in (task["work"], "/dev/shm"):
        if os.path.isdir(folder):
            _mount(
                "tmpfs", folder, "tmpfs", NOSUID | NODEV, f"size={task['limits']['files']},mode=700"
            )
    for fd in keep.values():
        os.close(fd)  # otherwise they would give access to hidden folders
    with socket.socket() as any_socket:  # loopback up: gloo and the kernel's own channels need it
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _bring_back(path: str, fd: int) -> None:
    """Make the file or folder that `fd` refers to visible again at `path`, which is now in a hidden
    folder."""
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    _mount(f"/proc/self/fd/{fd}", path, "", MS_BIND | MS_REC)
