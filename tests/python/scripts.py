"""Scripts of the tree as modules."""

import importlib.util
import pathlib
import sys


def load(path: pathlib.Path):
    """It finds what is beside it, as where it is run."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
