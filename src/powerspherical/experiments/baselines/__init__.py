"""What the paper compares with: the published formulas, and the distributions and networks that use them."""
