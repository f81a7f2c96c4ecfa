"""A pytest suite for families of distributions on the sphere, including your own (extra ``testing``).

Subclass ``FamilyConformance`` and name the distribution to test::

    from powerspherical.testing import FamilyConformance

    class TestMyDistribution(FamilyConformance):
        distribution = MyDistribution
"""

from powerspherical._extras import install_hint

try:
    import pytest
    import scipy  # noqa: F401
except ImportError as error:
    raise ImportError(f"powerspherical.testing needs pytest and SciPy: {install_hint('testing')}") from error

pytest.register_assert_rewrite("powerspherical.testing.conformance")

from powerspherical.testing.conformance import FamilyConformance, plain_twin  # noqa: E402

__all__ = ["FamilyConformance", "plain_twin"]
