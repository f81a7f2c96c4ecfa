"""Without its extra, the subpackage says what to install."""

import subprocess
import sys

import pytest

from powerspherical._extras import install_hint


@pytest.mark.slow
def test_scikit_learn_is_asked_for():
    code = "import sys; sys.modules['sklearn'] = None; import powerspherical.mixture"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: powerspherical.mixture needs scikit-learn: {install_hint('mixture')}"
    )


@pytest.mark.slow
def test_dask_is_not_imported_for_arrays():
    code = (
        "import sys, numpy as np; from powerspherical.mixture import SphericalKMeans; "
        "SphericalKMeans(2).fit(np.eye(4)); print('dask' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
