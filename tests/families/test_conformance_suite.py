"""Our families pass the suite that is there for everyone's, and the suite can fail."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from powerspherical import PowerSpherical, RotationallySymmetric, SphericalCauchy, VonMisesFisher
from powerspherical.families import Family
from powerspherical.testing import FamilyConformance


class TestPowerSpherical(FamilyConformance):
    distribution = PowerSpherical


class TestVonMisesFisher(FamilyConformance):
    distribution = VonMisesFisher


class TestSphericalCauchy(FamilyConformance):
    distribution = SphericalCauchy
