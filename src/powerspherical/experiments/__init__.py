"""The paper's figures and tables, a module for each, and what these modules share.

The auto-encoders have a folder of their own, `autoencoder`. `baselines` holds the published methods that ours are
compared with, `report` makes a page of the results, and `paper` has what the paper states.

Each module that makes a figure or a table has a function `run(out, *, seed, quick, device, progress)` that writes its
results under the folder `out` (a JSON file with the configuration, the seed, the versions and the hardware; figures as
PNG and SVG) and returns an `Outcome`. From a shell: `powerspherical reproduce all`.

These modules need the extra `experiments`; nothing here is imported by `import powerspherical`.
"""
