"""
Clusters of embeddings
======================

Group embeddings by direction without labels, and compare the groups with the classes that you know.
"""

# %%
# The embeddings are images of handwritten digits, reduced to 16 dimensions. Only their directions are used: the mixture
# normalises the rows. :doc:`/clustering` has more on mixtures.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, confusion_matrix

from powerspherical.mixture import PowerSphericalMixture
from powerspherical.plot import plot_clusters

images, digits = load_digits(return_X_y=True)
X = PCA(16, random_state=0).fit_transform(images)
mixture = PowerSphericalMixture(10, n_init=5, random_state=0).fit(X)
labels = mixture.predict(X)
print(f"adjusted Rand index {adjusted_rand_score(digits, labels):.2f}, κ = {mixture.concentrations_[0]:.1f}")

# %%
# Each cluster is named after its most frequent digit. The plane is that in which the mean directions of the clusters
# vary most.

table = confusion_matrix(labels, digits)  # clusters, digits
order = np.argsort(table.argmax(axis=1), kind="stable")
table = table[order]
cluster = np.argsort(order)[labels]  # clusters in the order of their digits
names = [str(digit) for digit in table.argmax(axis=1)]

figure, ax = plt.subplots(figsize=(7, 4.9), layout="constrained")
plot_clusters(X, cluster, ax, names=names)
ax.set_title("Ten clusters of handwritten digits")

# %%
# Most digits have a cluster of their own. No cluster is mostly eights: they are in those of ones and nines.

figure, ax = plt.subplots(figsize=(7, 4.9), layout="constrained")
ax.imshow(table, cmap="Blues")
for (row, column), count in np.ndenumerate(table):
    if count:
        dark = count > 0.5 * table.max()
        ax.text(column, row, count, ha="center", va="center", color="white" if dark else "#333333")
ax.set_xticks(range(10))
ax.set_yticks(range(10), names)
ax.set(xlabel="digit", ylabel="cluster", title="How many images of each digit are in each cluster")
ax.spines[:].set_visible(False)
