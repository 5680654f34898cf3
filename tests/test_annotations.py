"""What the packages export that users call is annotated; `make lint` has mypy check the rest."""

import importlib
import inspect

import pytest

PACKAGES = (
    "lib.launch", "lib.ledger", "lib.collectives", "lib.data_parallel", "lib.pipeline",
    "lib.tensor_parallel", "lib.zero", "lib.moe", "lib.hybrid",
)  # fmt: skip
MODULES = ("lib.hybrid.mesh", "lib.training.model")


def functions(module, names):
    """(name, function) of the functions among `names` of `module`, and of the constructors and
    public methods that its classes define themselves in lib."""
    for name in names:
        value = inspect.unwrap(getattr(module, name))
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and value.__module__.startswith("lib."):
            for method, function in vars(value).items():
                function = getattr(function, "fget", function) or function
                is_public = method == "__init__" or not method.startswith("_")
                if inspect.isfunction(inspect.unwrap(function)) and is_public:
                    yield f"{name}.{method}", inspect.unwrap(function)


def missing(module, names):
    """{name: what of it is not annotated}"""
    found = {}
    for name, function in functions(module, names):
        signature = inspect.signature(function)
        bare = [p for p, one in signature.parameters.items() if one.annotation is one.empty]
        bare = [p for p in bare if p not in ("self", "cls", "ctx")]
        no_result = signature.return_annotation is signature.empty
        if not name.endswith("__init__") and no_result:
            bare.append("return")
        if bare and function.__code__.co_name != "<lambda>":
            found[name] = bare
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_exports_is_annotated(package):
    module = importlib.import_module(package)
    assert missing(module, module.__all__) == {}


@pytest.mark.parametrize("name", MODULES)
def test_the_public_functions_of_a_module_are_annotated(name):
    module = importlib.import_module(name)
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == name]
    assert missing(module, [n for n in own if not n.startswith("_")]) == {}


def test_a_missing_annotation_would_be_found():
    class Here:
        def __init__(self, x):
            self.x = x

        def method(self, y: int):
            return y

    Here.__module__ = "lib.here"
    holder = type("holder", (), {"Here": Here})
    assert missing(holder, ["Here"]) == {"Here.__init__": ["x"], "Here.method": ["return"]}
