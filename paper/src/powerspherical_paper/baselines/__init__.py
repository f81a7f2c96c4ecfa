"""The published methods that the experiments compare with: formulas and samplers, and posteriors that use them."""
