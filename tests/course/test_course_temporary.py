"""A process that is told to stop, at any moment and again, leaves none of its temporary
folders, and stops."""

import subprocess
import sys

from lib.course import notebook

MANY = """
import os, random, signal, sys, time
from lib.course import temporary

def work(base):
    signal.signal(signal.SIGTERM, temporary.stop)
    print(".", end="", flush=True)
    while True:
        with temporary.folder("lab-try-", base) as at:
            for n in range(5):
                (at / str(n)).touch()

draw, codes = random.Random(0), []
for _ in range(100):
    asks, says = os.pipe()
    if (pid := os.fork()) == 0:
        os.dup2(says, 1)
        work(sys.argv[1])
    os.read(asks, 1)
    for _ in range(3):
        time.sleep(draw.uniform(0, 0.002))
        os.kill(pid, signal.SIGTERM)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(asks), os.close(says)
print({*codes} - {143, -signal.SIGTERM}, os.listdir(sys.argv[1]))  # the latter: \
told once more at its very end
"""


def test_no_folder_is_left_whenever_a_process_is_told_to_stop(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path)],
        cwd=notebook.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "set() []\n", done.stderr
