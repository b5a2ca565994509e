"""Inputs and numbers of a figure to drag: what the reader moves, and what the page then computes.

Each is found again by its name: the input in the page carries it, and the text of a number is `number_` and
its name; a layer of text of your own, named so by `properties(name="number_…")`, is read the same way.
The browser test moves the one, reads the other and compares it with Python's.

Chapter: all of them.
"""

from derived.errors import DerivedError
from derived.figures.style import INK

# signals that Vega gives every figure; an input of the same name would move the figure's frame
TAKEN = {"autosize", "background", "cursor", "datum", "event", "height", "item", "padding", "parent", "width"}
LINE = 20  # pixels from one line of numbers to the next
END = "__"  # where a number's name ends: Altair adds a position to names in panels side by side, and `show` drops it


def _free(name: str) -> str:
    """Return the name; raise DerivedError where Vega has one like it, or could not read it in an expression."""
    if name in TAKEN or not name.isidentifier():
        raise DerivedError(
            f"an input cannot be called {name!r}: give it a name of letters, digits and _ "
            f"that is none of Vega's own ({', '.join(sorted(TAKEN))})"
        )
    return name


def slider(name: str, label: str, low, high, step, value):
    """Return an Altair parameter that a range input moves; the label says what it is and in which unit."""
    import altair  # slow to import, and a chapter of still figures does without

    return altair.param(
        name=_free(name), value=value, bind=altair.binding_range(min=low, max=high, step=step, name=label)
    )


def choice(name: str, label: str, options, value, shown=None):
    """Return an Altair parameter that takes one of the options, from a drop-down list; `shown` are their texts."""
    import altair

    shown = [str(option) for option in (options if shown is None else shown)]
    bind = altair.binding_select(options=list(options), labels=shown, name=label)
    return altair.param(name=_free(name), value=value, bind=bind)


def switch(name: str, label: str, value: bool):
    """Return an Altair parameter that is true while its box is ticked."""
    import altair

    return altair.param(name=_free(name), value=value, bind=altair.binding_checkbox(name=label))


def number(name: str, label: str, expression: str, form: str, unit: str = "", *, line: int = 0, colour=INK, chart=None):
    """Return a layer that shows `label = number unit` above the plot, computed in the page.

    expression: in Vega's language, of the parameters by name (`"sqrt(d_k)"`) and, given a chart whose transforms
    leave one row or equal rows, of its fields (`"datum.entropy"`). form: a d3 format such as `".3f"`.
    line 0 is the lowest line above the plot. Lay it over the figure: `plot + number(…) + number(…, line=1)`.
    """
    import altair

    source = altair.Chart(altair.Data(values=[{}])) if chart is None else chart
    text = f"'{label} = ' + format({expression}, '{form}')" + (f" + ' {unit}'" if unit else "")
    shown = source.transform_calculate(shown_text=text)
    shown = shown.transform_window(shown_row="row_number()").transform_filter("datum.shown_row == 1")
    mark = shown.mark_text(align="left", baseline="bottom", fontSize=13, color=colour)
    place = {"x": altair.value(0), "y": altair.value(-8 - LINE * line)}
    return mark.encode(text="shown_text:N", **place).properties(name=f"number_{name}{END}")
