"""
Where the time of a training step goes
======================================

Find out what a latent variable on the sphere costs in training, beside a Gaussian one. Profile training steps of a
small variational auto-encoder: ``record_function`` names the parts of a step for the profiler.
"""

import matplotlib.pyplot as plt
import torch
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import Linear, ReLU, Sequential
from torch.profiler import ProfilerActivity, profile, record_function

from powerspherical import HypersphericalUniform
from powerspherical.nn import SphericalHead


class GaussianHead(Linear):
    def forward(self, features):
        loc, log_scale = super().forward(features).chunk(2, dim=-1)
        return Independent(Normal(loc, log_scale.exp(), validate_args=False), 1)


def part(name, function, *arguments):
    with record_function(name):
        return function(*arguments)


def profiled(head, prior):
    encoder = Sequential(Linear(784, 512), ReLU())
    decoder = Sequential(Linear(32, 512), ReLU(), Linear(512, 784))
    adam = torch.optim.Adam([*encoder.parameters(), *head.parameters(), *decoder.parameters()])
    images = torch.rand(128, 784)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(25):
            q = part("distribution", head, part("encoder", encoder, images))
            output = part("decoder", decoder, part("draw", q.rsample))
            loss = (output - images).square().sum(dim=-1) + part("KL divergence", kl_divergence, q, prior)
            adam.zero_grad()
            part("backward", loss.mean().backward)
            part("optimiser", adam.step)
    return profiler.events()


# %%
# Each bar is the shortest time in 25 steps. The layers, their gradients and the optimiser take most of the time. The
# backward pass and the optimiser vary between runs by more than the two latent variables differ.

parts = ("encoder", "distribution", "draw", "decoder", "KL divergence", "backward", "optimiser")
sphere = profiled(SphericalHead(512, 32), HypersphericalUniform(32))
gauss = profiled(GaussianHead(512, 64), Independent(Normal(torch.zeros(32), torch.ones(32)), 1))
figure, ax = plt.subplots(figsize=(7, 4.9), layout="constrained")
for events, shift, label, color in (sphere, -0.2, "sphere", "#0072B2"), (gauss, 0.2, "Gaussian", "#D55E00"):
    times = [min(one.cpu_time_total for one in events if one.name == name) / 1000 for name in parts]
    bars = ax.barh([k + shift for k in range(7)], times, 0.38, color=color, label=label)
    ax.bar_label(bars, fmt="%.2f", padding=3)
ax.set(yticks=range(7), yticklabels=parts, ylim=(6.6, -0.6), xlabel="milliseconds")
ax.set_title("Parts of a training step on the CPU")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
