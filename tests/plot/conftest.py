import pytest


@pytest.fixture
def pyplot():
    """pyplot without a display, whose figures are closed after the test."""
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    yield pyplot
    pyplot.close("all")
