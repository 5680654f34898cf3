"""What all tests share: which backend they run on, and the processes that tests start kept light.

    --backend      a launch that names no backend  GPUs
    gloo           gloo                            hidden, also from the programs
                                                   and kernels that tests start
    nccl, -shared  NCCL with a GPU for each rank,  seen
                   else gloo ("auto")

So `make test` tests the same on a machine with eight GPUs as on one without. Tests that ask for
`--backend`, such as those of the collectives, run on it, or are skipped where the GPUs are too few.
"""

import atexit
import contextlib
import fcntl
import gc
import os
import pathlib
import random
import shutil
import signal
import tempfile

import pytest


def temporary_folder_of_its_own():
    """For what these tests and their programs make, but for pytest's own folders, which are kept
    for a look at them.

    lib keeps two files there that a measurement locks, to have the machine for itself
    (lib/launch/alone.py). With those of the machine, each launch of a test would wait up to a
    minute while a notebook measures, or another checkout.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="labs-")
    os.chmod(folder, 0o755)  # notebooks are graded as another user
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


# Before anything registers what it does at exit: the last to be called is this, when no process
# needs the folder.
if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers of pytest-xdist inherit it
    temporary_folder_of_its_own()
with contextlib.suppress(ModuleNotFoundError):  # a student's bundle has no lib.course
    import lib.course  # noqa: F401  before nbformat: see there what it leaves out

# A shell without job control starts what is in the background with Ctrl-C ignored, and our programs
# would inherit that: those that a test interrupts would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Thousands of tests are read, and stay: the collector is not to look through them, neither now nor
# later.
gc.disable()
# Several tests run at a time: threads that wait for each other in every one of them would use the
# processors up.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    parser.addoption(
        "--backend", default="gloo", choices=["gloo", "nccl", "nccl-shared"],
        help="the backend that tests on ranks use; `make test-gpu` gives nccl and nccl-shared",
    )  # fmt: skip
    parser.addoption(
        "--shuffle", metavar="SEED", help="run the test files in an order drawn with this seed"
    )
    parser.addoption(
        "--times", metavar="N", type=int, help="run the tests so often, all of them in turn"
    )


def pytest_configure(config):
    if config.getoption("--backend") == "gloo":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks
    # First in the list, so that what pyproject.toml says of a warning by name comes before it.
    own = sorted(
        {"lib", "tests", *(path.stem for path in pathlib.Path(__file__).parent.rglob("*.py"))}
    )
    # A file that was not closed is blamed on whatever line runs when it is collected.
    config.getini("filterwarnings")[:0] = [
        rf"error:::({'|'.join(own)})(\.|$)",
        "ignore::ResourceWarning",
    ]


def pytest_generate_tests(metafunc):
    if times := metafunc.config.getoption("--times"):
        metafunc.fixturenames.append("nth_time")
        # all tests once, then all of them again
        metafunc.parametrize("nth_time", range(times), scope="session")


@pytest.fixture(scope="session")
def nth_time(request):
    return request.param


def pytest_collection_modifyitems(config, items):
    """Files are shuffled, and the tests of a file stay in order: they share what is
    expensive to make."""
    if (seed := config.getoption("--shuffle")) is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        rank = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: rank[item.path])


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def launches_on(backend):
    """Launches that name no backend get this one."""
    from lib import launch

    both = (launch.run, launch.capture)
    before = [start.__kwdefaults__["backend"] for start in both]
    for start in both:
        start.__kwdefaults__["backend"] = backend
    yield
    for start, was in zip(both, before, strict=True):
        start.__kwdefaults__["backend"] = was


@pytest.fixture(scope="session", autouse=True)
def ranks_use_the_backend_asked_for(request):
    with launches_on("gloo" if request.config.getoption("--backend") == "gloo" else "auto"):
        yield


@pytest.fixture(scope="module")
def on_gloo():
    """For tests of what only gloo does: on it, whatever --backend says."""
    with launches_on("gloo"):
        yield


@pytest.fixture(scope="session", autouse=True)
def ranks_start_light():
    """Ranks fork from a server that has imported torch. Here all of it at once, and what of lib
    most ranks import.

    And a check gives up later, for in one launch it judges many answers, beside other tests on a
    slow machine.
    """
    from lib.check import framework
    from lib.launch import server

    lib = [
        "lib.launch.worker",
        "lib.check.framework",
        "lib.collectives",
        "lib.training.model",
        "lib.training.text",
        "lib.hybrid",
    ]
    lib += [f"lib.check.{name}" for name in ("footprint", "side_by_side", "symptoms", "traffic")]
    server.PRELOAD, server.AT_ONCE = [*server.PRELOAD, *lib], True
    framework.TIMEOUT = 60


@pytest.fixture(scope="session", autouse=True)
def one_large_launch_at_a_time():
    """8 ranks beside 8 others on two cores take five times the processor time that they take one
    after the other.

    So of all tests that run side by side, one at a time has more than 6 ranks.
    """
    from lib.launch import warm

    taken = warm.taken

    @contextlib.contextmanager
    def after_other_large_ones(choice, nproc, *rest):
        with contextlib.ExitStack() as held:
            if nproc > 6:
                # one file for all workers
                fcntl.flock(held.enter_context(open(__file__)), fcntl.LOCK_EX)
            yield held.enter_context(taken(choice, nproc, *rest))

    warm.taken = after_other_large_ones
    yield
    warm.taken = taken


@pytest.fixture
def words_only(monkeypatch):
    """For tests of what a figure says: to draw it and to put it into words, without the
    making of its PNG."""
    from lib.plots import style

    monkeypatch.setattr(style, "rendered", lambda figure: b"")
