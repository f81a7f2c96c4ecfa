"""The experiments of the paper, one module per figure or table.

- `figure1`, `properties`, `stability`, `efficiency` and `autoencoder.vae` make the figures and tables.
- `baselines` holds the published methods that ours are compared with.
- `timing` times methods that take turns. The scripts in `benchmarks` use it too.
- `claims` holds the numbers and claims of the paper.
- `report` describes results and writes them as one HTML page.

Each experiment has a function `run(task)`. It writes figures (PNG) and a JSON file (configuration, seed, versions,
hardware) into the folder of the `Task`, and returns an `Outcome`. From a shell: `powerspherical reproduce all`.

`command` adds `reproduce` to the command `powerspherical`. The library does not import this package.
"""
