"""How tests recognize their own processes and ports among all others of the machine."""

import os
import socket
import subprocess
import sys

import own_processes
import pytest

WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def start():
    """Start a process that waits, with these words and variables, in a session of its own."""
    started = []

    def start(*words, **env):
        command = [sys.executable, "-S", "-c", WAITS, *words]
        streams = {"stdin": subprocess.PIPE, "start_new_session": True}
        started.append(subprocess.Popen(command, env={**os.environ, **env}, **streams))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_what_carries_a_mark_is_found_and_nothing_else(start):
    mark, word = own_processes.new_mark(), own_processes.long_sleep()
    others = [
        start(""),
        start("torchrun", "lib.launch"),
        start(LAB_TEST_MARK=own_processes.new_mark()),
    ]
    inherits, has_the_word = start(LAB_TEST_MARK=mark), start("sleep", word)
    assert [process.pid for process in own_processes.running(mark)] == [inherits.pid]
    assert [process.pid for process in own_processes.running(word)] == [has_the_word.pid]
    assert all(process.poll() is None for process in others)
    has_the_word.kill()
    has_the_word.wait()
    assert own_processes.left(word) == [] and own_processes.left(mark, seconds=0.3) != []


@pytest.mark.parametrize("mark", ["", "torchrun", "600.25"])
def test_a_mark_that_other_processes_may_carry_is_refused(mark):
    with pytest.raises(ValueError, match="too short to be nobody else's"):
        own_processes.running(mark)


def test_a_port_that_is_held_can_be_listened_at_and_is_given_to_no_other_program():
    with own_processes.own_port() as port, socket.socket() as server, socket.socket() as other:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        server.bind(("127.0.0.1", port))
        server.listen()
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
