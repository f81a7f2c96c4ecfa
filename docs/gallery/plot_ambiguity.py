"""
Embeddings that show their uncertainty
======================================

Embed items whose class is not always clear. Learn a distribution for each item instead of a point: ambiguous items get a
small κ.
"""

# %%
# Items are points of the plane, in three classes that overlap.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import normalize

from powerspherical.nn import PowerSphericalHead, ProbabilisticEmbeddingLoss

torch.manual_seed(0)
centres = torch.tensor([[-1.2, -0.7], [1.2, -0.7], [0.0, 1.4]])


def draw(n):
    """Return n random items, of shape (n, 2), and their classes."""
    classes = torch.randint(3, (n,))
    return centres[classes] + 0.7 * torch.randn(n, 2), classes


# %%
# The network maps an item to a Power Spherical distribution on the sphere in R¹⁶. Each class has a learned direction,
# and the loss is contrastive. Its ``rate`` penalises the KL divergence to the uniform distribution, so κ stays small
# where a larger one does not help.

head = PowerSphericalHead(64, dim=16, initial=5.0)
embed = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), head)
directions = nn.Parameter(torch.randn(3, 16))
loss = ProbabilisticEmbeddingLoss(rate=0.2)
optimiser = torch.optim.Adam([*embed.parameters(), directions], lr=5e-3)
for _ in range(600):
    items, classes = draw(256)
    optimiser.zero_grad()
    loss(embed(items), normalize(directions, dim=-1), classes).backward()
    optimiser.step()

# %%
# κ is small where two classes overlap, and smallest where all three do.

x, y = torch.meshgrid(torch.linspace(-3.6, 3.6, 145), torch.linspace(-2.6, 3.4, 121), indexing="xy")
items, classes = draw(900)
with torch.no_grad():
    kappa = embed(torch.stack([x, y], dim=-1)).concentration  # (121, 145)
    q = embed(items)
right = q.log_prob_matrix(normalize(directions.detach(), dim=-1)).argmax(-1) == classes
medians = q.concentration[right].median(), q.concentration[~right].median()
print(
    f"{right.float().mean():.0%} recognised, with a median κ of {medians[0]:.1f}, the others {medians[1]:.1f}"
)

figure, ax = plt.subplots(figsize=(7, 4.9), layout="constrained")
image = ax.contourf(x, y, kappa, 12, cmap="Greys_r")
for k, color in enumerate(("#0072B2", "#D55E00", "#009E73")):
    ax.scatter(*items[classes == k].T, s=12, color=color, edgecolor="white", linewidth=0.3)
figure.colorbar(image, label="κ")
ax.set(xlim=(-3.6, 3.6), ylim=(-2.6, 3.4), aspect="equal", xticks=[], yticks=[])
ax.set_title("Items of three classes, over the κ of their embedding")
