"""What depends on torch's modes (transforms, tracing, capture), and small tools for tensors.

- ``private``: every private name of torch, with its public fallback.
- ``modes``: queries about how the current call is run.
- ``derivatives``: functions with hand-written derivatives that work in every mode.
- ``divergences``: torch's table of KL divergences.
- ``elementary``: functions that exported programs must write differently.
- ``constants``: cached constant tensors.
- ``chunks``: elementwise functions in bounded memory.
- ``vectors``: unit vectors, and the precision in which they are computed.
- ``rows``: lengths of user rows, and errors that name a row without a direction.
- ``random``: Gamma draws, and random numbers from a generator.
- ``operators``: operators without derivatives.
- ``composites``: functions that ``torch.compile`` records as one operator.
"""
