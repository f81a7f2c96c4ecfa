"""
Clusters among outliers
=======================

Find five clusters of directions although a fifth of the points belongs to none of them, and flag these outliers.
"""

# %%
# Each cluster has 200 points. The other 250 points are uniform on the sphere.

import matplotlib.pyplot as plt
import torch
from sklearn.metrics import adjusted_rand_score, roc_auc_score

from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical.mixture import SphericalCauchyMixture, VonMisesFisherMixture
from powerspherical.plot import plot_clusters

torch.manual_seed(0)
centres = torch.tensor([[1, 2, 9], [9, 1, 4], [-2, 9, 4], [7, 7, -1], [6, -7, 3]])
centres = torch.nn.functional.normalize(centres.float(), dim=-1)
points = VonMisesFisher(centres, 60.0).sample((200,)).flatten(0, 1)
truth = torch.arange(5).repeat(200)
X = torch.cat([points, HypersphericalUniform(3).sample((250,))])

# %%
# A von Mises–Fisher density has light tails: one component moves to the outliers on the far side of the sphere, and two
# neighbouring clusters are merged. A spherical Cauchy density has heavy tails, and each component finds a cluster. Were
# the clusters farther apart, both mixtures would find them. ``n_init`` is the number of starts: with few of them, a fit
# may end in a local maximum. ARI is the adjusted Rand index between true and found clusters, without the outliers.

models = {"von Mises–Fisher": VonMisesFisherMixture, "spherical Cauchy": SphericalCauchyMixture}
figure = plt.figure(figsize=(7, 4.4), layout="constrained")
panels = figure.subplots(1, 2, subplot_kw={"projection": "3d"})
scores = {}
for ax, (name, model) in zip(panels, models.items(), strict=True):
    mixture = model(5, n_init=20, random_state=0).fit(X)
    labels = mixture.predict(X)
    scores[name] = mixture.score_samples(X)
    plot_clusters(X, labels, ax, names=[""] * 5, view=(35, 40))
    ax.set_box_aspect((1, 1, 1), zoom=1.35)
    ax.set_title(f"{name}: ARI {adjusted_rand_score(truth, labels[:1000]):.2f}", y=0.97)
figure.suptitle("Five clusters and 20 % outliers")

# %%
# ``score_samples`` returns the log-density of each point. It is low for outliers. The area under the ROC curve
# (AUC) is the probability that an outlier has a lower log-density than a point of a cluster.

figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), sharey=True, layout="constrained")
for ax, (name, score) in zip(axes, scores.items(), strict=True):
    auc = roc_auc_score([0] * 1000 + [1] * 250, -score)
    groups = [score[:1000], score[1000:]]
    ax.hist(groups, 40, stacked=True, color=["#0072B2", "#9a9a9a"], label=["clusters", "outliers"])
    ax.set(xlabel="log-density", title=f"{name}: AUC {auc:.2f}")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("points")
figure.suptitle("Log-densities of points in clusters and of outliers")
axes[0].legend(frameon=False, loc="upper left")
