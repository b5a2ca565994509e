"""The pieces around attention as loops over numbers, straight from their definitions: numpy float64."""

import cmath
import math

import numpy as np

from tests.support.loops import attention


def rows_of(x):
    """Every row of x by its index."""
    x = np.asarray(x, dtype=np.float64)
    for lead in np.ndindex(x.shape[:-1]):
        yield lead, [float(e) for e in x[lead]]


def layer_norm(x, gain=None, bias=None, *, eps=1e-5):
    """Row by row: subtract the mean, divide by √(biased variance + ε), scale, shift."""
    y = np.zeros(np.shape(x))
    for lead, row in rows_of(x):
        mean = math.fsum(row) / len(row)
        variance = math.fsum((e - mean) ** 2 for e in row) / len(row)
        for i, e in enumerate(row):
            y[(*lead, i)] = (e - mean) / math.sqrt(variance + eps)
            y[(*lead, i)] *= 1 if gain is None else gain[i]
            y[(*lead, i)] += 0 if bias is None else bias[i]
    return y


def rms_norm(x, gain=None, *, eps=1e-5):
    """Row by row: divide by √(mean square + ε), scale."""
    y = np.zeros(np.shape(x))
    for lead, row in rows_of(x):
        mean_square = math.fsum(e * e for e in row) / len(row)
        for i, e in enumerate(row):
            y[(*lead, i)] = e / math.sqrt(mean_square + eps) * (1 if gain is None else gain[i])
    return y


def relu(e):
    """One number."""
    return e if e > 0 else 0.0


def gelu(e):
    """One number; erfc keeps the left tail that 1 + erf loses."""
    return e * 0.5 * math.erfc(-e / math.sqrt(2))


def gelu_tanh(e):
    """One number."""
    return 0.5 * e * (1 + math.tanh(math.sqrt(2 / math.pi) * (e + 0.044715 * e * e * e)))


def silu(e, beta=1.0):
    """One number."""
    return e / (1 + math.exp(-beta * e))


def each(f, x):
    """f of every number of x."""
    x = np.asarray(x, dtype=np.float64)
    y = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        y[i] = f(float(x[i]))
    return y


def row_times(row, W, b=None):
    """One row through one linear map: y_j = Σ_i x_i W_ij + b_j."""
    return [
        math.fsum(e * float(W[i, j]) for i, e in enumerate(row)) + (0 if b is None else float(b[j]))
        for j in range(W.shape[1])
    ]


def feed_forward(x, W_1, W_2, b_1=None, b_2=None, *, activation):
    """Token by token: linear, activation, linear."""
    y = np.zeros((*np.shape(x)[:-1], W_2.shape[1]))
    for lead, row in rows_of(x):
        y[lead] = row_times([activation(e) for e in row_times(row, W_1, b_1)], W_2, b_2)
    return y


def gated_feed_forward(x, W_gate, W_up, W_down, b_gate=None, b_up=None, b_down=None, *, activation):
    """Token by token: two linear maps, one of them activated, multiplied number by number, then linear."""
    y = np.zeros((*np.shape(x)[:-1], W_down.shape[1]))
    for lead, row in rows_of(x):
        gates, ups = row_times(row, W_gate, b_gate), row_times(row, W_up, b_up)
        y[lead] = row_times([activation(g) * u for g, u in zip(gates, ups, strict=True)], W_down, b_down)
    return y


def lora(x, W, D, U, *, alpha):
    """Token by token: the frozen map, and the low-rank one scaled by alpha / r."""
    y = np.zeros((*np.shape(x)[:-1], W.shape[1]))
    for lead, row in rows_of(x):
        low = row_times(row_times(row, D), U)
        y[lead] = [a + alpha / D.shape[1] * b for a, b in zip(row_times(row, W), low, strict=True)]
    return y


def sinusoids(positions, d_model, *, base=10_000):
    """Sine in the even columns, cosine in the odd ones, one frequency a pair."""
    y = np.zeros((*np.shape(positions), d_model))
    for lead in np.ndindex(np.shape(positions)):
        for i in range(d_model // 2):
            angle = float(positions[lead]) / base ** (2 * i / d_model)
            y[(*lead, 2 * i)], y[(*lead, 2 * i + 1)] = math.sin(angle), math.cos(angle)
    return y


def rope(x, positions, *, interleaved, d_rot=None, base=10_000):
    """Read each pair of numbers as a complex one and multiply it by exp(i p θ); positions (n,)."""
    x = np.asarray(x, dtype=np.float64)
    d_rot = x.shape[-1] if d_rot is None else d_rot
    y = x.copy()
    for lead in np.ndindex(x.shape[:-1]):
        for i in range(d_rot // 2):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + d_rot // 2)
            turn = cmath.exp(1j * float(positions[lead[-1]]) * base ** (-2 * i / d_rot))
            z = complex(x[(*lead, a)], x[(*lead, b)]) * turn
            y[(*lead, a)], y[(*lead, b)] = z.real, z.imag
    return y


def multi_head(params, x, memory, *, h, positions=None, interleaved=None, **reading):
    """Head by head: project by that head's columns, turn, attend, and add up what W_O makes of each head."""
    h_kv = h * params.W_K.shape[1] // params.W_Q.shape[1]
    d_k, d_v, n, m = params.W_Q.shape[1] // h, params.W_V.shape[1] // h_kv, x.shape[-2], memory.shape[-2]
    y = np.zeros((*x.shape[:-1], params.W_O.shape[1])) + (0 if params.b_O is None else params.b_O)

    def head_of(x, W, b, i, width):
        columns = slice(i * width, (i + 1) * width)
        rows = [row_times(row, W[:, columns], None if b is None else b[columns]) for _, row in rows_of(x)]
        return np.reshape(rows, (*x.shape[:-1], width))

    for i in range(h):
        j = i // (h // h_kv)
        q, k = head_of(x, params.W_Q, params.b_Q, i, d_k), head_of(memory, params.W_K, params.b_K, j, d_k)
        if positions is not None:
            q = rope(q, positions[m - n :], interleaved=interleaved)
            k = rope(k, positions, interleaved=interleaved)
        o = attention(q, k, head_of(memory, params.W_V, params.b_V, j, d_v), **reading)
        for lead, row in rows_of(o):
            y[lead] += row_times(row, params.W_O[i * d_v : (i + 1) * d_v])
    return y
