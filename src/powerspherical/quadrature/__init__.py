"""Expectations, tails, quantiles and their slopes for any family, by quadrature from its log-kernel alone."""
