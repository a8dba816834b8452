"""Fixtures of the Python tests. Those that take `device` run on the CPU through host execution and on a GPU where
there is one; `pytest -m gpu` or `-m "not gpu"` chooses."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    return torch.device("cuda", torch.cuda.current_device()) if request.param == "cuda" else torch.device("cpu")
