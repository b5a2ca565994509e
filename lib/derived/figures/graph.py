"""Computational graphs: values in blue on their way down, gradients in red on their way back up."""

from typing import NamedTuple

from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.textpath import TextPath

from derived.errors import ShapeError
from derived.figures.style import GRADIENT, INK, VALUE, canvas
from derived.ops.attention import attention_trace

# All lengths are inches; the axes of the drawing are scaled so that one unit is one inch.
NUMBERS = FontProperties(family="DejaVu Sans Mono", size=8.5)
FORMULAS = FontProperties(family="DejaVu Sans", size=9)
HEADING = FontProperties(family="DejaVu Sans", size=11.5, weight="bold")
CHARACTER = 0.602 * NUMBERS.get_size() / 72  # what the font moves on by
LINE, PAD, GUTTER, GAP, LEVEL, LANE, TITLE = 0.18, 0.09, 0.2, 0.2, 0.34, 0.06, 0.3
LARGEST = 4  # rows and columns of a matrix that stay legible


class Node(NamedTuple):
    """A variable: formula and value, formula and value of its gradient, the place of its centre in inches."""

    forward: str
    value: list[list[float]]
    backward: str
    gradient: list[list[float]]
    at: tuple[float, float] = (0.0, 0.0)


def attention_graph(q, k, v, dO, title: str):
    """Draw softmax(Q Kᵀ / √d_k) V with every number: a node for each variable, two arrows for each edge.

    Shapes: q (n, d_k), k (m, d_k), v (m, d_v), dO (n, d_v), no size above 4 -> a matplotlib figure.
    The loss drawn is the one whose gradient dO is, ℒ = Σ O ∘ dO. Raises ShapeError for a batch or a larger array.

    Chapter: 5, (5.1) to (5.11).
    """
    for name, x in {"q": q, "k": k, "v": v, "dO": dO}.items():
        if x.ndim != 2 or max(x.shape) > LARGEST:
            raise ShapeError(
                f"attention_graph: {name} has shape {tuple(x.shape)}; the drawing holds single matrices of at most "
                f"{LARGEST} rows and {LARGEST} columns: give it one head of a small example."
            )
    t = attention_trace(q, k, v, dO)
    loss = (t.O * dO).sum().reshape(1, 1)
    nodes = {
        "Q": Node("$Q$", q, r"$dQ = dS\,K$  (5.10)", t.dQ),
        "K": Node("$K$", k, r"$dK = dS^T Q$  (5.11)", t.dK),
        "V": Node("$V$", v, r"$dV = A^T dO$  (5.5)", t.dV),
        "S": Node("$S = QK^T$  (5.1)", t.S, r"$dS = dS'/\sqrt{d_k}$  (5.9)", t.dS),
        "S′": Node(
            r"$S' = S/\sqrt{d_k}$  (5.2)",
            t.S_scaled,
            r"$dS' = A\circ(dA - \mathrm{rowsum}(A\circ dA))$  (5.8)",
            t.dS_scaled,
        ),
        "A": Node(r"$A = \mathrm{softmax}(S')$  (5.3)", t.A, r"$dA = dO\,V^T$  (5.6)", t.dA),
        "O": Node("$O = AV$  (5.4)", t.O, "$dO$, given", t.dO),
        "ℒ": Node(r"$\mathcal{L} = \sum O\circ dO$", loss, r"$d\mathcal{L}$", loss / loss),
    }
    edges = [("Q", "S"), ("K", "S"), ("S", "S′"), ("S′", "A"), ("A", "O"), ("V", "O"), ("O", "ℒ")]
    return draw_graph(placed(nodes, [["Q", "K", "V"], ["S"], ["S′"], ["A"], ["O"], ["ℒ"]], under=2), edges, title)


def placed(nodes: dict[str, Node], rows: list[list[str]], under: int) -> dict[str, Node]:
    """Set rows of nodes from top to bottom; a node alone in its row stands under the middle of the first `under`."""
    sizes = {name: size(node) for name, node in nodes.items()}
    middle = (sum(sizes[name][0] for name in rows[0][:under]) + GAP * (under - 1)) / 2
    done, top = {}, 0.0
    for row in rows:
        height = max(sizes[name][1] for name in row)
        x = 0.0 if len(row) > 1 else middle - sizes[row[0]][0] / 2
        for name in row:
            done[name] = nodes[name]._replace(at=(x + sizes[name][0] / 2, top - height / 2))
            x += sizes[name][0] + GAP
        top -= height + LEVEL
    return done


def draw_graph(nodes: dict[str, Node], edges: list[tuple[str, str]], title: str):
    """Draw placed nodes and, for each edge (from, to), a blue arrow that way and a red one back."""
    boxes = {name: _box(node) for name, node in nodes.items()}
    left, bottom = min(b[0] for b in boxes.values()) - PAD, min(b[1] for b in boxes.values()) - PAD
    right, top = max(b[2] for b in boxes.values()) + PAD, max(b[3] for b in boxes.values()) + 2 * PAD
    right = max(right, left + _width(title, HEADING) + PAD)
    width, height = right - left, top - bottom + TITLE
    fig, ax = canvas(width=width, height=height)
    fig.set_layout_engine("none")  # it would shrink the axes and let the texts outgrow their boxes
    ax.set(xlim=(left, right), ylim=(bottom, top), position=(0, 0, 1, 1 - TITLE / height))
    ax.set_title(title, loc="left", font=HEADING, color=INK)
    ax.axis("off")
    for name, node in nodes.items():
        _draw_node(ax, node, boxes[name])
    for start, end in edges:
        _draw_edge(ax, boxes[start], boxes[end])
    return fig


def size(node: Node) -> tuple[float, float]:
    """Width and height of a node's box: two columns, each as wide as the wider of its formula and its numbers."""
    rows = max(len(node.value), len(node.gradient))
    return sum(_column_widths(node)) + GUTTER + 2 * PAD, LINE * (rows + 1) + 2 * PAD


def written(matrix) -> list[str]:
    """The rows of a matrix as lines of equal length: four decimals, or none where all are whole numbers."""
    whole = all(float(x) == int(x) for row in matrix for x in row)
    cells = [[f"{float(x):.{0 if whole else 4}f}".replace("-", "−") for x in row] for row in matrix]
    width = max(len(cell) for row in cells for cell in row)
    return ["  ".join(cell.rjust(width) for cell in row) for row in cells]


def _column_widths(node):
    return [
        max(_width(formula, FORMULAS), CHARACTER * max(len(line) for line in written(matrix)))
        for formula, matrix in ((node.forward, node.value), (node.backward, node.gradient))
    ]


def _width(text, font):
    return TextPath((0, 0), text, prop=font).get_extents().x1 / 72


def _box(node):
    (x, y), (w, h) = node.at, size(node)
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def _draw_node(ax, node, box):
    left, bottom, right, top = box
    shape = f"round,pad=0,rounding_size={PAD}"
    ax.add_patch(FancyBboxPatch((left, bottom), right - left, top - bottom, shape, fc="#f7f8fa", ec=INK, lw=0.8))
    columns = (node.forward, node.value, VALUE), (node.backward, node.gradient, GRADIENT)
    x = left + PAD
    for (formula, matrix, colour), width in zip(columns, _column_widths(node), strict=True):
        y = top - PAD - LINE / 2
        ax.text(x, y, formula, font=FORMULAS, color=colour, va="center")
        for i, line in enumerate(written(matrix), start=1):
            ax.text(x, y - i * LINE, line, font=NUMBERS, color=colour, va="center")
        x += width + GUTTER


def _draw_edge(ax, start, end):
    """Straight down where the start stands over the end, else down and into the end's side."""
    x = (start[0] + start[2]) / 2
    straight = end[0] + LANE < x < end[2] - LANE
    for lane, colour in ((-LANE, VALUE), (LANE, GRADIENT)):
        tail = (x + lane, start[1])
        tip = (x + lane, end[3]) if straight else (end[2], (end[1] + end[3]) / 2 - lane)
        bend = "arc3,rad=0" if straight else "angle,angleA=90,angleB=0,rad=0"
        style = "-|>" if colour == VALUE else "<|-"
        look = {"arrowstyle": style, "connectionstyle": bend, "color": colour, "lw": 1.2, "mutation_scale": 8}
        ax.add_patch(FancyArrowPatch(tail, tip, shrinkA=1, shrinkB=1, **look))
