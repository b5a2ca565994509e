"""Each op as loops over indices, straight from its definition: slow, obviously right, numpy float64."""

import math

import numpy as np


def softmax(s):
    """a_j = exp(s_j) / Σ exp(s_k), row by row; a row of −inf alone gives zeros."""
    s = np.asarray(s, dtype=np.float64)
    a = np.zeros_like(s)
    for row in np.ndindex(s.shape[:-1]):
        c = max((x for x in s[row]), default=0.0)
        if c == -math.inf:
            continue
        e = [math.exp(x - c) for x in s[row]]
        for j, x in enumerate(e):
            a[(*row, j)] = x / math.fsum(e)
    return a


def log_sum_exp(s):
    """ln Σ exp(s_j), row by row."""
    s = np.asarray(s, dtype=np.float64)
    y = np.full(s.shape[:-1], -math.inf)
    for row in np.ndindex(s.shape[:-1]):
        c = max((x for x in s[row]), default=-math.inf)
        if c > -math.inf:
            y[row] = c + math.log(math.fsum(math.exp(x - c) for x in s[row]))
    return y


def log_softmax(s):
    """s_j − ln Σ exp(s_k), number by number; −inf where s is −inf."""
    s = np.asarray(s, dtype=np.float64)
    y, sums = np.full_like(s, -math.inf), log_sum_exp(s)
    for i in np.ndindex(s.shape):
        if s[i] > -math.inf:
            y[i] = s[i] - sums[i[:-1]]
    return y


def cross_entropy(s, target):
    """ln Σ exp(s_j) − s_target, token by token."""
    loss, sums = np.zeros(np.shape(target)), log_sum_exp(s)
    for i in np.ndindex(loss.shape):
        loss[i] = sums[i] - s[(*i, int(target[i]))]
    return loss


def mean_cross_entropy(s, target, *, weight=None):
    """Σ w_i loss_i / Σ w_i over tokens whose weight is not 0; 0 if there are none."""
    losses = cross_entropy(s, target)
    weight = np.ones_like(losses) if weight is None else weight
    counted = [i for i in np.ndindex(losses.shape) if weight[i] != 0]
    total = math.fsum(float(weight[i]) for i in counted)
    return math.fsum(float(weight[i] * losses[i]) for i in counted) / total if counted else 0.0


def linear(x, W, b=None):
    """y_o = Σ_i x_i W_io + b_o, row by row."""
    y = np.zeros((*x.shape[:-1], W.shape[1]))
    for lead in np.ndindex(x.shape[:-1]):
        for o in range(W.shape[1]):
            y[(*lead, o)] = math.fsum(float(x[(*lead, i)] * W[i, o]) for i in range(W.shape[0]))
            y[(*lead, o)] += 0 if b is None else b[o]
    return y


def embedding(tokens, table):
    """Row `token` of the table, token by token."""
    y = np.zeros((*np.shape(tokens), table.shape[1]))
    for i in np.ndindex(np.shape(tokens)):
        for e in range(table.shape[1]):
            y[(*i, e)] = table[tokens[i], e]
    return y


def attention(q, k, v, *, causal=False, window=None, mask=None, bias=None, scale=None, softcap=None):
    """Query by query, key by key: score, decide whether it may be read, exponentiate, average."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    n, m, d_k, d_v = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    scale = 1 / math.sqrt(d_k) if scale is None else scale
    full = (*q.shape[:-2], n, m)
    mask = np.broadcast_to(True if mask is None else mask, full)
    bias = np.broadcast_to(0.0 if bias is None else np.asarray(bias, dtype=np.float64), full)
    out = np.zeros((*q.shape[:-1], d_v))
    for lead in np.ndindex(q.shape[:-2]):
        kv = lead
        if q.shape[:-2] != k.shape[:-2]:
            kv = (*lead[:-1], lead[-1] // (q.shape[-3] // k.shape[-3]))
        for i in range(n):
            position = i + m - n
            read, scores = [], []
            for j in range(m):
                ahead = causal and j > position
                behind = window is not None and j <= position - window
                beyond = window is not None and j >= position + window
                if ahead or behind or beyond or not mask[(*lead, i, j)] or bias[(*lead, i, j)] == -math.inf:
                    continue
                s = sum(q[(*lead, i, e)] * k[(*kv, j, e)] for e in range(d_k)) * scale
                s = s if softcap is None else softcap * math.tanh(s / softcap)
                read.append(j)
                scores.append(s + bias[(*lead, i, j)])
            for weight, j in zip(softmax(np.array(scores)), read, strict=True):
                for e in range(d_v):
                    out[(*lead, i, e)] += weight * v[(*kv, j, e)]
    return out
