"""A kernel of a test's own: what a front end would show of a cell, and when."""

import contextlib
import os
import queue
import re
import tempfile
import textwrap
import time

from jupyter_client.manager import KernelManager
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

PATIENCE = 300  # seconds, on a machine that does ten things at once


class Kernel:
    """A kernel of this Python. attended: whether cells run as in JupyterLab, or as under nbval."""

    def __init__(self, **env):
        # Sockets in a folder of its own. A TCP port is chosen before the kernel binds it, and if
        # another program takes it in between, the kernel neither answers nor ends.
        self.folder = tempfile.TemporaryDirectory(prefix="kernel-")
        self.manager = KernelManager(
            kernel_name=CURRENT_ENV_KERNEL_NAME, kernel_spec_manager=NbvalKernelspecManager(),
            transport="ipc", connection_file=f"{self.folder.name}/connection.json",
        )  # fmt: skip
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("LAB_", "PYTEST_"))}
        self.manager.start_kernel(env=outer | env)
        self.client = self.manager.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=PATIENCE)
        except RuntimeError:
            self.close()
            raise

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.folder.cleanup()

    def run(self, code, attended=True, stop_at=None, answers=()):
        """Run a cell; returns its messages, each with `seconds` since its begin. stop_at: a
        function of the messages so far that says when to press stop; those that come later have
        `after`, the seconds since then. answers: what a person types at each prompt, which is
        among the messages, of the kind "prompt"."""
        answers = list(answers)
        begun, stopped, found = time.monotonic(), None, []
        asked = self.client.execute(textwrap.dedent(code), allow_stdin=attended)
        while time.monotonic() - begun < PATIENCE:
            if stop_at is not None and stopped is None and stop_at(found):
                self.manager.interrupt_kernel()
                stopped = time.monotonic()
            with contextlib.suppress(queue.Empty):
                asked_for = self.client.get_stdin_msg(timeout=0)
                found.append({**asked_for["content"], "kind": "prompt"})
                if answers:
                    self.client.input(answers.pop(0))
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            now, content = time.monotonic(), message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return found
            after = None if stopped is None else now - stopped
            kind = message["msg_type"]
            found.append({**content, "kind": kind, "seconds": now - begun, "after": after})
        raise TimeoutError(f"not within {PATIENCE} s: {code}")


def printed(messages):
    return "".join(one["text"] for one in messages if one["kind"] == "stream")


def cards(messages):
    """[(text, HTML), ...] of what was displayed last at each place: an empty line is none."""
    places = {}
    for place, one in enumerate(messages):
        if one["kind"] in ("display_data", "update_display_data"):
            name = one.get("transient", {}).get("display_id", place)
            places[name] = one["data"].get("text/plain", ""), one["data"].get("text/html", "")
    return [one for one in places.values() if one[0]]


def signs(messages):
    """The texts of the line that says what the ranks do, in the order in which they came."""
    shown = [one["data"]["text/plain"] for one in messages if one["kind"].endswith("display_data")]
    return [text for text in shown if re.match(r"\d+ s: ", text)]


def red(messages):
    """What the red box says; "" if there is none."""
    return "\n".join("\n".join(one["traceback"]) for one in messages if one["kind"] == "error")
