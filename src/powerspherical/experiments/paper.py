"""What the paper states, to stand beside what is measured here.

De Cao & Aziz (2020), "The Power Spherical distribution", https://arxiv.org/abs/2006.04437. Every number is the
paper's own, copied with the place where it stands; nothing here is computed.
"""

from typing import NamedTuple

CITATION = "N. De Cao and W. Aziz (2020), The Power Spherical distribution"
ADDRESS = "https://arxiv.org/abs/2006.04437"


class Claim(NamedTuple):
    """What the paper says, in its words or nearly so, and where."""

    text: str
    where: str


#: By the name of the experiment that looks into it.
CLAIMS = {
    "figure1": Claim(
        "Draws and density on the circle with histograms of 1,000 samples; draws from three distributions of "
        "orthogonal directions and different concentrations on the sphere.",
        "Figure 1",
    ),
    "properties": Claim(
        "Mean, variance, mode, entropy of the marginal and entropy in closed form; so are the KL divergences to "
        "the uniform and from a Power Spherical to a von Mises–Fisher distribution.",
        "Table 1; Section 2.3; Appendix C",
    ),
    "stability": Claim(
        "The Power Spherical does not present numerical issues for d and κ in {a·10ᵇ}, a = 1, …, 9, b = 0, …, 5; "
        "the vMF does.",
        "Section 3, Stability; Figure 2 (a)",
    ),
    "efficiency": Claim(
        "Sampling from a Power Spherical is at least 6 times faster than sampling from a vMF, and almost 20 times "
        "for some concentrations; its time is constant regardless of κ.",
        "Section 3, Efficiency; Figure 2 (b)",
    ),
    "vae": Claim(
        "In an auto-encoder of MNIST there is no substantial difference in performance between the two distributions.",
        "Section 3, Variational inference; Table 2",
    ),
    "training_time": Claim(
        "Training with the Power Spherical was more than 2 times faster than with the vMF.",
        "Section 3, Variational inference",
    ),
}

#: Table 1 and the divergences of Section 2.3; α = (d-1)/2 + κ, β = (d-1)/2. By the names of `properties.json`.
PROPERTIES = {
    "E[X]": "μ (α−β)/(α+β)",
    "var(X)": "2α [(β−α) μμᵀ + (α+β) I] / [(α+β)² (α+β+1)]",
    "mode": "μ (κ > 0)",
    "H(T)": "H(Beta(α, β)) + log 2",
    "H(X)": "log N(κ, d) − κ (log 2 + ψ(α) − ψ(α+β))",
    "KL(PS‖U)": "H(U) − H(X)",
    "KL(PS‖vMF)": "−H(X) + log C(κ, d) − κ μᵀμ′ (α−β)/(α+β)",
}

STABILITY_SIDE = 9 * 6
"""How many values d and κ each have on the grid of Figure 2 (a)."""

SAMPLING_SPEEDUP = (6.0, 20.0)
"""How many times faster than the vMF: "at least", and "almost" at the most."""
SAMPLING_DEVICE = "NVIDIA Titan X (12 GB)"  # the footnote of Section 3, Efficiency
TRAINING_SPEEDUP = 2.0
"""Training was more than this many times faster than with the vMF."""


class Score(NamedTuple):
    """Test log-likelihood, estimated with 5,000 importance samples, and evidence lower bound, in nats."""

    log_likelihood: float
    elbo: float


VAE_DATA = "mnist"
#: Table 2: by posterior and ambient dimension d.
VAE = {
    "power_spherical": {
        5: Score(-114.49, -118.01),
        10: Score(-97.46, -101.86),
        20: Score(-93.70, -99.27),
        40: Score(-98.63, -108.32),
    },
    "von_mises_fisher": {
        5: Score(-114.51, -117.68),
        10: Score(-97.37, -101.78),
        20: Score(-93.80, -99.38),
        40: Score(-98.64, -108.44),
    },
}
