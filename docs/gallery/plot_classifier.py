"""
A classifier from one density per class
=======================================

Turn embeddings into a classifier without training a network: fit one distribution per class, and choose the class under
which a new point has the highest density. This is Bayes' rule for equally frequent classes.
"""

# %%
# The embeddings are the handwritten digits of scikit-learn, mapped to nine dimensions by linear discriminant analysis
# and normalised.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import normalize, one_hot

from powerspherical import PowerSpherical

digits = load_digits()
train, test = slice(0, 1200), slice(1200, None)
embedding = LinearDiscriminantAnalysis().fit(digits.data[train], digits.target[train])
x = normalize(torch.from_numpy(embedding.transform(digits.data)), dim=-1)  # (1797, 9)
y = torch.from_numpy(digits.target)

# %%
# ``fit`` takes weights. With one column of weights per class, 1 for its points and 0 for the others, one call fits all
# ten distributions. ``log_prob_matrix`` evaluates all pairs of distributions and points.

weights = one_hot(y[train]).double()  # (1200, 10)
q = PowerSpherical.fit(x[train, None].expand(-1, 10, -1), weights)  # batch shape (10,)
scores = q.log_prob_matrix(x[test])  # (10, 597)
found = scores.argmax(dim=0)
print(f"accuracy {(found == y[test]).double().mean():.1%} on {found.numel()} digits")
print("κ of the classes:", q.concentration.round().int().tolist())

# %%
# The bright blocks on the diagonal are the right classes. Below are the eight most doubtful digits, whose two best
# classes have nearly equal densities.

figure = plt.figure(figsize=(7, 4.9), layout="constrained")
panels = figure.subplot_mosaic("========\n========\nabcdefgh")
order = y[test].argsort(stable=True)
image = panels["="].imshow(
    scores[:, order].numpy(), vmin=-20, aspect="auto", interpolation="none", cmap="viridis"
)
panels["="].set(yticks=range(10), ylabel="class", xlabel="test digits, sorted by class")
panels["="].set_title("Log-density of every test digit under every class")
figure.colorbar(image, ax=panels["="], label="nats")

best, names = scores.topk(2, dim=0)
for k, place in zip((best[0] - best[1]).argsort()[:8].tolist(), "abcdefgh", strict=True):
    panels[place].imshow(digits.images[test][k], cmap="Greys")
    panels[place].set_title(f"{names[0, k]} or {names[1, k]}?", fontsize=10)
    panels[place].set_axis_off()
