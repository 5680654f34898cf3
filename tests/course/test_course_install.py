"""What `make setup` decides and says: which index torch comes from, without a network, with a
Python that will not do.

The indexes are servers on this machine, and the wheels contain nothing. The public CPU index is not
asked.
"""

import ast
import contextlib
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lib.course import install
from lib.course.notebook import ROOT

TORCH = "2.13.0"


def write_index(folder, version):
    """An index as PEP 503 describes it, with one wheel: torch of this version, which
    contains nothing."""
    folder.mkdir(parents=True)
    info, wheel = f"torch-{version}.dist-info", f"torch-{version}-py3-none-any.whl"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        for name, text in texts.items():
            archive.writestr(f"{info}/{name}", text)
        archive.writestr(
            f"{info}/RECORD", "".join(f"{info}/{name},,\n" for name in [*texts, "RECORD"])
        )
    (folder / "index.html").write_text(f'<a href="{wheel.replace("+", "%2B")}">{wheel}</a>')


@contextlib.contextmanager
def serving(folder, asked):
    """The address of a server of the files in `folder`; each path that is asked for is added to
    `asked`.

    As a proxy it answers for every host, with the same files.
    """

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(folder))

        def translate_path(self, path):
            return super().translate_path(urlsplit(path).path)

        def log_request(self, *_):
            asked.append(self.path)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def indexes(tmp_path):
    """(the address of a CPU index and of a default one, what has been asked of them)."""
    write_index(tmp_path / "served/whl/cpu/torch", f"{TORCH}+cpu")
    write_index(tmp_path / "served/simple/torch", TORCH)
    asked = []
    with serving(tmp_path / "served", asked) as address:
        yield f"{address}/whl/cpu", f"{address}/simple", asked


@pytest.fixture
def silent():
    """The address of a server that takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/whl/cpu"


@pytest.fixture
def closed():
    """An address at which no server is: it refuses at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}/whl/cpu"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """Neither pip's settings on this machine nor its proxies."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower() in (
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "no_proxy",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def decides(monkeypatch):
    """Calls `choose` as on Linux, with a driver or without one, for a CPU index at this address."""

    def decide(cpu, given="", settings=None, driver="", platform="linux"):
        monkeypatch.setattr(install, "CPU_INDEX", cpu)
        monkeypatch.setattr(install, "driver", lambda: driver)
        monkeypatch.setattr(sys, "platform", platform)
        return install.choose(given, settings or {})

    return decide


def test_the_cpu_build_is_taken_where_there_is_no_driver_and_its_index_answers(decides, indexes):
    cpu, default, asked = indexes
    index, why = decides(cpu)
    assert index == cpu and "no NVIDIA driver was found" in why and install.CPU_SIZE in why
    assert asked == ["/whl/cpu/torch/"]  # one request, and no more
    for how in ({"driver": "/dev/nvidia0"}, {"given": default}, {"platform": "darwin"}):
        index, why = decides(cpu, **how)
        assert index == how.get("given", "") and "to download" in why
    index, why = decides(cpu, settings={"index-url": "https://me:secret@pypi.example.org/simple"})
    assert index == "" and "https://pypi.example.org/simple" in why and "secret" not in why
    assert len(asked) == 1  # where nothing is to be decided, nothing is asked


def test_an_index_that_refuses_or_has_no_torch_is_not_taken(decides, indexes, closed):
    for cpu, wrong in ((closed, "Connection refused"), (indexes[1].removesuffix("/simple"), "404")):
        index, why = decides(cpu)
        assert index == "" and wrong in why and install.CUDA_SIZE in why


def test_an_index_that_never_answers_is_given_up(silent):
    begin = time.monotonic()
    assert install.unreachable(silent, {}, seconds=0.2) == "no answer within 0.2 s"
    assert time.monotonic() - begin < 10 and install.SECONDS == 3


def test_the_request_takes_the_proxy_that_pip_takes(monkeypatch, indexes):
    proxy, asked = indexes[0].partition("/whl")[0], indexes[2]
    assert install.unreachable("http://cpu.invalid/whl/cpu", {"proxy": proxy}) is None
    for name in ("HTTP_PROXY", "all_proxy"):
        with monkeypatch.context() as patched:
            patched.setenv(name, proxy)
            assert install.unreachable("http://cpu.invalid/whl/cpu", {}) is None
    assert asked == ["http://cpu.invalid/whl/cpu/torch/"] * 3


def test_pip_s_settings_are_read_in_pip_s_order(tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a.example/simple\nfind-links = /a\n  /b\nproxy = http://a\n"
        "[install]\nindex-url = https://b.example/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_PROXY", "http://b")
    read = install.pip_settings()
    assert (install.own_index(read), read["proxy"]) == ("https://b.example/simple", "http://b")
    assert read["find-links"].split() == ["/a", "/b"]
    default = install.default_index()
    assert default.startswith("https://") and install.own_index({"index-url": f"{default}/"}) == ""


def test_without_a_network_one_sentence_names_the_next_move_unless_pip_has_files(
    closed, silent, monkeypatch
):
    with pytest.raises(SystemExit) as stop:
        install.require_network(["", closed], {})
    told = str(stop.value)
    assert told.startswith(
        f"{closed} cannot be reached (Connection refused): connect this machine to the network"
    )
    assert told.endswith("Then repeat the command.") and told.count("\n") == 0
    install.require_network([closed], {"find-links": "/wheels"})
    monkeypatch.setattr(install.unreachable, "__defaults__", (0.2,))
    install.require_network([silent], {})  # it may only be slow


def test_a_driver_is_seen_by_a_file_or_by_a_program_that_names_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "DRIVER_FILES", (str(tmp_path / "version"),))
    monkeypatch.setattr("ctypes.CDLL", no_library)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    smi = tmp_path / "nvidia-smi"
    for script, seen in (
        ("echo 'GPU 0: one'", "nvidia-smi"),
        ("echo failed; exit 9", ""),
        ("echo No devices", ""),
    ):
        smi.write_text(f"#!/bin/sh\n{script}\n")
        smi.chmod(0o755)
        assert install.driver() == seen
    for code, seen in ((0, "libcuda.so.1"), (100, "")):  # 100: CUDA_ERROR_NO_DEVICE
        monkeypatch.setattr(
            "ctypes.CDLL",
            lambda name, code=code: type("Library", (), {"cuInit": lambda _, __: code})(),
        )
        assert install.driver() == seen
    (tmp_path / "version").touch()
    assert install.driver() == str(tmp_path / "version")


def no_library(name):
    raise OSError(f"{name}: cannot open shared object file")


def test_a_python_that_will_not_do_is_told_in_one_sentence(tmp_path, monkeypatch):
    """The program itself runs on any Python 3.6 and later."""
    ast.parse(Path(install.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nrequires-python = ">=3.96,<3.99,!=3.97.*"\n'
    )
    for arguments, next_move in (
        (["environment", "new"], "install one"),
        (["packages", TORCH, "dev"], "delete that"),
    ):
        command = [sys.executable, install.__file__, *arguments]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        begins = (
            f"The course needs Python 3.96 or 3.98, but {sys.executable} is "
            f"{sys.version.split()[0]}: {next_move}"
        )
        assert (
            told.returncode == 1 and told.stderr.startswith(begins) and told.stderr.count("\n") == 1
        )
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        SystemExit, match=rf"no ensurepip: .*`apt-get install python3\.{sys.version_info[1]}-venv`"
    ):
        install.make_environment(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_installed(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(
        SystemExit, match="cannot be written to: copy the course to a folder of your own"
    ):
        install.main(["packages", TORCH, "dev"])


def test_an_environment_that_fails_is_not_left_half_made(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    monkeypatch.chdir(ROOT)
    with pytest.raises(
        SystemExit, match=r"file/new could not be created, for the reason above: fix that"
    ):
        install.make_environment(str(tmp_path / "file" / "new"))
    assert "Not a directory" in "".join(capfd.readouterr())


BACKEND = """import zipfile
def build_editable(folder, config=None, metadata=None):
    name = "course-1.0-py3-none-any.whl"
    texts = {"METADATA": \
"Metadata-Version: 2.1\\nName: course\\nVersion: 1.0\\nProvides-Extra: dev\\n",
             "WHEEL": \
"Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
             "RECORD": ""}
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        for key, text in texts.items():
            archive.writestr(f"course-1.0.dist-info/{key}", text)
    return name
"""


@pytest.fixture
def course(tmp_path, indexes):
    """A folder with our Makefile and a course that contains nothing; its program asks the given
    indexes for torch."""

    def make(cpu):
        folder = tmp_path / "course"
        (folder / "lib/course").mkdir(parents=True, exist_ok=True)
        (folder / "Makefile").write_text((ROOT / "Makefile").read_text())
        (folder / "backend.py").write_text(BACKEND)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            f'[project]\nname = "course"\nversion = "1.0"\nrequires-python = '
            f'">=3.{sys.version_info[1]},<3.99"\n'
        )
        program = Path(install.__file__).read_text(encoding="utf-8")
        files = "DRIVER_FILES = ()  #"
        changed = {install.CPU_INDEX: cpu, "DRIVER_FILES = (": f"{files} ("}
        changed |= {
            '"libcuda.so.1"': '"no-libcuda.so.1"',
            '"nvidia-smi", "-L"': '"pretended-smi", "-L"',
        }
        main = 'if __name__ == "__main__":'
        changed[main] = f"def default_index():\n    return {indexes[1]!r}\n\n\n{main}"
        for old, new in changed.items():
            assert old in program
            program = program.replace(old, new)
        (folder / "lib/course/install.py").write_text(program)
        return folder

    return make


@pytest.mark.slow
def test_make_setup_installs_from_where_it_says(
    course, indexes, closed, silent, tmp_path, monkeypatch
):
    cpu, default, asked = indexes
    monkeypatch.setenv("PIP_INDEX_URL", default)  # in the place of pip's own default
    monkeypatch.setenv("PATH", f"{tmp_path / 'pretended'}:{os.environ['PATH']}")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)

    def setup(at, *variables):
        """Set up anew; returns (the release of torch that is there afterwards, what was
        said, seconds)."""
        folder, begin = course(at), time.monotonic()
        asked.clear()
        python = folder / ".venv/bin/python"
        if python.exists():
            subprocess.run([python, "-m", "pip", "uninstall", "-qy", "torch"], check=True)
            for stamp in (folder / ".venv").glob(".labs-ready*"):
                stamp.unlink()
        told = subprocess.run(
            ["make", "setup", f"PYTHON={sys.executable}", *variables],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        ask = (
            "from importlib import metadata as m; print([d.version for d in m.distributions() if "
            "d.name == 'torch'])"
        )
        there = subprocess.run(
            [python, "-c", ask], capture_output=True, text=True, check=True
        ).stdout.strip(" '[]\n")
        return there, told.stdout + told.stderr, time.monotonic() - begin

    there, said, _ = setup(cpu)
    assert (
        there == f"{TORCH}+cpu"
        and "creating .venv" in said
        and "no NVIDIA driver was found" in said
    ), said
    assert said.index("to download") < said.index("is ready")
    there, said, _ = setup(closed)
    assert there == TORCH and "Connection refused" in said and install.CUDA_SIZE in said, said
    there, said, took = setup(silent)
    assert there == TORCH and "no answer within 3 s" in said and took > 3, said
    there, said, _ = setup(closed, f"TORCH_INDEX={cpu}")
    assert there == f"{TORCH}+cpu" and "as TORCH_INDEX asks" in said, said
    (tmp_path / "pretended").mkdir()
    smi = tmp_path / "pretended" / "pretended-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: pretended'\n")
    smi.chmod(0o755)
    there, said, _ = setup(cpu)
    assert there == TORCH and "because there is an NVIDIA driver" in said, said
    assert not [path for path in asked if path.startswith("/whl/")]
    monkeypatch.setenv("PIP_INDEX_URL", closed)
    there, said, took = setup(cpu)
    assert not there and f"{closed} cannot be reached (Connection refused)" in said, said
