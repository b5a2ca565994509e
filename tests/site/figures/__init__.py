"""Which figures to drag the book has, and which Python function each of them must agree with.

One module a chapter (`c03.py`, `c13.py`, …) with a list FIGURES of rows:

    from derived.cost import flops
    from tests.site.figures.row import Figure

    FIGURES = [
        Figure(
            page="book/10-the-flop-crossing",
            name="crossing",                                  # show(chart, alt, name="crossing")
            settings=(                                        # every input by name, at least three settings
                {"d_model": 512, "causal": False},            # slider("d_model", …), switch("causal", …)
                {"d_model": 4096, "causal": False},
                {"d_model": 4096, "causal": True},
            ),
            numbers=lambda d_model, causal: {"tokens": flops.crossing(d_model, causal=causal)},
        ),                                                    # number("tokens", …), or a layer named "number_tokens"
    ]

The function is the package's, not a second copy of the figure's expression. It gives each number that the figure
shows, by name; the figure may show it rounded, and must then show it rounded right. A word that a figure shows in
a number's place ("fits") is given as a str. Nothing has to be registered elsewhere: the modules here are found.
"""

import importlib
import pkgutil


def figures():
    """All rows of all chapters."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return [row for module in modules for row in getattr(module, "FIGURES", ())]
