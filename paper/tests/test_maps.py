import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from powerspherical_paper.maps import Grid, hatch


def test_grids():
    cells = Grid.of([1, 30], [7, 1, 5])
    assert cells == ([2, 30], [1, 5, 7])
    assert cells.at(np.array([[0, 0], [0, 1], [1, 0]]) == 1) == [[30, 5], [2, 7]]
    assert Grid.of([10], [1, 100]).edges()[1] == pytest.approx([0.1, 10, 1000])


def test_hatches_cover_their_cells():
    axes = Figure().subplots()
    grid = Grid.of([10, 1000], [1, 100])
    hatch(axes, np.zeros((2, 2), dtype=bool), grid, "xxxx")
    assert not axes.collections
    hatch(axes, np.array([[False, True], [False, False]]), grid, "xxxx")
    (marks,) = axes.collections
    assert isinstance(marks, PolyCollection)
    (box,) = marks.get_paths()
    assert box.vertices.min(0) == pytest.approx([100, 0.1])
    assert box.vertices.max(0) == pytest.approx([10_000, 10])
