"""
Draws on the sphere
===================

Draw points around a direction, at three concentrations, and mark the cone that holds 90 % of them.
"""

# %%
# ``loc`` is the mean direction, a unit vector. ``concentration`` says how close to it the points are: 0 is the uniform
# distribution. A batch of three concentrations makes three distributions.

import matplotlib.pyplot as plt
import torch

from powerspherical import PowerSpherical

torch.manual_seed(0)
loc = torch.tensor([0.48, -0.64, 0.6])
q = PowerSpherical(loc, torch.tensor([2.0, 20.0, 200.0]))
x = q.sample((300,))  # (300, 3, 3): draws, distributions, coordinates
angle = q.cap_angle(0.9)  # (3,), in radians

# %%
# The circle around ``loc`` at this angle is the rim of the cone.

u = torch.linalg.cross(loc, torch.tensor([0.0, 0.0, 1.0]))
u = u / u.norm()
v = torch.linalg.cross(loc, u)
turn = torch.linspace(0, 2 * torch.pi, 200)[:, None]
figure = plt.figure(figsize=(9, 3.4), layout="constrained")
panels = figure.subplots(1, 3, subplot_kw={"projection": "3d"})
for k, panel in enumerate(panels):
    rim = angle[k].cos() * loc + angle[k].sin() * (turn.cos() * u + turn.sin() * v)
    panel.scatter(*x[:, k].T, s=4)
    panel.plot(*rim.T, color="tab:red")
    degrees = torch.rad2deg(angle[k])
    panel.set_title(f"κ = {q.concentration[k]:.0f}, 90 % within {degrees:.0f}°")
    panel.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1), box_aspect=(1, 1, 1))
    panel.set_axis_off()

# %%
# About 90 % of the draws lie inside.

inside = (x @ loc > angle.cos()).float().mean(0)
print(inside)
