"""Draws and their gradients as fused Triton kernels. ``fused`` is the entry; other modules need Triton to import."""
