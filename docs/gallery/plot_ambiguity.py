"""
Embeddings that show their uncertainty
======================================

Learn embeddings of items whose class is not always clear. Each embedding is a distribution instead of a point, and
ambiguous items get a small κ.
"""

# %%
# Items are points of the plane, in three overlapping classes.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import normalize

from powerspherical.nn import ProbabilisticEmbeddingLoss, SphericalHead

torch.manual_seed(0)
centres = torch.tensor([[-1.2, -0.7], [1.2, -0.7], [0.0, 1.4]])


def draw(n):  # items of shape (n, 2) and their classes
    classes = torch.randint(3, (n,))
    return centres[classes] + 0.7 * torch.randn(n, 2), classes


# %%
# The network maps an item to a Power Spherical distribution on the sphere in R¹⁶. Each class has a learned direction,
# and the loss is contrastive. Its ``beta`` penalises the KL divergence to the uniform distribution, so κ stays small
# where a larger one does not help. See :doc:`/embeddings`.

head = SphericalHead(64, dim=16, initial=5.0)
embed = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), head)
directions = nn.Parameter(torch.randn(3, 16))
loss = ProbabilisticEmbeddingLoss(beta=0.2)
optimiser = torch.optim.Adam([*embed.parameters(), directions], lr=5e-3)
for _ in range(600):
    items, classes = draw(256)
    optimiser.zero_grad()
    loss(embed(items), normalize(directions, dim=-1), classes).backward()
    optimiser.step()

# %%
# κ is small where classes overlap, and smallest where all three do.

x, y = torch.meshgrid(torch.linspace(-3.6, 3.6, 145), torch.linspace(-2.6, 3.4, 121), indexing="xy")
items, classes = draw(900)
with torch.no_grad():
    kappa = embed(torch.stack([x, y], dim=-1)).concentration  # (121, 145)
    q = embed(items)
    wrong = q.log_prob_matrix(normalize(directions, dim=-1)).argmax(-1) != classes
print(f"median κ: {q.concentration.median():.1f}, misclassified {q.concentration[wrong].median():.1f}")

figure, ax = plt.subplots(figsize=(7, 4.9), layout="constrained")
figure.colorbar(ax.contourf(x, y, kappa, 12, cmap="Greys_r", alpha=0.5), label="κ")
for k, color in enumerate(("#0072B2", "#D55E00", "#009E73")):
    ax.scatter(*items[classes == k].T, s=12, color=color, edgecolor="white", linewidth=0.3)
ax.set(xlim=(-3.6, 3.6), ylim=(-2.6, 3.4), xticks=[], yticks=[])
ax.set_title("Items of three classes, over the κ of their embedding")
