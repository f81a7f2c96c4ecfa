"""The only place that uses private names of torch or depends on its modes (transforms, tracing, capture).

- ``modes``: queries about how the current call is run.
- ``derivatives``: functions with hand-written derivatives that work in every mode.
- ``divergences``: torch's table of KL divergences.
- ``elementary``: functions that exported programs must write differently.
- ``constants``: cached constant tensors.
- ``memory``: fast allocation, and tensors that a kernel can read by pointer.
- ``chunks``: elementwise functions in bounded memory.
- ``rows``: lengths of user rows, and errors that name a row without a direction.
- ``random``: Gamma draws, and random numbers from a generator.
- ``operators``: differentiable random operators.
- ``composites``: functions that ``torch.compile`` records as one operator.
- ``triton``: whether Triton works here, and cheap kernel launches.
"""
