"""Claims and numbers of the paper, for comparison with our measurements.

De Cao & Aziz (2020), "The Power Spherical distribution", https://arxiv.org/abs/2006.04437. All numbers are copied from
the paper, each with its place there.
"""

from typing import NamedTuple

CITATION = "N. De Cao and W. Aziz (2020), The Power Spherical distribution"
ADDRESS = "https://arxiv.org/abs/2006.04437"


class Claim(NamedTuple):
    """A claim of the paper, close to its own words, and where the paper makes it."""

    text: str
    where: str


#: By the name of the experiment that examines the claim.
CLAIMS = {
    "figure1": Claim(
        "On the circle: densities, and histograms of 1,000 draws. On the sphere: draws from three distributions with "
        "orthogonal mean directions and different concentrations.",
        "Figure 1",
    ),
    "properties": Claim(
        "These have closed forms: mean, variance, mode, entropy, the entropy of the marginal, the KL divergence to the "
        "uniform distribution and the KL divergence to a von Mises–Fisher distribution.",
        "Table 1; Section 2.3; Appendix C",
    ),
    "stability": Claim(
        "Unlike the vMF, the Power Spherical has no numerical issues for d and κ in {a·10ᵇ}, a = 1, …, 9, "
        "b = 0, …, 5.",
        "Section 3, Stability; Figure 2 (a)",
    ),
    "efficiency": Claim(
        "Sampling from a Power Spherical is at least 6 times faster than from a vMF, and almost 20 times faster for "
        "some κ. Its time does not depend on κ.",
        "Section 3, Efficiency; Figure 2 (b)",
    ),
    "vae": Claim(
        "In an auto-encoder on MNIST there is no substantial difference in performance between the two distributions.",
        "Section 3, Variational inference; Table 2",
    ),
    "training_time": Claim(
        "Training with the Power Spherical was more than 2 times faster than with the vMF.",
        "Section 3, Variational inference",
    ),
}

#: Table 1 and the divergences of Section 2.3, with α = (d-1)/2 + κ and β = (d-1)/2. The keys are those of
#: `properties.json`.
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
"""The number of values of d, and of κ, in Figure 2 (a)."""

SAMPLING_SPEEDUP = (6.0, 20.0)
"""Speed-up over the vMF: "at least" the first, and "almost" the second for some κ."""
SAMPLING_DEVICE = "NVIDIA Titan X (12 GB)"  # Section 3, Efficiency, footnote
TRAINING_SPEEDUP = 2.0
"""Speed-up of training over the vMF: "more than" this."""


class Score(NamedTuple):
    """Mean log-likelihood, estimated by importance sampling, and mean ELBO of the test data, in nats."""

    log_likelihood: float
    elbo: float


VAE_DATA = "mnist"
#: Table 2 (5,000 importance samples), by posterior and ambient dimension d.
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
