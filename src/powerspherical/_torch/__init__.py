"""Everything that touches torch's private or mode-dependent parts, so that the rest of the package need not.

``modes`` tells how a call is being run, ``derivatives`` gives functions their derivatives in every mode,
``constants`` keeps constant tensors, ``chunks`` bounds memory, ``random`` draws with a generator, ``operators``
defines differentiable random operators, and ``launch`` starts Triton kernels.
"""
