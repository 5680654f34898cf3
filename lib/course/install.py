"""What `make setup` runs: it creates the environment, and installs torch and the rest of the course
into it.

    python3 lib/course/install.py environment .venv
        an empty environment, if this Python is supported
    .venv/bin/python lib/course/install.py packages 2.13.0 dev [INDEX]
        torch from INDEX, or as `choose` decides

Both run in the folder of pyproject.toml. A release has this file too.

On the default index, PyTorch for Linux comes with the CUDA libraries, which a machine without an
NVIDIA GPU cannot use. On such a machine `choose` therefore takes the CPU build, provided that
PyTorch's own index for it answers.

Nothing is installed yet when this program runs, so it uses only the standard library. It also has
to run on an old Python in order to report that it is too old, so its syntax is that of Python 3.6.
"""

import ast
import importlib.util
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SECONDS = 3  # the time that an index has to answer
DRIVER_FILES = (
    "/proc/driver/nvidia/version",
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/usr/lib/wsl/lib/libcuda.so.1",
)
# Sizes of the wheels and of the environment, for torch 2.13.0 with the rest of the course on
# Python 3.11 and Linux x86-64.
CPU_SIZE = "about 0.4 GB to download and 1.5 GB on disk"
CUDA_SIZE = "about 3 GB to download and 8 GB on disk"
# pip's settings that let it find packages elsewhere than on its index
LOCAL = "find-links", "extra-index-url", "no-index"
AGAIN = "Then repeat the command."


def main(arguments):
    """Run one of the two commands above. If there is something that the user has to fix, exit with
    a message that says so."""
    command, *rest = arguments
    if not os.access(".", os.W_OK):
        sys.exit(
            f"{os.getcwd()} cannot be written to: copy the course to a folder of your own, and run "
            f"the command there."
        )
    try:
        {"environment": make_environment, "packages": install_packages}[command](*rest)
    except KeyboardInterrupt:
        sys.exit("stopped: run the same command again to continue the installation")


def make_environment(folder):
    """Create the environment `folder` with the Python that runs this program."""
    if refused():
        sys.exit(f"{refused()}: {another_python()}")
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python3.{sys.version_info[1]}-venv"
        text = (
            f"{sys.executable} cannot create an environment, because it has no ensurepip: install "
            f"it (on Debian and"
        )
        sys.exit(f"{text} Ubuntu with `apt-get install {package}`). {AGAIN}")
    print(f"creating {folder}", flush=True)
    if subprocess.call([sys.executable, "-m", "venv", folder]):
        # otherwise the next run would mistake what is left for an environment
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"{folder} could not be created, for the reason above: fix that. {AGAIN}")


def install_packages(torch, extras, given=""):
    """Install this release of torch, and then the course with these extras, for the Python that
    runs this program.

    given: the index from which the user wants torch; "" leaves the decision to `choose`. If this
    release is already installed, it stays.
    """
    wrong = refused() or ("" if importlib.util.find_spec("pip") else f"{sys.prefix} has no pip")
    if wrong:
        sys.exit(f"{wrong}: delete that environment (or deactivate it, if it is conda's). {AGAIN}")
    begin, settings = time.time(), pip_settings()
    require_network([given, own_index(settings) or default_index()], settings)
    if installed_torch().split("+")[0] == torch:
        index, told = "", f"{installed_torch()} is installed already.{unused_gpu()}"
    else:
        index, why = choose(given, settings)
        told = f"{torch} {why}"
    print(f"PyTorch {told}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    pip += [] if sys.stderr.isatty() else ["--quiet"]  # its progress bars are for a terminal
    for what in (
        [f"torch=={torch}", *(["--index-url", index] if index else [])],
        ["-e", f".[{extras}]"],
    ):
        if subprocess.call(pip + what):
            sys.exit(
                f"pip could not run `install {' '.join(what)}`, for the reason above: fix that. "
                f"{AGAIN}"
            )
    size = subprocess.check_output(["du", "-sh", sys.prefix], text=True).split()[0]
    print(f"{sys.prefix} is ready: {size}, {time.time() - begin:.0f} s")


def choose(given, settings):
    """Decide where torch comes from. Returns (the index's URL, or "" for the one that pip uses; a
    text with the reason and the size of the download).

    given: the index that the user asked for, which is always taken.
    settings: those of pip. If they name an index, that one is used, because it was chosen for this
    machine.
    """
    either = f"the CPU build is {CPU_SIZE}, one with CUDA {CUDA_SIZE}."
    if given:
        return given, f"comes from {public(given)}, as TORCH_INDEX asks: {either}"
    if own_index(settings):
        return (
            "",
            f"comes from {public(own_index(settings))}, the index in pip's settings: {either}",
        )
    if sys.platform != "linux":
        return "", f"comes from pip's index, which has the CPU build for this system: {CPU_SIZE}."
    found = driver()
    if found:
        return "", f"comes with CUDA, because there is an NVIDIA driver ({found}): {CUDA_SIZE}."
    wrong = unreachable(CPU_INDEX, settings)
    if not wrong:
        why = (
            f"comes from {CPU_INDEX}, as a CPU build, because no NVIDIA driver was found: "
            f"{CPU_SIZE}. If machines"
        )
        return (
            CPU_INDEX,
            f"{why} with GPUs share this folder, use `make setup TORCH_INDEX={default_index()}` "
            f"instead.",
        )
    why = f"comes from pip's index, because {CPU_INDEX}, which has the CPU build, cannot be reached"
    return (
        "",
        f"{why} ({reason(wrong)}). It usually has the CUDA build: {CUDA_SIZE}. TORCH_INDEX=URL "
        f"names another index.",
    )


def driver():
    """The file, library or program that shows that this machine has an NVIDIA driver; "" if
    there is none."""
    for path in DRIVER_FILES:
        if os.path.exists(path):
            return path
    # In some containers, and on a Jetson, only the library reveals the driver. A CUDA toolkit has
    # this library, too, but there it finds no GPU.
    try:
        import ctypes  # a Python that was built without libffi has none

        if ctypes.CDLL("libcuda.so.1").cuInit(0) == 0:
            return "libcuda.so.1"
    except (ImportError, OSError, AttributeError):
        pass
    try:
        asked = subprocess.run(
            ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10
        )
        return "nvidia-smi" if asked.returncode == 0 and asked.stdout.startswith(b"GPU ") else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def unused_gpu():
    """What to say if the torch that is installed is a CPU build, and there is an NVIDIA
    driver; else ""."""
    if not (installed_torch().endswith("+cpu") and driver()):
        return ""
    return (
        f" It is a CPU build, so the GPUs here are not used: to use them, delete {sys.prefix} and "
        f"run `make setup`."
    )


def pip_settings():
    """What pip reads from its files and from PIP_... in the environment: {"index-url": ...,
    "proxy": ...}."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout
    found = {}
    for section in ("global.", "install.", ":env:."):  # in this order, a later one overrides
        for name, _, value in (
            line.partition("=") for line in listed.splitlines() if line.startswith(section)
        ):
            found[name[len(section) :]] = ast.literal_eval(value)
    return found


def own_index(settings):
    """The index that pip's settings name instead of the default one; else ""."""
    own = settings.get("index-url", "")
    return own if own and own.rstrip("/") != default_index() else ""


def default_index():
    """The index that pip uses if its settings name none, as its help says; "" if that is
    not found there."""
    # without the environment's settings
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--help"]
    without = {**os.environ, "PIP_CONFIG_FILE": os.devnull}  # and without those of files
    told = subprocess.run(
        command, env=without, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout
    found = re.search(r"--index-url <url> [^(]*\(default (\S+)\)", " ".join(told.split()))
    return found.group(1) if found else ""


def require_network(indexes, settings):
    """Exit with a message if one of the indexes cannot be reached, unless pip's settings let it
    look elsewhere."""
    if any(map(settings.get, LOCAL)):
        return
    for index in filter(None, indexes):
        wrong = unreachable(index, settings)
        # an index that is merely slow, or refuses us, is left to pip
        if isinstance(wrong, OSError):
            text = (
                f"{public(index)} cannot be reached ({reason(wrong)}): connect this machine to the "
                f"network, set"
            )
            text += (
                " HTTPS_PROXY if it needs a proxy, or name another index (PIP_INDEX_URL; for torch "
                "TORCH_INDEX)."
            )
            sys.exit(f"{text} {AGAIN}")


def unreachable(index, settings, seconds=SECONDS):
    """Why an index does not answer, after at most `seconds`; None if it does, or if its address is
    not one of the web.

    An OSError means that it cannot be reached; any other reason is a string. The request uses the
    proxy that pip would use. It does not check certificates, because nothing in the answer is used,
    and pip checks them when it downloads.
    """
    if not index.startswith(("http://", "https://")):
        return None
    told = []

    def ask():
        try:
            request(f"{index.rstrip('/')}/torch/", settings.get("proxy"), seconds)
            told.append(None)
        except urllib.error.HTTPError as error:
            told.append(str(error))
        except urllib.error.URLError as error:
            told.append(
                str(error.reason) if isinstance(error.reason, ssl.SSLError) else error.reason
            )
        except Exception as error:
            told.append(str(error) or type(error).__name__)

    # in a thread, because looking up a host's name may take longer than the timeout
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    late = not told or isinstance(told[0], socket.timeout)
    return f"no answer within {seconds} s" if late else told[0]


def request(url, proxy, seconds):
    """Request a page, through `proxy` if there is one, otherwise as the environment says. Raises an
    error if there is no answer, or if the answer is an error."""
    proxies = urllib.request.getproxies()
    every = proxy or proxies.get("all")
    if every:
        proxies = (
            {"http": every, "https": every} if proxy else {"http": every, "https": every, **proxies}
        )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers = urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context)
    urllib.request.build_opener(*handlers).open(url, timeout=seconds).close()


def reason(wrong):
    """The reason in words, without the number of an OSError."""
    return getattr(wrong, "strerror", None) or wrong


def public(index):
    """An index as it may be printed, without a user name and password in its URL."""
    return re.sub("//[^/]*@", "//", index)


def installed_torch():
    """The release of torch that is installed, such as "2.13.0+cpu"; "" if none is."""
    from importlib import metadata  # since Python 3.8; older ones have been refused before

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def pythons():
    """The minor versions of Python 3 that pyproject.toml allows, such as [11, 12, 13, 14]."""
    with open("pyproject.toml", encoding="utf-8") as file:
        wanted = re.search(r'^requires-python = "(.*)"', file.read(), re.MULTILINE).group(1)
    low, end = (int(re.search(sign + r"3\.(\d+)", wanted).group(1)) for sign in (">=", "<"))
    return [minor for minor in range(low, end) if f"!=3.{minor}.*" not in wanted]


def refused():
    """The beginning of a sentence if the course does not run on this Python; else ""."""
    if sys.version_info[0] == 3 and sys.version_info[1] in pythons():
        return ""
    *most, last = (f"3.{minor}" for minor in pythons())
    wanted = f"{', '.join(most)} or {last}" if most else last
    return f"The course needs Python {wanted}, but {sys.executable} is {sys.version.split()[0]}"


def another_python():
    """What to do if this Python cannot be used: take another that is installed, or install one."""
    for name in (f"python3.{minor}" for minor in reversed(pythons())):
        if shutil.which(name) and not subprocess.call([name, "-c", ""], stderr=subprocess.DEVNULL):
            return f"add PYTHON={name} to the command."
    return (
        "install one of these and add PYTHON=its-path to the command, or use conda and "
        "environment.yml."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
