"""Loops that do the work and count it: the second voice of `derived.cost` where torch's counter is silent.

Each attention returns its result beside the MACs it spent, so a test can demand that what was counted is attention.
Arrays are nested lists of floats, one index a dimension; a mask is a function of (query, key).
"""

import math


class Work:
    """A tally of multiply-adds, spent through its two methods alone."""

    def __init__(self):
        self.macs = 0

    def dot(self, x, y):
        """⟨x, y⟩, one MAC a component."""
        total = 0.0
        for a, b in zip(x, y, strict=True):
            total += a * b
            self.macs += 1
        return total

    def add(self, y, a, x):
        """y ← y + a x in place, one MAC a component."""
        for i in range(len(y)):
            y[i] += a * x[i]
            self.macs += 1


def linear(X, W):
    """X W by three loops, and its MACs."""
    work, columns = Work(), list(zip(*W, strict=True))
    return [[work.dot(x, column) for column in columns] for x in X], work.macs


def linear_backward(X, W, dY):
    """(dX, dW) of X W by loops, and their MACs."""
    work = Work()
    dX = [[work.dot(dy, w) for w in W] for dy in dY]
    dW = [[work.dot(x, dy) for dy in zip(*dY, strict=True)] for x in zip(*X, strict=True)]
    return dX, dW, work.macs


def causal(n, m, w=None):
    """The mask aligned to the last key, cut to the last w keys if w is given."""
    return lambda i, j: j <= i + m - n and (w is None or j > i + m - n - w)


def attention(Q, K, V, reads):
    """Attention of grouped heads that touches only the cells `reads` lets through: (O, MACs).

    Q (h, n, d_k), K (h_kv, m, d_k), V (h_kv, m, d_v) -> O (h, n, d_v); query head g reads KV head g // (h / h_kv).
    """
    work, group, O = Work(), len(Q) // len(K), []
    for g, queries in enumerate(Q):
        keys, values = K[g // group], V[g // group]
        O.append([])
        for i, q in enumerate(queries):
            cells = [j for j in range(len(keys)) if reads(i, j)]
            s = [work.dot(q, keys[j]) / math.sqrt(len(q)) for j in cells]
            o = [0.0] * len(values[0])
            total = sum(math.exp(x) for x in s)
            for j, x in zip(cells, s, strict=True):
                work.add(o, math.exp(x) / total, values[j])
            O[-1].append(o)
    return O, work.macs


def tiled_attention(Q, K, V, reads, B_q, B_t, padded=False):
    """Attention of one head by tiles: a tile with no readable cell is skipped, any other computed whole: (O, MACs).

    The last tiles are cut at n and m, or padded with rows of zeros to whole tiles; padding is work and reads nothing.
    """
    work, n, m, O = Work(), len(Q), len(K), []
    if padded:
        Q, K, V = _padded(Q, B_q), _padded(K, B_t), _padded(V, B_t)
    for i0 in range(0, len(Q), B_q):
        rows = range(i0, min(len(Q), i0 + B_q))
        o, l = {i: [0.0] * len(V[0]) for i in rows}, dict.fromkeys(rows, 0.0)
        for j0 in range(0, len(K), B_t):
            columns = range(j0, min(len(K), j0 + B_t))
            readable = {(i, j) for i in rows for j in columns if i < n and j < m and reads(i, j)}
            for i in rows if readable else ():
                for j in columns:
                    s = work.dot(Q[i], K[j]) / math.sqrt(len(Q[0]))
                    e = math.exp(s) if (i, j) in readable else 0.0  # masked after it was computed
                    l[i] += e
                    work.add(o[i], e, V[j])
        O += [[x / l[i] if l[i] else 0.0 for x in o[i]] for i in rows if i < n]
    return O, work.macs


def _padded(rows, size):
    """The rows, and rows of zeros up to a multiple of `size`."""
    return [*rows, *([0.0] * len(rows[0]) for _ in range(-len(rows) % size))]


def attention_backward(Q, K, V, dO, reads, recompute):
    """(dQ, dK, dV) of one head and their MACs, the scores computed again and counted if `recompute`."""
    work, uncounted, scale = Work(), Work(), 1 / math.sqrt(len(Q[0]))
    dQ, dK, dV = ([[0.0] * len(row) for row in rows] for rows in (Q, K, V))
    for i, q in enumerate(Q):
        cells = [j for j in range(len(K)) if reads(i, j)]
        e = [math.exp(scale * (work if recompute else uncounted).dot(q, K[j])) for j in cells]
        a = [x / sum(e) for x in e]
        da = [work.dot(dO[i], V[j]) for j in cells]
        mean = sum(x * y for x, y in zip(a, da, strict=True))  # a row's sum, no product of matrices
        for j, a_j, da_j in zip(cells, a, da, strict=True):
            ds = scale * a_j * (da_j - mean)
            work.add(dV[j], a_j, dO[i])
            work.add(dQ[i], ds, K[j])
            work.add(dK[j], ds, q)
    return dQ, dK, dV, work.macs


def two_pass_backward(Q, K, V, dO, reads):
    """(dQ, dK, dV) of one head as two kernels do it, row by row for dQ, column by column for dK and dV: and the MACs.

    Both passes compute S and dA again; what a row keeps between them are its sum of exponentials and ⟨a, da⟩.
    """
    work, scale = Work(), 1 / math.sqrt(len(Q[0]))
    dQ, dK, dV = ([[0.0] * len(row) for row in rows] for rows in (Q, K, V))
    total, mean = [], []
    for i, q in enumerate(Q):
        cells = [j for j in range(len(K)) if reads(i, j)]
        e = [math.exp(scale * work.dot(q, K[j])) for j in cells]
        da = [work.dot(dO[i], V[j]) for j in cells]
        total.append(sum(e))
        mean.append(sum(x * y for x, y in zip(e, da, strict=True)) / total[i] if cells else 0.0)
        for j, e_j, da_j in zip(cells, e, da, strict=True):
            work.add(dQ[i], scale * e_j / total[i] * (da_j - mean[i]), K[j])
    for j, k in enumerate(K):
        for i in (i for i in range(len(Q)) if reads(i, j)):
            a = math.exp(scale * work.dot(Q[i], k)) / total[i]
            da = work.dot(dO[i], V[j])
            work.add(dV[j], a, dO[i])
            work.add(dK[j], scale * a * (da - mean[i]), Q[i])
    return dQ, dK, dV, work.macs


class Counted:
    """A float whose every operation counts as one FLOP."""

    flops = 0

    def __init__(self, value):
        self.value = float(value)

    def _spend(self, value):
        Counted.flops += 1
        return Counted(value)

    def __add__(self, other):
        return self._spend(self.value + other.value)

    def __sub__(self, other):
        return self._spend(self.value - other.value)

    def __mul__(self, other):
        return self._spend(self.value * other.value)

    def __truediv__(self, other):
        return self._spend(self.value / other.value)

    def root(self):
        return self._spend(math.sqrt(self.value))


def _sum(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def norm(X, gain, shift=None, eps=1e-5):
    """LayerNorm with a shift, RMSNorm without one, by counted floats: (Y, FLOPs)."""
    Counted.flops, Y = 0, []
    gain, width = [Counted(x) for x in gain], Counted(len(gain))
    for row in X:
        x = [Counted(value) for value in row]
        if shift is not None:
            mean = _sum(x) / width
            x = [value - mean for value in x]
        reciprocal = Counted(1) / (_sum([value * value for value in x]) / width + Counted(eps)).root()
        y = [value * reciprocal * g for value, g in zip(x, gain, strict=True)]
        if shift is not None:
            y = [value + Counted(s) for value, s in zip(y, shift, strict=True)]
        Y.append([value.value for value in y])
    return Y, Counted.flops
