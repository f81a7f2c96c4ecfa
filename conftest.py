"""What every test starts from, and what it must not leave behind."""

import atexit
import gc
import importlib.util
import os
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
import torch
from torch.distributions import Distribution

from helpers.engines import ENGINES, Engine, is_missing
from helpers.fast import fast
from powerspherical import engines

#: Where JAX is not installed, as on Python 3.10, its part of the package cannot be imported.
collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["src/powerspherical/jax/*"]

if torch.cuda.is_available():
    seed = torch.manual_seed
else:
    # torch.manual_seed also records a stack trace for each kind of device that is not in use.
    seed = torch.default_generator.manual_seed
    # Without a GPU the fused kernels run in Triton's interpreter, which must be asked for before Triton is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="run one case of each test, and none of those marked slow"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and tests out of garbage collection, which otherwise takes half of the time of collecting.

    Compilers make many objects. With Python's own thresholds a sixth of their time goes into looking for garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # nanobind reports what the interpreter does not free at its end
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes, by pytest-xdist
        # Files with many slow tests come first: with short ones last, all processes end at about the same time.
        slow = Counter(item.path for item in items if "slow" in item.keywords)
        items.sort(key=lambda item: -slow[item.path])
    if config.getoption("fast"):
        kept = fast(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


@pytest.fixture(autouse=True)
def _seed() -> None:
    seed(20200607)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Run the test once with each engine. Those that are missing here are skipped."""
    if is_missing(request.param):
        pytest.skip(f"the engine {request.param!r} cannot run here")
    found = ENGINES[request.param]
    with engines.engine(found.name):
        yield found


@pytest.fixture(autouse=True)
def _restore_validation():
    """torch.compile switches the validation of all distributions off, for the rest of the process."""
    default = Distribution._validate_args
    yield
    Distribution.set_default_validate_args(default)
