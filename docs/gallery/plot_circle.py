"""
Hours of the day on a circle
============================

When do calls come in? An hour is an angle: 23:30 is close to 0:30. Fit the hours of 800 calls with three families on
the circle, and compare how well they fit.
"""

# %%
# The data are simulated. Seven of eight calls come around 21:30, and the others at any time. A point of the circle is
# (sin, cos) of the angle. So midnight is at the top, and hours run clockwise.

import math

import matplotlib.pyplot as plt
import numpy as np
import torch

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.plot import plot_density

random = np.random.default_rng(0)
hours = np.concatenate([random.normal(21.5, 1.6, size=700), random.uniform(0, 24, size=100)])
angles = torch.from_numpy(hours) * (2 * math.pi / 24)
x = torch.stack([angles.sin(), angles.cos()], dim=-1)

# %%
# For d = 2 the von Mises–Fisher distribution is the von Mises distribution. All three families have two parameters, so
# their log-likelihoods can be compared directly.

families = {
    "von Mises": VonMisesFisher,
    "Power Spherical": PowerSpherical,
    "spherical Cauchy": SphericalCauchy,
}
fits = {name: family.fit(x) for name, family in families.items()}
nats = {name: q.log_prob(x).sum().item() for name, q in fits.items()}
for name, q in fits.items():
    hour = math.atan2(*q.loc) % (2 * math.pi) * 24 / (2 * math.pi)
    print(f"{name:17} peak {hour:.1f} h, κ = {q.concentration:5.2f}, log-likelihood {nats[name]:.0f} nats")

# %%
# The Power Spherical density is zero opposite to its mean direction. So the few calls in the morning broaden it most,
# and it fits worst. The spherical Cauchy distribution has heavy tails and fits best, but its peak is too sharp.

figure, ax = plt.subplots(figsize=(7, 4.9), layout="constrained")
for k, (name, q) in enumerate(fits.items()):
    color = ("#0072B2", "#D55E00", "#009E73")[k]
    plot_density(q, ax, label="", scale=1.2, color=color, points=None if k else x)
    ax.plot([], [], color=color, label=f"{name}, {nats[name]:.0f} nats")
for hour in (0, 6, 12, 18):
    angle = 2 * math.pi * hour / 24
    ax.text(
        0.86 * math.sin(angle), 0.86 * math.cos(angle), f"{hour} h", ha="center", va="center", color="#333333"
    )
figure.suptitle("Calls by hour, and three fitted densities")
figure.legend(frameon=False, loc="outside right center")
