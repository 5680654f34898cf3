"""Options shared by all tests."""


def pytest_addoption(parser):
    parser.addoption(
        "--backend", default="auto", choices=["auto", "gloo", "nccl", "nccl-shared"],
        help="the backend that tests on ranks use; `make test-gpu` gives nccl and nccl-shared",
    )  # fmt: skip
