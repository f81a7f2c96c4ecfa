"""
A cone that contains 95 % of the distribution
=============================================

You measured 300 directions in space. Report their mean direction, and the cone around it that contains 95 % of the
fitted distribution. A new measurement falls into this cone with a probability of about 95 %. The cone is not a
confidence region for the mean direction, which is much narrower.
"""

# %%
# Fit a distribution to the measurements. ``cap_angle`` returns the angle between the mean direction and the side of the
# cone, in radians.

import math

import matplotlib.pyplot as plt
import torch

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.plot import plot_density

torch.manual_seed(0)
x = PowerSpherical(torch.tensor([0.48, -0.64, 0.6]), 18.0).sample((300,))
q = PowerSpherical.fit(x)
angle = q.cap_angle(0.95)
inside = (x @ q.loc > angle.cos()).float().mean()
print(f"κ = {q.concentration:.1f}, cone of {math.degrees(angle):.0f}°, {inside:.1%} of the points inside")

# %%
# The cone meets the sphere in a circle, drawn in orange.

east = torch.nn.functional.normalize(torch.linalg.cross(torch.eye(3)[2], q.loc), dim=0)
north = torch.linalg.cross(q.loc, east)
turn = torch.linspace(0, 2 * math.pi, 200)[:, None]
rim = angle.cos() * q.loc + angle.sin() * (turn.cos() * east + turn.sin() * north)
view = math.degrees(q.loc[2].asin()) - 15, math.degrees(q.loc[1].atan2(q.loc[0])) - 30

figure = plt.figure(figsize=(7, 4.9), layout="constrained")
globe = figure.add_subplot(projection="3d")
plot_density(q, globe, points=x, color="#56B4E9", label="", colorbar=False, view=view)
globe.set_box_aspect((1, 1, 1), zoom=1.4)
globe.plot(*rim.T, color="#D55E00", linewidth=2.5, zorder=6)
globe.set_title(f"95 % of the distribution lies within {math.degrees(angle):.0f}° of the mean")

# %%
# The angle depends on the family: these three distributions have the same mean cosine of 0.9, but different tails.

angles = torch.linspace(0, math.radians(120), 400)
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for family, color in ((PowerSpherical, "#0072B2"), (VonMisesFisher, "#D55E00"), (SphericalCauchy, "#009E73")):
    p = family.from_mean_length(q.loc, 0.9)
    degrees = math.degrees(p.cap_angle(0.95))
    label = f"{p.family.title}: 95 % within {degrees:.0f}°"
    ax.plot(angles.rad2deg(), p.cap_probability(angles), color=color, label=label)
    ax.plot(degrees, 0.95, "o", color=color)
ax.axhline(0.95, color="#9a9a9a", linewidth=0.8)
ax.set(xlim=(0, 120), ylim=(0, 1.02), xlabel="angle to the mean direction, degrees", ylabel="probability")
ax.set_title("Probability inside a cone, at equal mean cosine")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="lower right")
