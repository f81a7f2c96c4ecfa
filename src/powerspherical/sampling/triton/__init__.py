"""Draws and their pull-back as fused Triton kernels. Only ``fused`` is imported where Triton may be missing."""
