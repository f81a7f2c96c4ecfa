"""
The latent sphere of an auto-encoder
====================================

Train a variational auto-encoder whose latent variable is a point on the sphere, and look at the whole latent space.
"""

# %%
# ``SphericalBottleneck`` stands between an encoder and a decoder. It draws the latent variable and returns its rate,
# the divergence from the uniform prior. The data are black and white images of digits, 8 by 8 pixels. See :doc:`/vae`.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from powerspherical.nn import SphericalBottleneck
from powerspherical.plot import plot_clusters

torch.manual_seed(0)
images, digits = load_digits(return_X_y=True)
images = torch.from_numpy(images > 7).float()
encoder = nn.Sequential(nn.Linear(64, 256), nn.GELU())
bottleneck = SphericalBottleneck(256, dim=3, initial=10.0)
decoder = nn.Sequential(nn.Linear(3, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64))


def negative_elbo(batch):
    z, rate = bottleneck(encoder(batch))
    return binary_cross_entropy_with_logits(decoder(z), batch, reduction="none").sum(-1) + rate, rate


optimiser = torch.optim.Adam(nn.ModuleList([encoder, bottleneck, decoder]).parameters(), lr=3e-3)
for _ in range(800):
    loss, _ = negative_elbo(images[torch.randint(len(images), (128,))])
    optimiser.zero_grad()
    loss.mean().backward()
    optimiser.step()
loss, rate = negative_elbo(images)
print(f"evidence lower bound {-loss.mean():.1f} nats, rate {rate.mean():.1f} nats")

# %%
# Each point is the mean direction of an image. Colours are the true digits, which the model has not seen.

figure = plt.figure(figsize=(7, 4.4), layout="constrained")
panels = figure.subplots(1, 2, subplot_kw={"projection": "3d"})
for ax, azimuth in zip(panels, (40, 220), strict=True):
    plot_clusters(bottleneck.head(encoder(images)).loc.detach(), digits, ax, view=(20, azimuth))
    ax.set_box_aspect((1, 1, 1), zoom=1.3)
figure.suptitle("Latent sphere of handwritten digits, from both sides")

# %%
# The decoder turns every point of the sphere into an image. Here is a grid of longitudes and latitudes.

longitude, latitude = np.meshgrid(np.radians(range(-180, 180, 24)), np.radians(range(80, -81, -20)))
level = np.cos(latitude)
z = np.stack([level * np.cos(longitude), level * np.sin(longitude), np.sin(latitude)], axis=-1)
with torch.no_grad():
    tiles = decoder(torch.from_numpy(z).float().flatten(0, 1)).sigmoid().reshape(-1, 8, 8)
tiles = nn.functional.pad(tiles, (2, 2, 1, 1)).reshape(9, 15, 10, 12)
figure, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
ax.imshow(tiles.transpose(1, 2).reshape(90, 180).numpy(), extent=(-192, 168, -90, 90), cmap="gray_r")
ax.set(xlabel="longitude, degrees", ylabel="latitude, degrees")
ax.set_title("Images decoded from all over the sphere")
