"""The table of planted errors, a file of rows for each group of the package's files."""

from tests.mutants.table import attention, kernels, layers, model, positions, softmax, tiles, tokens

TABLE = [
    *softmax.ROWS,
    *attention.ROWS,
    *tiles.ROWS,
    *tokens.ROWS,
    *layers.ROWS,
    *positions.ROWS,
    *model.ROWS,
    *kernels.ROWS,
]
