"""Results for tests: the published ones, and rows of auto-encoders."""

from pathlib import Path

PUBLISHED = Path(__file__).parents[2] / "results"


def vae_row(posterior="power_spherical", dim=5, seed=0, log_likelihood=-100.0, elbo=-110.0, **changes):
    prior = "standard_normal" if posterior == "gaussian" else "uniform"
    plain = {"prior": prior, "factors": None, "proposal": None, "protocol": "paper"}
    scores = {"log_likelihood": log_likelihood, "elbo": elbo}
    return {"posterior": posterior, "dim": dim, "seed": seed, **plain, **scores, **changes}
